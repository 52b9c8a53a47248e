"""Matrix products with few rows in machine code of our own: the matrix is read once, where it lies.

A library packs a matrix before it multiplies, or widens it where it has 16 bits. Both take several times as long as the
product itself if the other operand has few rows, as in a step of decoding. This code reads the matrix in the type and
the order in which it is stored, so that no second copy of a weight is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, address
from einc_runtime.kernels.calls.contract import ContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.few_rows_layout import (
    BYTES_PER_NS,
    WIDE,
    FewRowsLayout,
    OperandCopies,
    PrepareCopy,
    is_dense,
    list_addresses,
)
from einc_runtime.kernels.llvm.row_panels import PanelProduct
from einc_runtime.kernels.matrices import are_mergeable, view_as_matrices
from einc_runtime.kernels.numpy import libraries
from einc_runtime.kernels.numpy.prepacking import is_constant

MAX_ROWS = 16
"""More rows are packed in a panel, or multiplied by a library."""
MAX_ROWS_NARROW = 4
"""The same for processors without registers of 512 bits, or with 16 of them."""
MAX_ROWS_PACKED = 8
"""The same for weights of 16 bits of which a library makes packs. A weight comes from memory, not from a cache, and
until then reading it takes longer than multiplying: with 16 rows a library is a quarter faster."""
MIN_ROWS_PANEL = 9
"""So many rows, and up to `few_rows_layout.MAX_PRODUCT_ROWS`, are packed in a panel if the matrix has f32 and the
processor has registers of 512 bits: a library is not faster, and needs the interpreter for each call."""
PRODUCTS_PER_NS = 20.0
"""What a worker multiplies."""


def prepare_few_rows(call: ContractCall, move: PrepareCopy) -> Kernel | None:
    """The kernel of a contraction that is a product of few rows, and None for others. `move` prepares copies."""
    layout = FewRowsLayout.find(call)
    if layout is None or not compiler.is_worthwhile(math.prod(call.extents.values()) // layout.rows):
        return None
    if layout.matrix.kind == "f32" and layout.rows >= MIN_ROWS_PANEL and compiler.has_wide_registers():
        return PanelProduct.of(call, layout, move).kernel
    if layout.rows > (MAX_ROWS if compiler.has_wide_registers() else MAX_ROWS_NARROW):
        return None
    if layout.rows > MAX_ROWS_PACKED and _is_packed(layout):
        return None
    return _FewRowsProduct.of(call, layout, move).kernel


def _is_packed(layout: FewRowsLayout) -> bool:
    """Whether the matrix is a weight that a library multiplies in a layout of its own, in the types of the operands."""
    matrix, vectors = layout.matrix, layout.vectors
    same_kind = matrix.kind == vectors.kind != "f32" and not layout.batch
    return same_kind and is_constant(matrix.array) and libraries.packs_few_rows(matrix.kind)


@dataclass(frozen=True, slots=True)
class _FewRowsProduct:
    """The product of a layout: its operands, copies of them in scratch memory where they must be, and its code."""

    call: ContractCall
    layout: FewRowsLayout
    copies: OperandCopies
    pairs: bool
    scratch: int

    @staticmethod
    def of(call: ContractCall, layout: FewRowsLayout, move: PrepareCopy) -> _FewRowsProduct:
        scratch, vectors = ScratchAllocator(), layout.vectors
        pairs = layout.matrix.kind == vectors.kind == "bf16" and compiler.multiplies_bf16()
        mergeable = are_mergeable(vectors, layout.row_names) and are_mergeable(vectors, layout.summed)
        dense = mergeable and is_dense(vectors, layout.row_names, layout.summed)
        suits = dense and (pairs or vectors.kind == "f32")
        dtype = None if suits else vectors.array.dtype if pairs else WIDE
        copies = OperandCopies.take(scratch, call, layout, move, dtype)
        return _FewRowsProduct(call, layout, copies, pairs, scratch.size)

    @property
    def kernel(self) -> Kernel:
        products, matrix = math.prod(self.call.extents.values()), self.layout.matrix.array
        time = max(products / PRODUCTS_PER_NS, matrix.nbytes / BYTES_PER_NS)
        return Kernel(self.bind, self.scratch, time, is_stream=True)

    def bind(self, memory: Array) -> Run:
        return self.copies.bind(memory, lambda vectors, result: [self._prepare_product(vectors, result)])

    def _prepare_product(self, vectors: NamedArray, result: NamedArray) -> Run:
        from einc_runtime.kernels.llvm.few_rows_code import FewRowsForm, choose_stretch, emit_few_rows

        layout = self.layout
        views = [
            view_as_matrices(layout.matrix, layout.batch, layout.lines, layout.summed),
            view_as_matrices(vectors, layout.batch, layout.row_names, layout.summed),
            view_as_matrices(result, layout.batch, layout.row_names, layout.lines),
        ]
        matrix, right, target = views
        table = list_addresses(views, target.shape[:-2])
        lines = 2 if layout.rows > 3 else 1
        stretch = choose_stretch(layout.rows, matrix.shape[-1], right.itemsize)
        form = FewRowsForm(layout.matrix.kind, vectors.kind, result.kind, layout.rows, lines, self.pairs, stretch)
        steps = (matrix.strides[-2], right.strides[-2], target.strides[-2])
        scale = int(np.float32(self.call.scale).view(np.int32))
        arguments = [len(table), address(table), *matrix.shape[-2:], *steps, scale]
        return compiler.CompiledCall(emit_few_rows(form), arguments, table, *views)
