"""Matrix products with few rows in machine code of our own: the matrix is read once, where it lies.

A library packs a matrix before it multiplies, or widens it where it has 16 bits. Both take several times as long as the
product itself if the other operand has few rows, as in a step of decoding. This code reads the matrix in the type and
the order in which it is stored, so that no second copy of a weight is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, ScratchArray, address
from einc_runtime.kernels.calls.contract import ContractCall, group_indices
from einc_runtime.kernels.indices import NamedArray, Names
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.matrices import are_mergeable, split_off_batches, view_as_matrices
from einc_runtime.kernels.numpy import libraries
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.numpy.prepacking import is_constant

MAX_ROWS = 16
"""More rows are multiplied by a library."""
MAX_ROWS_NARROW = 4
"""The same for processors without registers of 512 bits, or with 16 of them."""
MAX_ROWS_PACKED = 8
"""The same for weights of 16 bits of which a library makes packs. A weight comes from memory, not from a cache, and
until then reading it takes longer than multiplying: with 16 rows a library is a quarter faster. In f32 it is not
faster, and needs the interpreter for each call."""
MIN_LINES, MIN_DEPTH = 4, 64
"""Smaller matrices have too few elements in a line, or too few lines, to fill vectors."""
MAX_MATRICES = 1024
"""A stack of more matrices is multiplied by a library."""

BYTES_PER_NS = 12.0
"""What one of several workers reads from memory."""
PRODUCTS_PER_NS = 20.0
"""What a worker multiplies."""

_WIDE, _PLACE = np.dtype(np.float32), np.dtype(np.int64)

PrepareCopy = Callable[[Array, Array], Resolved]


def prepare_few_rows(call: ContractCall, move: PrepareCopy) -> Kernel | None:
    """The kernel of a contraction that is a product of few rows, and None for others. `move` prepares copies."""
    layout = _FewRowsLayout.find(call)
    if layout is None or not compiler.is_worthwhile(math.prod(call.extents.values()) // layout.rows):
        return None
    if layout.rows > (MAX_ROWS if compiler.has_wide_registers() else MAX_ROWS_NARROW):
        return None
    if layout.rows > MAX_ROWS_PACKED and _is_packed(layout):
        return None
    return _FewRowsProduct.of(call, layout, move).kernel


def _is_packed(layout: _FewRowsLayout) -> bool:
    """Whether the matrix is a weight that a library multiplies in a layout of its own, in the types of the operands."""
    matrix, vectors = layout.matrix, layout.vectors
    alike = matrix.kind == vectors.kind != "f32" and not layout.batch
    return alike and is_constant(matrix.array) and libraries.packs_few_rows(matrix.kind)


@dataclass(frozen=True, slots=True)
class _FewRowsLayout:
    """A contraction as products of matrices [lines, depth] and vectors [rows, depth], one for each batch."""

    matrix: NamedArray
    vectors: NamedArray
    batch: Names
    own: Names
    """The indices of rows."""
    lines: Names
    summed: Names
    rows: int

    @staticmethod
    def find(call: ContractCall) -> _FewRowsLayout | None:
        """None where a contraction is no such product, or where the lines of its matrix are not dense."""
        floats = all(x.kind in compiler.FLOATS for x in (*call.operands, call.result))
        if call.kind != "f32" or not floats or len(call.operands) != 2 or 0 in call.extents.values():
            return None
        result = call.result
        batch, rows, columns, summed = group_indices(call.operands[0].names, call.operands[1].names, result.names)
        if len(batch) + len(rows) + len(columns) + len(summed) != len(call.extents) or not summed:
            return None  # an index of one operand alone is summed
        few, many = (math.prod(call.extents[name] for name in group) for group in (rows, columns))
        vectors, matrix = call.operands
        if few > many:
            vectors, matrix, rows, columns, few, many = matrix, vectors, columns, rows, many, few
        depth = math.prod(call.extents[name] for name in summed)
        if few > MAX_ROWS or depth < MIN_DEPTH:
            return None
        loose, lines = split_off_batches(columns, (matrix, result), MIN_LINES)
        summed = tuple(name for name in matrix.names if name in summed)
        batch = tuple(name for name in result.names if name in {*batch, *loose})
        if math.prod(call.extents[name] for name in lines) < MIN_LINES:
            return None
        if math.prod(call.extents[name] for name in batch) > MAX_MATRICES:
            return None
        if not (are_mergeable(matrix, lines) and are_mergeable(matrix, summed) and are_mergeable(result, lines)):
            return None
        if view_as_matrices(matrix, batch, lines, summed).strides[-1] != matrix.array.itemsize:
            return None
        return _FewRowsLayout(matrix, vectors, batch, rows, lines, summed, few)


@dataclass(frozen=True, slots=True)
class _FewRowsProduct:
    """The product of a layout: its operands, copies of them in scratch memory where they must be, and its code."""

    call: ContractCall
    layout: _FewRowsLayout
    move: PrepareCopy
    vectors: ScratchArray | None
    result: ScratchArray | None
    pairs: bool
    scratch: int

    @staticmethod
    def of(call: ContractCall, layout: _FewRowsLayout, move: PrepareCopy) -> _FewRowsProduct:
        scratch, vectors, result = ScratchAllocator(), layout.vectors, call.result
        pairs = layout.matrix.kind == vectors.kind == "bf16" and compiler.multiplies_bf16()
        copied = rewritten = None
        mergeable = are_mergeable(vectors, layout.own) and are_mergeable(vectors, layout.summed)
        if not mergeable or not _is_dense(vectors, layout.own, layout.summed) or not (pairs or vectors.kind == "f32"):
            names = _order_of(vectors, layout.batch, layout.own, layout.summed)
            copied = scratch.take([call.extents[name] for name in names], vectors.array.dtype if pairs else _WIDE)
        if not are_mergeable(result, layout.own) or not _is_dense(result, layout.own, layout.lines):
            names = _order_of(result, layout.batch, layout.own, layout.lines)
            rewritten = scratch.take([call.extents[name] for name in names], _WIDE)
        return _FewRowsProduct(call, layout, move, copied, rewritten, pairs, scratch.size)

    @property
    def kernel(self) -> Kernel:
        products, matrix = math.prod(self.call.extents.values()), self.layout.matrix.array
        time = max(products / PRODUCTS_PER_NS, matrix.nbytes / BYTES_PER_NS)
        return Kernel(self.bind, self.scratch, time, is_stream=True)

    def bind(self, memory: Array) -> Run:
        layout, calls = self.layout, list[Resolved]()
        vectors, result = layout.vectors, self.call.result
        if self.vectors is not None:
            names = _order_of(vectors, layout.batch, layout.own, layout.summed)
            copy = NamedArray(names, self.vectors.of(memory))
            calls.append(self.move(vectors.align(names), copy.array))
            vectors = copy
        if self.result is not None:
            names = _order_of(result, layout.batch, layout.own, layout.lines)
            result = NamedArray(names, self.result.of(memory))
        calls.append((self._prepare_product(vectors, result), []))
        if self.result is not None:
            calls.append(self.move(result.align(self.call.result.names), self.call.result.array))
        return make_runner(calls)

    def _prepare_product(self, vectors: NamedArray, result: NamedArray) -> Run:
        from einc_runtime.kernels.llvm.few_rows_code import FewRowsForm, choose_stretch, emit_few_rows

        layout = self.layout
        views = [
            view_as_matrices(layout.matrix, layout.batch, layout.lines, layout.summed),
            view_as_matrices(vectors, layout.batch, layout.own, layout.summed),
            view_as_matrices(result, layout.batch, layout.own, layout.lines),
        ]
        matrix, right, target = views
        stack = target.shape[:-2]
        table = np.array(
            [
                [address(x) + sum(n * step for n, step in zip(place, _steps(x, stack), strict=True)) for x in views]
                for place in np.ndindex(*stack)
            ],
            _PLACE,
        )
        lines = 2 if layout.rows > 3 else 1
        stretch = choose_stretch(layout.rows, matrix.shape[-1], right.itemsize)
        form = FewRowsForm(layout.matrix.kind, vectors.kind, result.kind, layout.rows, lines, self.pairs, stretch)
        steps = (matrix.strides[-2], right.strides[-2], target.strides[-2])
        scale = int(np.float32(self.call.scale).view(np.int32))
        arguments = [
            len(table), address(table), *matrix.shape[-2:], *steps, scale
        ]  # fmt: skip
        return compiler.CompiledCall(emit_few_rows(form), arguments, table, *views)


def _steps(array: Array, stack: tuple[int, ...]) -> tuple[int, ...]:
    """The byte strides of the batches, 0 where the array has one for all."""
    return np.broadcast_to(array, (*stack, *array.shape[-2:])).strides[: len(stack)]


def _order_of(operand: NamedArray, *groups: Names) -> Names:
    return tuple(name for group in groups for name in group if name in operand.names)


def _is_dense(operand: NamedArray, first: Names, second: Names) -> bool:
    """Whether neighbours along the second group, each of whose groups is one dimension, are neighbours in memory."""
    batch = tuple(name for name in operand.names if name not in {*first, *second})
    return bool(view_as_matrices(operand, batch, first, second).strides[-1] == operand.array.itemsize)
