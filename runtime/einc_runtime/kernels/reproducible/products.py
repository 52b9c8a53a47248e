"""Matrix products in which every element is one chain of operations in the order of k.

f32 is computed by machine code (`llvm/gemm.py`), with one fused multiply-add a step. Where there is none, and in f64,
numpy adds one product after the other to all elements of the result: the same order, with two roundings a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import Array, DType
from einc_runtime.kernels.base import Run, address, allocate_aligned, dtype_name
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import GemmArguments, PackArguments
from einc_runtime.kernels.llvm.contract import prepare_copy
from einc_runtime.kernels.numpy.pieces import Resolved
from einc_runtime.kernels.numpy.products import MIN_LIBRARY_PRODUCTS
from einc_runtime.kernels.splits import MANY_ROWS

if TYPE_CHECKING:
    from einc_runtime.kernels.llvm.gemm import TileShape

TakeArray = Callable[[Sequence[int], DType], Array]

WIDE_TILES, TILES = (14, 12, 8, 4, 1), (6, 4, 1)
"""Rows of a tile: with registers of 512 bits, and with smaller ones."""


@dataclass(frozen=True, slots=True)
class OrderedProduct:
    """`rows @ columns` into a target with dense rows, all stacks of matrices of f32.

    `exchanged` says that the first operand was given as the second one: a target with dense columns is transposed.
    """

    rows: Array
    columns: Array
    target: Array
    exchanged: bool

    @staticmethod
    def of(left: Array, right: Array, target: Array) -> OrderedProduct | None:
        """None where machine code does not compute it."""
        if target.dtype != np.float32 or not compiler.is_available():
            return None
        exchanged = target.strides[-1] != target.itemsize
        if exchanged:
            left, right, target = (array.swapaxes(-1, -2) for array in (right, left, target))
        return OrderedProduct(left, right, target, exchanged)

    @property
    def height(self) -> int:
        """The rows of a tile: little is wasted on rows that are not there."""
        count = self.target.shape[-2]
        return min(WIDE_TILES if compiler.has_wide_registers() else TILES, key=lambda n: -(-count // n) * (n + 2))

    @property
    def is_direct(self) -> bool:
        """Whether columns are read in place: packing them would take longer than it saves."""
        return self.target.shape[-2] < MANY_ROWS and self.columns.strides[-1] == self.columns.itemsize

    @property
    def is_large(self) -> bool:
        """Whether it is one product that is worth a layout of its own for a constant operand."""
        return self.target.ndim == 2 and self.target.size * self.rows.shape[-1] >= MIN_LIBRARY_PRODUCTS

    def pack_rows(self, take: TakeArray) -> tuple[Array, list[Resolved]]:
        return _pack(self.rows, self.height, take)

    def pack_columns(self, take: TakeArray) -> tuple[Array, list[Resolved]]:
        return _pack(self.columns.swapaxes(-1, -2), _packed_tile(self.height).columns, take)

    def multiply(self, rows: Array, columns: Array | None) -> Run:
        """The call for packed operands; columns that are not packed (None) are read in place. Packed columns may have
        16 bits."""
        from einc_runtime.kernels.llvm.gemm import TileShape, emit_gemm

        depth, stack = self.rows.shape[-1], self.target.shape[:-2]
        if columns is None:
            tile, source = TileShape(self.height, _count_direct_vectors(self.height)), _find_matrices(self.columns)
            panel_step, k_step = 4 * tile.columns, self.columns.strides[-2]
        else:
            tile, source = _packed_tile(self.height), _find_packed(columns, self.columns)
            panel_step, k_step = columns.itemsize * tile.columns * depth, columns.itemsize * tile.columns
        parts = (_find_packed(rows, self.rows), source, _find_matrices(self.target))
        table = np.stack([np.broadcast_to(part, stack).ravel() for part in parts], axis=-1)
        kept = (self.target, self.columns, rows, table) if columns is None else (self.target, columns, rows, table)
        arguments = GemmArguments[int](
            products=len(table),
            table=address(table),
            rows=self.target.shape[-2],
            columns=self.target.shape[-1],
            depth=depth,
            panel_step=panel_step,
            k_step=k_step,
            row_step=self.target.strides[-2],
        )
        kind = "f32" if columns is None else dtype_name(columns)
        return compiler.CompiledCall(emit_gemm(tile, kind), arguments, *kept)


@dataclass(frozen=True, slots=True)
class PackedForm:
    """The layout of a constant operand: the rows or the columns of a product, packed. Columns that the operand has in
    16 bits (`stored`) are packed in these, so that as much is read as is stored."""

    product: OrderedProduct
    of_columns: bool
    stored: DType

    @property
    def _operand(self) -> Array:
        return self.product.columns if self.of_columns else self.product.rows

    @property
    def _width(self) -> int:
        return _packed_tile(self.product.height).columns if self.of_columns else self.product.height

    @property
    def form(self) -> Hashable:
        return "ordered", self.of_columns, self._width, self._operand.shape, self._operand.strides

    @property
    def _dtype(self) -> DType:
        return self.stored if self.of_columns and self.stored.itemsize == 2 else np.dtype(np.float32)

    @property
    def size(self) -> int:
        return self._operand.size * self._dtype.itemsize

    def pack(self, matrix: Array) -> Array:
        """The packed operand, from one that lies in memory as this product's does."""
        lines = matrix.T if self.product.exchanged != self.of_columns else matrix
        packed, calls = _pack(lines, self._width, _allocate)
        for function, arguments in calls:
            function(*arguments)
        if self._dtype == packed.dtype:
            return packed
        narrow = _allocate(packed.shape, self._dtype)
        function, arguments = prepare_copy(packed, narrow)  # exact: these numbers came from 16 bits
        function(*arguments)
        return narrow


def add_outer_products(left: Array, right: Array, target: Array, part: Array) -> None:
    """`left @ right` in numpy, for stacks of matrices; `part` is a temporary array like the target."""
    target.fill(0)
    for k in range(left.shape[-1]):
        np.multiply(left[..., :, k, np.newaxis], right[..., k, np.newaxis, :], out=part)
        np.add(target, part, out=target)


def _packed_tile(height: int) -> TileShape:
    from einc_runtime.kernels.llvm.gemm import TileShape

    return TileShape(height, 2 if compiler.has_wide_registers() else 1)


def _count_direct_vectors(height: int) -> int:
    """A tile of few rows is wide, so that memory is read in longer stretches."""
    if not compiler.has_wide_registers():
        return 3 if height == 1 else 1
    return {1: 16, 4: 6, 8: 3}.get(height, 2)


def _pack(lines: Array, width: int, take: TakeArray) -> tuple[Array, list[Resolved]]:
    """Stacks of lines over k, packed in panels of `width` lines: one row of an array for each matrix, and the call."""
    from einc_runtime.kernels.llvm.gemm import count_packed, emit_pack

    *stack, count, depth = lines.shape
    matrices = math.prod(stack)
    packed = take((matrices, count_packed(width, count, depth)), np.dtype(np.float32))
    along = lines.strides[-1] == lines.itemsize
    step = lines.strides[-2] if along else lines.strides[-1]
    starts = (_find_matrices(lines).ravel(), address(packed) + packed.strides[0] * np.arange(matrices))
    table = np.stack(starts, axis=-1).astype(np.int64)
    arguments = PackArguments[int](matrices=matrices, table=address(table), lines=count, depth=depth, step=step)
    return packed, [(compiler.CompiledCall(emit_pack(width, along), arguments, lines, packed, table), [])]


def _find_matrices(array: Array) -> Array:
    """The address of every matrix of a stack."""
    addresses = np.array(address(array), np.int64)
    for extent, stride in zip(array.shape[:-2], array.strides, strict=False):
        addresses = addresses[..., np.newaxis] + stride * np.arange(extent, dtype=np.int64)
    return addresses


def _find_packed(packed: Array, operand: Array) -> Array:
    """The address of every packed matrix, in the stack of the operand."""
    places = address(packed) + packed.strides[0] * np.arange(len(packed), dtype=np.int64)
    return places.reshape(operand.shape[:-2])


def _allocate(shape: Sequence[int], dtype: DType) -> Array:
    return allocate_aligned(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
