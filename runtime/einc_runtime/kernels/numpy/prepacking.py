"""Constant operands of matrix products in a layout that is made once: packed by a library, or of another type.

Weights are constant operands: views of them are read-only. Products with packed operands are 6 to 20 percent faster
than products that pack in every call, and two or three times as fast if the other operand has few rows. A kernel also
works without its prepacked operands: the executor makes them after weights were loaded, and may leave them out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np

from einc_runtime.dtypes import Array, DType
from einc_runtime.kernels.base import PrepackedOperand, Run, address
from einc_runtime.kernels.numpy import blas
from einc_runtime.kernels.numpy.onednn import ONEDNN, OnednnProduct
from einc_runtime.kernels.numpy.pieces import make_runner

_PACKED, _LEFT = 151, 161  # what the C interface to BLAS calls these

MIN_PACKED_PRODUCTS = 1 << 14
"""Number of multiplications below which packing gains nothing."""

TakeArray = Callable[[Sequence[int], DType], Array]
"""Gives an array of a shape and type in memory that is for one call."""


class PrepackedForm(Protocol):
    """A form of a constant operand: a key that identifies it, its size in bytes, how to make it and to multiply it."""

    @property
    def form(self) -> Hashable: ...

    @property
    def size(self) -> int: ...

    def pack(self, matrix: Array) -> Array:
        """The operand in this form; `matrix` has the strides of the one that the form was chosen for."""
        ...

    def multiply(self, packed: Array) -> Run: ...


def choose_form(
    product: blas.DenseProduct, side: int, library: str, take: TakeArray, *, converted: bool
) -> PrepackedForm | None:
    """The form that a library has of the left (0) or right (1) operand, or the operand in the type of the product.

    None if the product is one of stacks or too small, or if no form is faster. `converted` says that the stored operand
    has another type than the given matrix. `take` gives scratch memory.
    """
    if product.target.ndim != 2:
        return None
    if library == ONEDNN and product.multiplications >= MIN_PACKED_PRODUCTS:
        compiled = OnednnProduct.of(product, packed_side=side)
        if compiled is not None:
            return _OnednnForm(compiled, take([compiled.scratch], np.dtype(np.uint8)))
    if not product.is_large:
        return None
    if library == blas.MKL:
        functions, matrices = _load_functions(product.target.dtype.str), blas.MatrixProduct.of(product)
        if functions is not None and matrices is not None:
            return _MklForm(matrices, 1 - side if matrices.turned else side, functions)
    return _ConvertedForm(product, side) if converted else None


class _MklFunctions(NamedTuple):
    """MKL's functions that give the size of a packed operand, pack it, and multiply with it."""

    size: Any
    pack: Any
    compute: Any


@dataclass(frozen=True, slots=True)
class _MklForm:
    product: blas.MatrixProduct
    side: int
    functions: _MklFunctions

    @property
    def size(self) -> int:
        """The bytes that are written; MKL asks for more memory than that."""
        array = self.product.right if self.side else self.product.left
        return array.size * array.itemsize

    @property
    def form(self) -> Hashable:
        return self.side, self.product.sizes, self.product.layouts[self.side]

    def pack(self, matrix: Array) -> Array:
        where = matrix.T if self.product.turned else matrix
        turn, step = self.product.layouts[self.side]
        operand, sizes = _LEFT + self.side, self.product.sizes
        packed_size: int = self.functions.size(operand, *sizes)
        raw = np.empty(packed_size + 64, np.uint8)
        start: int = -address(raw) % 64
        packed = raw[start : start + packed_size]
        self.functions.pack(blas.BY_ROWS, operand, turn, *sizes, 1.0, address(where), step, address(packed))
        return packed

    def multiply(self, packed: Array) -> Run:
        product = self.product
        operands = [product.left, product.right]
        operands[self.side] = packed
        turns, steps = ([layout[n] for layout in product.layouts] for n in range(2))
        turns[self.side] = _PACKED
        left, right, target = map(address, (*operands, product.target))
        call = (
            blas.BY_ROWS, *turns[:2], *product.sizes, left, steps[0], right, steps[1], 0.0, target, steps[2]
        )  # fmt: skip
        return blas.BlasCalls(self.functions.compute, [call], *operands, product.target)


@dataclass(frozen=True, slots=True)
class _OnednnForm:
    product: OnednnProduct
    scratch: Array

    @property
    def form(self) -> Hashable:
        matrices = self.product.product
        return (
            ONEDNN,
            self.product.form,
            matrices.right.shape,
            matrices.right.strides,
            matrices.right.dtype,
            matrices.turned,
        )

    @property
    def size(self) -> int:
        return self.product.packed_size

    def pack(self, matrix: Array) -> Array:
        return self.product.pack(matrix)

    def multiply(self, packed: Array) -> Run:
        return self.product.bind(self.scratch, packed)


@dataclass(frozen=True, slots=True)
class _ConvertedForm:
    product: blas.DenseProduct
    side: int

    @property
    def matrix(self) -> Array:
        return self.product.right if self.side else self.product.left

    @property
    def form(self) -> Hashable:
        return self.matrix.shape, self.matrix.strides, self.matrix.dtype

    @property
    def size(self) -> int:
        return self.matrix.nbytes

    def pack(self, matrix: Array) -> Array:
        return matrix

    def multiply(self, packed: Array) -> Run:
        product = replace(self.product, right=packed) if self.side else replace(self.product, left=packed)
        call = blas.prepare_product(product)
        assert call is not None  # one was found for a matrix of the same layout
        return make_runner([call])


@cache
def _load_functions(dtype: str) -> _MklFunctions | None:
    mkl = blas.load_mkl()
    if dtype not in blas.BLAS_PREFIXES or mkl is None:
        return None
    letter, number = blas.BLAS_PREFIXES[dtype]
    integer, address = ctypes.c_int, ctypes.c_void_p
    try:
        size, pack, compute = (getattr(mkl, f"cblas_{letter}gemm_{name}") for name in _PACK_FUNCTIONS)
    except AttributeError:
        return None
    size.restype, pack.restype, compute.restype = ctypes.c_size_t, None, None
    size.argtypes = [integer] * 4
    pack.argtypes = [*[integer] * 6, number, address, integer, address]
    compute.argtypes = [*[integer] * 6, *[address, integer] * 2, number, address, integer]
    return _MklFunctions(size, pack, compute)


_PACK_FUNCTIONS = ("pack_get_size", "pack", "compute")


class PrepackedProduct:
    """A product that uses the prepacked operand once it is made."""

    __slots__ = ("_data", "_fast", "_pack", "_product", "_without")

    def __init__(self, pack: PrepackedOperand, product: Callable[[Array], Run], without: Run) -> None:
        self._pack, self._product, self._without = pack, product, without
        self._data: Array | None = None
        self._fast = without

    def __call__(self) -> None:
        self.choose()()

    def choose(self) -> Run:
        """What is run with the operand as it is now."""
        data = self._pack.data
        if data is not self._data:
            self._data, self._fast = data, self._without if data is None else self._product(data)
        return self._fast


_known: WeakValueDictionary[Hashable, PrepackedOperand] = WeakValueDictionary()
"""Prepacked operands that kernels hold: kernels that read one operand in one form share it."""


def is_constant(array: Array) -> bool:
    return not array.flags.writeable


def share_prepacked(source: Array, form: Hashable, size: int, make: Callable[[], Array]) -> PrepackedOperand:
    """The only prepacked copy of an operand in a form."""
    key = (address(source), source.shape, source.strides, source.dtype, form)
    pack = _known.get(key)
    if pack is None:
        pack = _known[key] = PrepackedOperand(source, size, make)
    return pack
