"""Contractions as products of matrices with few rows: which operand is the matrix, and how the indices are grouped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from einc_runtime.dtypes import Array, DType
from einc_runtime.kernels.base import Run, ScratchAllocator, ScratchArray, address
from einc_runtime.kernels.calls.contract import ContractCall, group_indices
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.matrices import MAX_FORMS, are_mergeable, split_off_batches, view_as_matrices
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.views import restride
from einc_runtime.plan.index_equations import Names

MAX_PRODUCT_ROWS = 48
"""Products of more rows are no products of few rows."""
MIN_MANY_LINES = 64
"""Products of more rows have at least so many lines."""
MIN_LINES, MIN_DEPTH = 4, 64
"""Smaller matrices have too few elements in a line, or too few lines, to fill vectors."""
MAX_STACKED_MATRICES = 1024
"""A stack of more matrices is multiplied by a library."""

BYTES_PER_NS = 12.0
"""What one of several workers reads from memory."""

WIDE = np.dtype(np.float32)
"""The type that products are computed in."""

PrepareCopy = Callable[[Array, Array], Resolved]
"""Prepares the call that copies one array to another of its shape, rounding or widening floats."""


@dataclass(frozen=True, slots=True)
class FewRowsLayout:
    """A contraction as products of matrices [lines, depth] and vectors [rows, depth], one for each batch."""

    matrix: NamedArray
    vectors: NamedArray
    batch: Names
    row_names: Names
    lines: Names
    summed: Names
    rows: int

    @staticmethod
    def find(call: ContractCall) -> FewRowsLayout | None:
        """None where a contraction is no such product, or where the lines of its matrix are not dense."""
        floats = all(x.kind in compiler.COMPILED_FLOATS for x in (*call.operands, call.result))
        if call.kind != "f32" or not floats or len(call.operands) != 2:
            return None
        forms = ((x.names, x.array.shape, x.array.strides, x.array.dtype) for x in (*call.operands, call.result))
        groups = _group_as_few_rows(*forms)
        if groups is None:
            return None
        vectors, matrix = call.operands if groups.right_is_matrix else reversed(call.operands)
        return FewRowsLayout(matrix, vectors, groups.batch, groups.row_names, groups.lines, groups.summed, groups.rows)

    @property
    def has_few_rows(self) -> bool:
        return self.rows <= MAX_PRODUCT_ROWS


class _Groups(NamedTuple):
    """The indices of a `FewRowsLayout`, and which operand is its matrix."""

    right_is_matrix: bool
    batch: Names
    row_names: Names
    lines: Names
    summed: Names
    rows: int


_Form = tuple[Names, tuple[int, ...], tuple[int, ...], DType]
"""The names, the shape, the strides and the type of an operand."""


@lru_cache(maxsize=MAX_FORMS)
def _group_as_few_rows(*forms: _Form) -> _Groups | None:
    """The groups of two operands and a result. Layers of a model have the same."""
    vectors, matrix, result = (
        NamedArray(names, restride(np.empty(1, dtype), shape, strides)) for names, shape, strides, dtype in forms
    )  # what is in the arrays is not looked at
    extents = {name: extent for names, shape, _, _ in forms for name, extent in zip(names, shape, strict=True)}
    batch, rows, columns, summed = group_indices(vectors.names, matrix.names, result.names)
    if len(batch) + len(rows) + len(columns) + len(summed) != len(extents) or not summed:
        return None  # an index of one operand alone is summed
    few, many = (math.prod(extents[name] for name in group) for group in (rows, columns))
    has_many = min(few, many) > MAX_PRODUCT_ROWS
    is_swapped = few > many
    if has_many:  # lines are those that are neighbours in the result, which is written where it belongs
        steps = dict(zip(result.names, result.array.strides, strict=True))
        is_swapped = min(result.names, key=lambda name: (extents[name] == 1, steps[name])) in rows
    if is_swapped:
        vectors, matrix, rows, columns, few, many = matrix, vectors, columns, rows, many, few
    depth = math.prod(extents[name] for name in summed)
    if depth < MIN_DEPTH or 0 in extents.values():
        return None
    loose, lines = split_off_batches(columns, (matrix, result), MIN_LINES)
    summed = tuple(name for name in matrix.names if name in summed)
    batch = tuple(name for name in result.names if name in {*batch, *loose})
    if math.prod(extents[name] for name in lines) < (MIN_MANY_LINES if has_many else MIN_LINES):
        return None
    if has_many and not _is_written_along(result, rows, lines):
        return None
    if math.prod(extents[name] for name in batch) > MAX_STACKED_MATRICES:
        return None
    if not (are_mergeable(matrix, lines) and are_mergeable(matrix, summed) and are_mergeable(result, lines)):
        return None
    if view_as_matrices(matrix, batch, lines, summed).strides[-1] != matrix.array.itemsize:
        return None
    return _Groups(not is_swapped, batch, rows, lines, summed, few)


def _is_written_along(result: NamedArray, rows: Names, lines: Names) -> bool:
    """Whether a row of the result is one dimension, dense along all lines, and rows are one dimension, too."""
    return are_mergeable(result, rows) and are_mergeable(result, lines) and is_dense(result, rows, lines)


@dataclass(frozen=True, slots=True)
class OperandCopies:
    """Copies of the vectors and of the result in scratch memory, where these do not lie as a product takes them; None
    where they do."""

    layout: FewRowsLayout
    result: NamedArray
    move: PrepareCopy
    copied_vectors: ScratchArray | None
    copied_result: ScratchArray | None

    @staticmethod
    def take(
        scratch: ScratchAllocator, call: ContractCall, layout: FewRowsLayout, move: PrepareCopy, vectors: DType | None
    ) -> OperandCopies:
        """With vectors copied to this type, if any."""
        result, copied, rewritten = call.result, None, None
        if vectors is not None:
            names = order_names(layout.vectors, layout.batch, layout.row_names, layout.summed)
            copied = scratch.take([call.extents[name] for name in names], vectors)
        if not are_mergeable(result, layout.row_names) or not is_dense(result, layout.row_names, layout.lines):
            names = order_names(result, layout.batch, layout.row_names, layout.lines)
            rewritten = scratch.take([call.extents[name] for name in names], WIDE)
        return OperandCopies(layout, result, move, copied, rewritten)

    def bind(self, memory: Array, prepare: Callable[[NamedArray, NamedArray], list[Run]]) -> Run:
        """What computes the product, and copies before and after it; `prepare` makes the calls, given the vectors and
        the result."""
        layout, vectors, result, calls = self.layout, self.layout.vectors, self.result, list[Resolved]()
        if self.copied_vectors is not None:
            names = order_names(vectors, layout.batch, layout.row_names, layout.summed)
            copy = NamedArray(names, self.copied_vectors.of(memory))
            calls.append(self.move(vectors.align(names), copy.array))
            vectors = copy
        if self.copied_result is not None:
            names = order_names(result, layout.batch, layout.row_names, layout.lines)
            result = NamedArray(names, self.copied_result.of(memory))
        calls += [(run, []) for run in prepare(vectors, result)]
        if self.copied_result is not None:
            calls.append(self.move(result.align(self.result.names), self.result.array))
        return make_runner(calls)


def list_addresses(views: Sequence[Array], stack: tuple[int, ...]) -> Array:
    """The addresses of the matrices in each view, for every batch of the stack: a row for each batch. A view with one
    matrix for all batches has extents of 1 there."""
    if not stack:
        return np.array([[address(view) for view in views]], np.int64)
    steps = [np.broadcast_to(view, (*stack, *view.shape[-2:])).strides[: len(stack)] for view in views]
    return np.array(
        [
            [
                address(view) + sum(n * step for n, step in zip(position, view_steps, strict=True))
                for view, view_steps in zip(views, steps, strict=True)
            ]
            for position in np.ndindex(*stack)
        ],
        np.int64,
    )


def order_names(operand: NamedArray, *groups: Names) -> Names:
    """The operand's indices in the order of these groups."""
    return tuple(name for group in groups for name in group if name in operand.names)


def is_dense(operand: NamedArray, first: Names, second: Names) -> bool:
    """Whether neighbours along the second group, each of whose groups is one dimension, are neighbours in memory."""
    batch = tuple(name for name in operand.names if name not in {*first, *second})
    return bool(view_as_matrices(operand, batch, first, second).strides[-1] == operand.array.itemsize)
