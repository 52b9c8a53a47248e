"""Matrix products with few rows in machine code of our own: the matrix is read once, where it lies.

A library packs a matrix before it multiplies, or widens it where it has 16 bits. Both take several times as long as the
product itself if the other operand has few rows, as in a step of decoding. This code reads the matrix in the type and
the order in which it is stored, so that no second copy of a weight is needed.

Nine rows and more are packed in a panel, which takes little time (`row_panels_code.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import ITEMSIZE, Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, ScratchArray, address
from einc_runtime.kernels.calls.contract import ContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import FewRowsArguments, PackArguments, PanelArguments
from einc_runtime.kernels.llvm.few_rows_layout import (
    BYTES_PER_NS,
    WIDE,
    FewRowsLayout,
    OperandCopies,
    PrepareCopy,
    is_dense,
    list_addresses,
)
from einc_runtime.kernels.llvm.gemm import count_packed, emit_pack
from einc_runtime.kernels.matrices import are_mergeable, split_off_batches, view_as_matrices
from einc_runtime.kernels.numpy import libraries
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.numpy.prepacking import is_constant
from einc_runtime.plan.index_equations import Names

if TYPE_CHECKING:
    from einc_runtime.kernels.llvm.few_rows_code import FewRowsForm
    from einc_runtime.kernels.llvm.row_panels_code import PanelForm

ROWS_OF_MANY = {16: 32, 8: 16}
"""Rows of a panel where there are several, by the lanes of a register: two registers of sums for each line."""
MAX_ROWS_OF_MANY = {16: 128, 8: 512}
"""More rows are left to libraries, which pack the matrix in each call: that pays with so many."""
PANEL_PRODUCTS_PER_NS = 90.0
"""What a worker multiplies."""


@dataclass(frozen=True, slots=True)
class PanelProduct:
    """The product of a layout whose matrix has f32: its operands, copies of them in scratch memory where they must be,
    the panels, and its code."""

    call: ContractCall
    layout: FewRowsLayout
    copies: OperandCopies
    panels: ScratchArray
    scratch: int

    @staticmethod
    def of(call: ContractCall, layout: FewRowsLayout, move: PrepareCopy) -> PanelProduct:
        scratch, vectors = ScratchAllocator(), layout.vectors
        mergeable = vectors.kind == "f32" and are_mergeable(vectors, layout.row_names)
        suits = mergeable and _find_step(vectors, layout) is not None
        copies = OperandCopies.take(scratch, call, layout, move, None if suits else WIDE)
        count = math.prod(call.extents[name] for name in layout.batch if name in vectors.names)
        depth = math.prod(call.extents[name] for name in layout.summed)
        size = count_packed(_find_form(layout).width, layout.rows, depth)
        panels = scratch.take((count, size), WIDE)
        return PanelProduct(call, layout, copies, panels, scratch.size)

    @property
    def kernel(self) -> Kernel:
        products, matrix = math.prod(self.call.extents.values()), self.layout.matrix.array
        time = max(products / PANEL_PRODUCTS_PER_NS, matrix.nbytes / BYTES_PER_NS)
        return Kernel(self.bind, self.scratch, time)

    def bind(self, memory: Array) -> Run:
        panels = self.panels.of(memory)

        def prepare(vectors: NamedArray, result: NamedArray) -> list[Run]:
            return [self._prepare_packing(vectors, panels), self._prepare_product(panels, vectors, result)]

        return self.copies.bind(memory, prepare)

    def _prepare_packing(self, vectors: NamedArray, panels: Array) -> Run:
        """Packs the rows of every batch. Where the summed indices are several dimensions, each part of a line has a
        place of its own in the panel; packing a part may write behind it, so the parts go in their order."""
        layout, form = self.layout, _find_form(self.layout)
        outer, inner = split_off_batches(layout.summed, (vectors,), 1)
        view = _view_rows(vectors, layout, outer, inner)
        parts, depth = math.prod(self.call.extents[name] for name in outer), view.shape[-1]
        starts = list_addresses([view], view.shape[:-2])[:, 0]
        batch, part = np.divmod(np.arange(len(starts)), parts)
        targets = address(panels) + panels.strides[0] * batch + WIDE.itemsize * form.width * depth * part
        along, calls = view.strides[-1] == WIDE.itemsize, list[Resolved]()
        for first in range(0, layout.rows, form.rows):
            rows = min(form.rows, layout.rows - first)
            moved = starts + first * view.strides[-2], targets + first * parts * depth * WIDE.itemsize
            table = np.stack(moved, axis=-1).astype(np.int64)
            arguments = PackArguments[int](
                matrices=len(table),
                table=address(table),
                lines=rows,
                depth=depth,
                step=view.strides[-2 if along else -1],
            )
            calls.append((compiler.CompiledCall(emit_pack(form.width, along), arguments, table, view, panels), []))
        return make_runner(calls)

    def _prepare_product(self, panels: Array, vectors: NamedArray, result: NamedArray) -> Run:
        from einc_runtime.kernels.llvm.row_panels_code import emit_panel_product

        layout = self.layout
        matrix = view_as_matrices(layout.matrix, layout.batch, layout.lines, layout.summed)
        target = view_as_matrices(result, layout.batch, layout.row_names, layout.lines)
        shared = [self.call.extents[name] if name in vectors.names else 1 for name in layout.batch]
        table = list_addresses([matrix, panels.reshape(*shared, 1, -1), target], target.shape[:-2])
        form = _find_form(layout, result.kind)
        arguments = PanelArguments[int](
            matrices=len(table),
            table=address(table),
            lines=matrix.shape[-2],
            depth=matrix.shape[-1],
            line_step=matrix.strides[-2],
            row_step=target.strides[-2],
            scale=int(np.float32(self.call.scale).view(np.int32)),
            rows=layout.rows,
        )
        return compiler.CompiledCall(emit_panel_product(form), arguments, table, matrix, panels, target)


def _find_form(layout: FewRowsLayout, result: str = "f32") -> PanelForm:
    from einc_runtime.kernels.llvm.row_panels_code import PanelForm

    if layout.has_few_rows:
        return PanelForm(layout.matrix.kind, result, layout.rows, compiler.choose_registers(layout.rows))
    registers = compiler.find_registers()
    return PanelForm(layout.matrix.kind, result, ROWS_OF_MANY[registers.lanes], registers, several=True)


def _find_step(vectors: NamedArray, layout: FewRowsLayout) -> int | None:
    """The step in bytes between rows that are dense, or between positions whose rows are neighbours; else None."""
    view = _view_rows(vectors, layout, *split_off_batches(layout.summed, (vectors,), 1))
    dense = [axis for axis, step in ((-2, view.strides[-1]), (-1, view.strides[-2])) if step == view.itemsize]
    return view.strides[dense[0]] if dense else None


def _view_rows(vectors: NamedArray, layout: FewRowsLayout, outer: Names, inner: Names) -> Array:
    """The array as (batch..., outer..., rows, inner); batches that it does not have are left out."""
    batch = tuple(name for name in layout.batch if name in vectors.names)
    return view_as_matrices(vectors, (*batch, *outer), layout.row_names, inner)


MAX_ROWS = 16
"""More rows are packed in a panel, or multiplied by a library."""
MAX_ROWS_PACKED = 8
"""The same for weights of 16 bits of which a library makes packs. A weight comes from memory, not from a cache, and
until then reading it takes longer than multiplying: with 16 rows a library is a quarter faster, and with those of an
expert three times as fast."""
MIN_ROWS_PANEL = 9
"""So many rows, and up to `few_rows_layout.MAX_PRODUCT_ROWS`, are packed in a panel if the matrix has f32 and the
processor has registers of 512 bits: a library is not faster, and needs the interpreter for each call."""
MIN_ROWS_PANEL_NARROW = {"f32": 5, "f16": 7, "bf16": 7}
"""The same for other processors. Fewer rows are multiplied as fast as a matrix is read; 16-bit floats are widened in
registers then, and in memory for a panel."""
PRODUCTS_PER_NS = 20.0
"""What a worker multiplies."""
UNIT_SCALE = int(np.float32(1).view(np.int32))
"""The bits of a scale that changes nothing."""


def prepare_few_rows(call: ContractCall, move: PrepareCopy) -> Kernel | None:
    """The kernel of a contraction that is a product of few rows, and None for others. `move` prepares copies."""
    layout = FewRowsLayout.find(call)
    if layout is None:
        return None
    if not compiler.is_worthwhile(math.prod(call.extents.values()) // layout.rows, call.invocation.repetitions):
        return None
    if _suits_panel(layout):
        return PanelProduct.of(call, layout, move).kernel
    if layout.rows > MAX_ROWS:
        return None
    if layout.rows > MAX_ROWS_PACKED and _is_packed(layout):
        return None
    return _FewRowsProduct.of(call, layout, move).kernel


def _suits_panel(layout: FewRowsLayout) -> bool:
    if not layout.has_few_rows:
        most = MAX_ROWS_OF_MANY.get(compiler.find_registers().lanes, 0)
        return layout.matrix.kind == "f32" and layout.rows <= most
    if compiler.has_wide_registers():
        return layout.matrix.kind == "f32" and layout.rows >= MIN_ROWS_PANEL
    return layout.rows >= MIN_ROWS_PANEL_NARROW[layout.matrix.kind]


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
    scratch: int

    @staticmethod
    def of(call: ContractCall, layout: FewRowsLayout, move: PrepareCopy) -> _FewRowsProduct:
        scratch, vectors = ScratchAllocator(), layout.vectors
        pairs = multiplies_pairs(layout.matrix.kind, vectors.kind)
        mergeable = are_mergeable(vectors, layout.row_names) and are_mergeable(vectors, layout.summed)
        dense = mergeable and is_dense(vectors, layout.row_names, layout.summed)
        suits = dense and (pairs or vectors.kind == "f32")
        dtype = None if suits else vectors.array.dtype if pairs else WIDE
        copies = OperandCopies.take(scratch, call, layout, move, dtype)
        return _FewRowsProduct(call, layout, copies, scratch.size)

    @property
    def kernel(self) -> Kernel:
        products, matrix = math.prod(self.call.extents.values()), self.layout.matrix.array
        time = max(products / PRODUCTS_PER_NS, matrix.nbytes / BYTES_PER_NS)
        return Kernel(self.bind, self.scratch, time, is_stream=True)

    def bind(self, memory: Array) -> Run:
        return self.copies.bind(memory, lambda vectors, result: [self._prepare_product(vectors, result)])

    def _prepare_product(self, vectors: NamedArray, result: NamedArray) -> Run:
        from einc_runtime.kernels.llvm.few_rows_code import emit_few_rows

        layout = self.layout
        views = [
            view_as_matrices(layout.matrix, layout.batch, layout.lines, layout.summed),
            view_as_matrices(vectors, layout.batch, layout.row_names, layout.summed),
            view_as_matrices(result, layout.batch, layout.row_names, layout.lines),
        ]
        matrix, right, target = views
        table = list_addresses(views, target.shape[:-2])
        form = choose_few_rows_form(layout.matrix.kind, vectors.kind, result.kind, layout.rows, matrix.shape[-1])
        arguments = FewRowsArguments[int](
            matrices=len(table),
            table=address(table),
            lines=matrix.shape[-2],
            depth=matrix.shape[-1],
            line_step=matrix.strides[-2],
            vector_step=right.strides[-2],
            row_step=target.strides[-2],
            scale=int(np.float32(self.call.scale).view(np.int32)),
        )
        return compiler.CompiledCall(emit_few_rows(form), arguments, table, *views)


def multiplies_pairs(matrix: str, vectors: str) -> bool:
    """Whether one instruction multiplies pairs of elements of these types."""
    return matrix == vectors == "bf16" and compiler.multiplies_bf16()


def choose_few_rows_form(matrix: str, vectors: str, result: str, rows: int, depth: int) -> FewRowsForm:
    """The code for operands of these types as they are multiplied, and so many vectors of `depth` elements."""
    from einc_runtime.kernels.llvm.few_rows_code import FewRowsForm, choose_stretch

    stretch = choose_stretch(rows, depth, ITEMSIZE[vectors])
    pairs = multiplies_pairs(matrix, vectors)
    return FewRowsForm(matrix, vectors, result, rows, 2 if rows > 3 else 1, pairs, stretch)
