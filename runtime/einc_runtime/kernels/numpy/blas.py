"""Matrix products by a BLAS that is called directly: one that is faster than numpy's own, and products added to others.

Intel's MKL is taken where it is installed (the extra `load_mkl`), for it is a tenth faster than the OpenBLAS in numpy's
wheels; else that OpenBLAS, for what `np.matmul` cannot say: add to what is there. Where neither is found, or matrices
are small or of another type, products are `np.matmul`'s, and none can be added. Libraries are looked for when a large
product is first prepared. All of them compute in the calling thread alone: executors see to that.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address
from einc_runtime.kernels.numpy.pieces import Resolved

SMALL = 1 << 18
"""Multiplications in a product below which a call from numpy is as fast."""
MAX_MATRICES = 64
"""Matrices in a stack that are multiplied one by one; numpy is left to loop over more."""

BY_ROWS, _PLAIN, _TURNED = 101, 111, 112  # what the C interface to BLAS calls these
_SYMBOLS = (
    ("scipy_cblas_{}gemm64_", ctypes.c_int64),
    ("cblas_{}gemm64_", ctypes.c_int64),
    ("scipy_cblas_{}gemm", ctypes.c_int),
    ("cblas_{}gemm", ctypes.c_int),
)
LETTERS: dict[str, tuple[str, Any]] = {"<f4": ("s", ctypes.c_float), "<f8": ("d", ctypes.c_double)}

Gemm = Callable[..., None]
MatrixLayout = tuple[int, int]
"""How BLAS is told of a matrix: as it is or turned, and the elements between its rows (or columns)."""


def prepare_product(left: Array, right: Array, target: Array) -> Resolved:
    """The call that writes `left @ right` to `target`, for stacks of matrices as `np.matmul` takes them."""
    direct = (
        _prepare_blas_calls(left, right, target, add=False)
        if is_large(left, target) and load_mkl() is not None
        else None
    )
    return direct if direct is not None else (np.matmul, [left, right, target])


def prepare_added_product(left: Array, right: Array, target: Array) -> Resolved | None:
    """The call that adds `left @ right` to `target`, or None where there is none."""
    return _prepare_blas_calls(left, right, target, add=True) if is_large(left, target) else None


class BlasCalls:
    """Products of matrices by address; it keeps alive what they are of."""

    __slots__ = ("_calls", "_gemm", "_kept")

    def __init__(self, gemm: Gemm, calls: Sequence[tuple[Any, ...]], *arrays: Array) -> None:
        self._gemm, self._calls, self._kept = gemm, calls, arrays

    def __call__(self) -> None:
        for arguments in self._calls:
            self._gemm(*arguments)


def is_large(left: Array, target: Array) -> bool:
    """Whether a product is worth a call of its own, and one of few matrices."""
    rows, columns = target.shape[-2:]
    return math.prod(target.shape[:-2]) <= MAX_MATRICES and bool(rows * columns * left.shape[-1] >= SMALL)


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """One product of stacks of matrices as BLAS is told of it: by rows of the target, which may turn all three."""

    left: Array
    right: Array
    target: Array
    layouts: tuple[MatrixLayout, MatrixLayout, MatrixLayout]
    turned: bool

    @staticmethod
    def of(left: Array, right: Array, target: Array) -> MatrixProduct | None:
        """None where the operands are not laid out for it."""
        if not left.dtype == right.dtype == target.dtype:
            return None
        layout = _find_layout(target)
        turned = layout is not None and layout[0] == _TURNED
        if turned:  # the transposes' product is the product's transpose
            left, right, target = (array.swapaxes(-1, -2) for array in (right, left, target))
        first, second, third = (_find_layout(array) for array in (left, right, target))
        if first is None or second is None or third is None:
            return None
        return MatrixProduct(left, right, target, (first, second, third), turned)

    @property
    def sizes(self) -> tuple[int, int, int]:
        rows, columns = self.target.shape[-2:]
        return rows, columns, self.left.shape[-1]


def _prepare_blas_calls(left: Array, right: Array, target: Array, *, add: bool) -> Resolved | None:
    gemm, found = _load_gemm(target.dtype.str), MatrixProduct.of(left, right, target)
    if gemm is None or found is None:
        return None
    (turn_left, rows_left), (turn_right, rows_right), (_, rows_target) = found.layouts
    arrays, stack = (found.left, found.right, found.target), target.shape[:-2]
    calls = [
        (BY_ROWS, turn_left, turn_right, *found.sizes, 1.0, a, rows_left, b, rows_right, float(add), c, rows_target)
        for a, b, c in zip(*(_matrix_addresses(array, stack) for array in arrays), strict=True)
    ]
    return BlasCalls(gemm, calls, *arrays), []


def _find_layout(array: Array) -> MatrixLayout | None:
    (rows, columns), (row, column), size = array.shape[-2:], array.strides[-2:], array.itemsize
    if column == size and row % size == 0 and row >= columns * size:
        return _PLAIN, row // size
    if row == size and column % size == 0 and column >= rows * size:
        return _TURNED, column // size
    return None


def _matrix_addresses(array: Array, stack: Sequence[int]) -> Iterator[int]:
    whole = np.broadcast_to(array, (*stack, *array.shape[-2:]))
    start = address(array)
    for place in np.ndindex(*stack):
        yield start + sum(n * stride for n, stride in zip(place, whole.strides, strict=False))


@cache
def _load_gemm(dtype: str) -> Gemm | None:
    if dtype not in LETTERS:
        return None
    letter, number = LETTERS[dtype]
    intel = load_mkl()
    library, symbols = (intel, _SYMBOLS[-1:]) if intel is not None else (_load_openblas(), _SYMBOLS)
    for name, integer in symbols:
        function: Any = getattr(library, name.format(letter), None)
        if function is not None:
            matrix = [ctypes.c_void_p, integer]
            function.restype = None
            function.argtypes = [*[ctypes.c_int] * 3, *[integer] * 3, number, *matrix, *matrix, number, *matrix]
            found: Gemm = function
            return found
    return None


@cache
def load_mkl() -> ctypes.CDLL | None:
    """Intel's library, told to compute in the calling thread; from where its wheel puts it."""
    for path in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so.*")):
        try:
            library = ctypes.CDLL(str(path))
            library.MKL_Set_Threading_Layer(1)
            library.MKL_Set_Interface_Layer(0)
        except (OSError, AttributeError):
            continue
        return library
    return None


@cache
def _load_openblas() -> ctypes.CDLL | None:
    """The library that numpy has loaded."""
    from threadpoolctl import ThreadpoolController

    for found in ThreadpoolController().info():
        if found.get("internal_api") == "openblas":
            return ctypes.CDLL(found["filepath"])
    return None
