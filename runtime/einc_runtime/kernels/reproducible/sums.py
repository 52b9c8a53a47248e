"""Sums in a fixed tree, which depends on the number of terms alone, and the kernel `reduce`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator
from einc_runtime.kernels.calls.map import ReduceCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.reduce import find_largest
from einc_runtime.kernels.numpy.map import REDUCING_UFUNCS, choose_accumulator, find_identity
from einc_runtime.kernels.numpy.pieces import ArrayPiece, Resolved, Walk, make_runner
from einc_runtime.kernels.reproducible.dense import make_map
from einc_runtime.plan.index_equations import IndexEquation, parse_index_equation

TREE_TERMS = 1 << 12
"""Terms of one tree. Chunks are added one after the other."""
TERMS_AT_ONCE = 1 << 15
"""Terms that are computed at a time, for as many results as there are chunks in it."""


def fold(ufunc: Any, values: Array) -> None:
    """Combines [rows, terms] into the first column: term i with term i + n - n // 2, until one is left."""
    count = values.shape[1]
    while count > 1:
        half = count // 2
        ufunc(values[:, :half], values[:, count - half : count], out=values[:, :half])
        count -= half


@dataclass(frozen=True, slots=True)
class _Terms:
    """Views that all have the dimensions [kept..., aggregated...], with extent 1 where one is broadcast."""

    views: tuple[Array, ...]
    target: Array
    kept: int
    extents: tuple[int, ...]

    @staticmethod
    def of(call: ReduceCall, equation: IndexEquation) -> _Terms:
        """The aggregated indices are in the order in which the equation names them. There is at least one dimension of
        either kind."""
        named = dict.fromkeys(name for names in equation.inputs for name in names)
        order = [*equation.output, *(name for name in named if name not in equation.output)]
        places = [call.indices.index(name) for name in order]
        *views, target = (view.transpose(places)[np.newaxis, ..., np.newaxis] for view in (*call.views, call.output))
        extents = tuple(max(column) for column in zip(*(view.shape for view in (*views, target)), strict=True))
        return _Terms(tuple(views), target, 1 + len(equation.output), extents)

    def walk(self) -> tuple[Walk, Walk]:
        """The pieces of the results, and those of the terms of each."""
        kept, gone = (
            np.broadcast_to(np.int8(0), part) for part in (self.extents[: self.kept], self.extents[self.kept :])
        )
        inner = Walk.over([gone], TREE_TERMS)
        return Walk.over([kept], max(1, TERMS_AT_ONCE // inner.size)), inner

    def cut(self, view: Array, rows: ArrayPiece, terms: ArrayPiece | None) -> Array:
        """The part of a view for some results, and for some of their terms."""
        key = [*_slice(rows, self.kept), *([] if terms is None else _slice(terms, view.ndim - self.kept))]
        key += [slice(None)] * (view.ndim - len(key))
        return view[tuple(slice(None) if n == 1 else part for n, part in zip(view.shape, key, strict=True))]


def _slice(piece: ArrayPiece, rank: int) -> list[slice]:
    *first, last = piece.start
    slices = [*(slice(position, position + 1) for position in first), slice(last, last + piece.count)]
    return slices + [slice(None)] * (rank - len(slices))


def _add(ufunc: Any, line: Array, table: Array) -> None:
    ufunc(line, table[:, 0], out=line)


def build_reduce(invocation: Invocation[Array]) -> Kernel:
    """Terms are computed as by a `map`, and combined in a wider type, as `numpy/map.py` says."""
    largest = find_largest(invocation) if compiler.is_available() else None
    if largest is not None:
        return largest
    call = ReduceCall.parse(invocation)
    terms = _Terms.of(call, parse_index_equation(invocation.attribute("indices", str)))
    outer, inner = terms.walk()
    wide, computed = choose_accumulator(call.kinds[-1], call.aggregation), compute_type(call.kinds[-1])
    kinds, ufunc = (*call.kinds[:-1], computed), REDUCING_UFUNCS[call.aggregation]
    scratch = ScratchAllocator()
    size = outer.size * inner.size
    slots = [
        scratch.take((size,), storage_dtype(computed)),
        scratch.take((size,), wide),
        scratch.take((outer.size,), wide),
    ]

    def lower(rows: ArrayPiece, arrays: Sequence[Array], memory: Array) -> tuple[list[Resolved], int]:
        """The calls for some results, and the scratch memory that they need."""
        values, wider, sums = arrays
        result, needed = terms.cut(terms.target, rows, None), 0
        line = sums[: result.size]
        calls: list[Resolved] = [(line.fill, [find_identity(call.aggregation, wide)])]
        for part in inner:
            views = [terms.cut(view, rows, part) for view in terms.views]
            shape = (*result.shape[: terms.kept], *inner.shape_of(part))
            term, wider_term = (array[: math.prod(shape)] for array in (values, wider))
            kernel = make_map(call.steps, kinds, views, term.reshape(shape))
            needed = max(needed, kernel.scratch)
            if memory.size >= kernel.scratch:
                calls.append((kernel.bind(memory), []))
            table = wider_term.reshape(line.size, -1)
            calls += [(np.copyto, [wider_term, term]), (fold, [ufunc, table]), (_add, [ufunc, line, table])]
        return [*calls, (np.copyto, [result, line.reshape(result.shape), "unsafe"])], needed

    nothing = np.empty(0, np.uint8)
    measured = [np.empty(slot.shape, slot.dtype) for slot in slots]
    needed = max(lower(rows, measured, nothing)[1] for rows in [next(iter(outer))])

    def bind(memory: Array) -> Run:
        arrays = [slot.of(memory) for slot in slots]
        return make_runner([step for rows in outer for step in lower(rows, arrays, memory[scratch.size :])[0]])

    return Kernel(bind, scratch.size + needed, 3.0 * math.prod(terms.extents))
