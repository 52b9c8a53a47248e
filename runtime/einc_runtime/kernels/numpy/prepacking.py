"""Constant operands of matrix products in a layout that is made once: packed by a library, or of another type.

Weights are constant operands: views of them are read-only. Products with packed operands are 6 to 20 percent faster
than products that pack in every call, and two or three times as fast if the other operand has few rows. A kernel also
works without its prepacked operands: the executor makes them after weights were loaded, and may leave them out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np

from einc_runtime.dtypes import Array, DType
from einc_runtime.kernels.base import PrepackedOperand, Run, address
from einc_runtime.kernels.numpy.onednn import ONEDNN, OnednnProduct
from einc_runtime.kernels.numpy.pieces import make_runner
from einc_runtime.kernels.numpy.products import DenseProduct

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
    product: DenseProduct, side: int, library: str, take: TakeArray, *, converted: bool
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
    return _ConvertedForm(product, side) if converted and product.is_large else None


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
    product: DenseProduct
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
        operands = (self.product.left, packed) if self.side else (packed, self.product.right)
        return make_runner([(np.matmul, [*operands, self.product.target])])


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
