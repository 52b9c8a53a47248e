"""The kernels `map` and `reduce` in numpy: a scalar program over joined indices, and an aggregation of its values.

`map` {program, indices} writes one element for each index vector of the result. `reduce` {program, indices,
aggregation} aggregates over the indices that the result lacks (paper, Section 3.1: a join, then an aggregation).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, store, view_as_integers
from einc_runtime.kernels.calls.map import MapCall, ReduceCall
from einc_runtime.kernels.numpy.lowering import lower
from einc_runtime.kernels.numpy.pieces import (
    ArrayPiece,
    PieceEvaluator,
    Resolved,
    Walk,
    breadth_of,
    make_runner,
    make_walk_runner,
)
from einc_runtime.kernels.views import merge_axes
from einc_runtime.plan.index_programs import COPY_PROGRAM

REDUCING_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def build_map(invocation: Invocation[Array]) -> Kernel:
    return make_map(MapCall.parse(invocation))


def make_map(call: MapCall) -> Kernel:
    """Where the result lies at an operand, it is computed elsewhere and copied: a program may read an operand again."""
    if any(np.may_share_memory(view, call.output) for view in call.views):
        return _make_elsewhere(call)
    output = call.output
    if call.source == COPY_PROGRAM and call.kinds[0] == call.kinds[1]:
        copied = [view_as_integers(output), view_as_integers(call.views[0])]
        return Kernel(lambda _: make_runner([(np.copyto, copied)]), nanoseconds=0.3 * output.size)
    (*sources, target), _ = merge_axes([*call.views, output], [False] * output.ndim)
    code = lower(call.steps, call.kinds[:-1], [breadth_of(view) for view in sources], output.dtype)
    # One call in place needs no registers; numpy walks the whole array faster.
    walk = Walk.over([target], max(1, output.size)) if len(code.calls) == 1 else Walk.over([target])
    scratch = ScratchAllocator()
    evaluator = PieceEvaluator.allocate(code, walk, scratch)

    def bind(memory: Array) -> Run:
        resolve = evaluator.bind(memory, sources, target)
        return make_walk_runner(walk, lambda piece: resolve(piece)[0])

    return Kernel(bind, scratch.size, 0.3 * output.size * len(code.calls))


def _make_elsewhere(call: MapCall) -> Kernel:
    scratch = ScratchAllocator()
    slot = scratch.take(call.output.shape, call.output.dtype)
    measured = make_map(replace(call, output=np.empty_like(call.output)))
    inner = scratch.take((measured.scratch,), np.dtype(np.uint8))

    def bind(memory: Array) -> Run:
        result = slot.of(memory)
        run = make_map(replace(call, output=result)).bind(inner.of(memory))
        return make_runner([(run, []), (store, [result, call.output])])

    return Kernel(bind, scratch.size, measured.nanoseconds)


def build_reduce(invocation: Invocation[Array]) -> Kernel:
    """Walks the join in the layout of its largest input. Each piece is aggregated in the compute type; the results are
    combined in a wider type (sums and products of f32 in f64, integers in i64) and rounded once at the end."""
    call = ReduceCall.parse(invocation)
    (*sources, target), kinds = merge_axes([*call.views, call.output], call.reduced)
    code = lower(call.steps, call.kinds[:-1], [breadth_of(view) for view in sources], None)
    walk = Walk.over([*sources, target])
    scratch = ScratchAllocator()
    evaluator = PieceEvaluator.allocate(code, walk, scratch)
    wide = choose_accumulator(call.kinds[-1], call.aggregation)
    sums = scratch.take(target.shape, wide)
    axes = tuple(axis for axis, kind in enumerate(kinds) if kind)
    ufunc = REDUCING_UFUNCS[call.aggregation]

    def bind(memory: Array) -> Run:
        accumulator = sums.of(memory)
        resolve = evaluator.bind(memory, sources, None)

        def calls(piece: ArrayPiece) -> list[Resolved]:
            evaluation, value = resolve(piece)
            full = np.broadcast_to(value, walk.shape(piece.count, frozenset(range(len(walk.extents)))))
            return [*evaluation, (_accumulate, [ufunc, full, axes, piece.of(accumulator)])]

        aggregate = make_walk_runner(walk, calls)

        def run() -> None:
            accumulator.fill(find_identity(call.aggregation, wide))
            aggregate()
            np.copyto(target, accumulator, casting="unsafe")

        return run

    return Kernel(bind, scratch.size, 0.3 * math.prod(walk.extents) * (1 + len(code.calls)))


def _accumulate(ufunc: Any, values: Array, axes: tuple[int, ...], accumulator: Array) -> None:
    """Along the last axis numpy sums in pairs, which is exact enough in f32; along others it adds one by one."""
    dtype = values.dtype if axes and axes[-1] == values.ndim - 1 and values.dtype.kind == "f" else accumulator.dtype
    ufunc(accumulator, ufunc.reduce(values, axis=axes, dtype=dtype, keepdims=True) if axes else values, out=accumulator)


def choose_accumulator(stored: str, aggregation: str) -> DType:
    computed = compute_type(stored)
    if computed in ("i32", "i64"):
        return np.dtype(np.int64)
    return storage_dtype("f64" if aggregation in ("sum", "prod") else computed)


def find_identity(aggregation: str, dtype: DType) -> Any:
    if aggregation in ("sum", "prod"):
        return dtype.type(0 if aggregation == "sum" else 1)
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).min if aggregation == "max" else np.iinfo(dtype).max
    return dtype.type(-np.inf if aggregation == "max" else np.inf)
