"""Matrix products by direct calls of Intel's MKL (the extra `mkl`), or by `np.matmul`, which calls numpy's OpenBLAS.

`np.matmul` also computes where MKL is not found, and where matrices are small or of another type. MKL is looked for
when a large product is first prepared. Libraries use the calling thread alone: the executor sees to that.
`libraries.py` says which one is used.
"""

from __future__ import annotations

import ctypes
import math
import site
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from einc_runtime import environment
from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address
from einc_runtime.kernels.numpy.pieces import Resolved
from einc_runtime.kernels.processor import find_level

MIN_BLAS_PRODUCTS = 1 << 18
"""Number of multiplications below which `np.matmul` is as fast."""
MAX_LOOPED_MATRICES = 64
"""Stacks of up to so many matrices are multiplied one by one; numpy loops over larger ones."""

MKL_FILE = "libmkl_rt.so.*"
BY_ROWS, _PLAIN, _TURNED = 101, 111, 112  # what the C interface to BLAS calls these
BLAS_PREFIXES: dict[str, tuple[str, Any]] = {"<f4": ("s", ctypes.c_float), "<f8": ("d", ctypes.c_double)}

Gemm = Callable[..., None]
MatrixLayout = tuple[int, int]
"""How BLAS reads a matrix: plain or transposed, and the number of elements between its rows (or columns)."""


OPENBLAS, MKL = "openblas", "mkl"


@dataclass(frozen=True, slots=True)
class DenseProduct:
    """`left @ right`, for stacks of matrices as `np.matmul` takes them."""

    left: Array
    right: Array
    target: Array

    @property
    def is_large(self) -> bool:
        """Whether it is large enough for a direct call of BLAS, and one of few matrices."""
        return self.multiplications >= MIN_BLAS_PRODUCTS and self.has_few_matrices

    @property
    def has_few_matrices(self) -> bool:
        return bool(math.prod(self.target.shape[:-2]) <= MAX_LOOPED_MATRICES)

    @property
    def multiplications(self) -> int:
        """In each matrix."""
        rows, columns = self.target.shape[-2:]
        return int(rows * columns * self.left.shape[-1])


def prepare_product(product: DenseProduct, library: str = OPENBLAS) -> Resolved:
    """Returns the call that computes a product with OPENBLAS or MKL."""
    call = _prepare_mkl_calls(product) if library == MKL and product.is_large else None
    return call if call is not None else (np.matmul, [product.left, product.right, product.target])


class BlasCalls:
    """Calls of BLAS with addresses of arrays, which it keeps alive."""

    __slots__ = ("_calls", "_gemm", "_kept")

    def __init__(self, gemm: Gemm, calls: Sequence[tuple[Any, ...]], *arrays: Array) -> None:
        self._gemm, self._calls, self._kept = gemm, calls, arrays

    def __call__(self) -> None:
        for arguments in self._calls:
            self._gemm(*arguments)


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """One product of stacks of matrices for BLAS. All three are transposed where that makes the target row-major."""

    left: Array
    right: Array
    target: Array
    layouts: tuple[MatrixLayout, MatrixLayout, MatrixLayout]
    turned: bool

    @staticmethod
    def of(product: DenseProduct) -> MatrixProduct | None:
        """None where BLAS cannot read the operands as they lie in memory."""
        left, right, target = product.left, product.right, product.target
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


def _prepare_mkl_calls(product: DenseProduct) -> Resolved | None:
    gemm, matrices = _load_gemm(product.target.dtype.str), MatrixProduct.of(product)
    if gemm is None or matrices is None:
        return None
    (turn_left, rows_left), (turn_right, rows_right), (_, rows_target) = matrices.layouts
    arrays, stack = (matrices.left, matrices.right, matrices.target), product.target.shape[:-2]
    calls = [
        (
            BY_ROWS,
            turn_left,
            turn_right,
            *matrices.sizes,
            1.0,
            a,
            rows_left,
            b,
            rows_right,
            0.0,
            c,
            rows_target,
        )
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
    stacked = np.broadcast_to(array, (*stack, *array.shape[-2:]))
    start = address(array)
    for position in np.ndindex(*stack):
        yield start + sum(n * stride for n, stride in zip(position, stacked.strides, strict=False))


@cache
def _load_gemm(dtype: str) -> Gemm | None:
    """MKL's function; None where it cannot be called."""
    if dtype not in BLAS_PREFIXES:
        return None
    letter, number = BLAS_PREFIXES[dtype]
    function: Any = getattr(load_mkl(), f"cblas_{letter}gemm", None)
    if function is None:
        return None
    matrix = [ctypes.c_void_p, ctypes.c_int]
    function.restype = None
    function.argtypes = [*[ctypes.c_int] * 6, number, *matrix, *matrix, number, *matrix]
    gemm: Gemm = function
    return gemm


@cache
def load_mkl() -> ctypes.CDLL | None:
    """Intel's library from where its wheel puts it, set to compute in the calling thread; None where it is missing."""
    level = find_level()
    if level is not None:
        environment.set_default(environment.MKL_INSTRUCTIONS, level.mkl)  # which it reads when it is loaded
    for path in find_library_files(MKL_FILE):
        try:
            library = ctypes.CDLL(str(path))
            library.MKL_Set_Threading_Layer(1)
            library.MKL_Set_Interface_Layer(0)
        except (OSError, AttributeError):
            continue
        return library
    return None


def find_library_files(pattern: str) -> list[Path]:
    """Libraries that came in wheels, which put them beside the environment's own, or beside the user's."""
    bases = dict.fromkeys([sys.prefix, site.getuserbase() if site.ENABLE_USER_SITE else sys.prefix])
    return [path for base in bases for path in sorted(Path(base, "lib").glob(pattern))]
