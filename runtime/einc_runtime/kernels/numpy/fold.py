"""Aggregations that a plan defines, in numpy: neighbours are combined, then neighbours of these, so that the order of
index vectors stays.

How values are grouped depends on the extents of what is aggregated alone: with operands that are copied to dense arrays
first, results have the same bits in every block. Temporary arrays have `PIECE_ELEMENTS` elements at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, store
from einc_runtime.kernels.calls.fold import CombineCall, FoldCall
from einc_runtime.kernels.numpy.pieces import PIECE_ELEMENTS
from einc_runtime.kernels.numpy.scalar import NumpyProgram, prepare_program

Ranges = tuple[tuple[int, int], ...]


def make_fold(call: FoldCall, *, dense: bool = False) -> Kernel:
    """The kernel; `dense` copies operands, so that how they lie in memory decides nothing."""
    fold = _Fold.of(call, dense=dense)
    ranges = tuple((0, extent) for extent in call.extents)

    def run() -> None:
        with np.errstate(all="ignore"):
            for result, output in zip(fold.aggregate(ranges), call.outputs, strict=True):
                store(result, output)

    steps = len(call.values) + len(call.combining)
    return Kernel(lambda _: run, nanoseconds=0.5 * math.prod(call.extents) * steps)


def make_combine(call: CombineCall) -> Kernel:
    """The kernel that combines copies in their order."""
    program = prepare_program(call.steps, call.kinds)

    def run() -> None:
        with np.errstate(all="ignore"):
            for result, output in zip(program.compute(call.copies, len(call.target)), call.target, strict=True):
                store(result, output)

    return Kernel(lambda _: run, nanoseconds=0.5 * call.target[0].size * len(call.steps))


@dataclass(frozen=True, slots=True)
class _Fold:
    """The values of index vectors, and what two tuples become."""

    call: FoldCall
    values: NumpyProgram
    combining: NumpyProgram
    dense: bool

    @staticmethod
    def of(call: FoldCall, *, dense: bool) -> _Fold:
        results = [step.result_type for step in call.combining[-call.definition.count :]]
        return _Fold(
            call, prepare_program(call.values, call.kinds), prepare_program(call.combining, results * 2), dense
        )

    def aggregate(self, ranges: Ranges) -> list[Array]:
        """The tuples of the kept index vectors within these ranges, each aggregated over the others."""
        kept, extents = self.call.kept, [upper - lower for lower, upper in ranges]
        long = [axis for axis in range(len(extents)) if extents[axis] > 1]
        if math.prod(extents) <= PIECE_ELEMENTS or not long:
            return self._compute(ranges)
        axis = next((axis for axis in long if axis < kept), long[0])
        lower, upper = ranges[axis]
        middle = (lower + upper) // 2
        halves = [
            self.aggregate((*ranges[:axis], part, *ranges[axis + 1 :])) for part in ((lower, middle), (middle, upper))
        ]
        if axis < kept:
            return [np.concatenate(pair, axis) for pair in zip(*halves, strict=True)]
        return self._combine(*halves)

    def _compute(self, ranges: Ranges) -> list[Array]:
        kept, shape = self.call.kept, tuple(upper - lower for lower, upper in ranges)
        parts = [
            view[tuple(slice(None) if n == 1 else slice(*span) for n, span in zip(view.shape, ranges, strict=True))]
            for view in self.call.views
        ]
        if self.dense:
            parts = [np.ascontiguousarray(np.broadcast_to(part, shape)) for part in parts]
        terms = math.prod(shape[kept:])
        computed = self.values.compute(parts, self.call.definition.count)
        values = [np.broadcast_to(value, shape).reshape(*shape[:kept], terms) for value in computed]
        while terms > 1:
            pairs, lone = divmod(terms, 2)
            left, right = ([value[..., side : 2 * pairs : 2] for value in values] for side in (0, 1))
            combined = self._combine(left, right)
            if lone:
                combined = [
                    np.concatenate([pair, value[..., -1:]], -1) for pair, value in zip(combined, values, strict=True)
                ]
            values, terms = combined, pairs + lone
        return [value[..., 0] for value in values]

    def _combine(self, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        arrays = [np.ascontiguousarray(array) for array in (*left, *right)]
        computed = self.combining.compute(arrays, self.call.definition.count)
        return [np.broadcast_to(value, arrays[0].shape) for value in computed]
