"""The kernels `map` and `reduce` in numpy: a scalar program over joined indices, and an aggregation of its values.

`map` {program, indices} writes one element for each index vector of the result. `reduce` {program, indices,
aggregation} aggregates over the indices that the result lacks (paper, Section 3.1: a join, then an aggregation).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, view_as_integers
from einc_runtime.kernels.calls.map import MapCall, ReduceCall
from einc_runtime.kernels.numpy.pieces import PIECE_ELEMENTS, Walk, make_runner, make_walk_runner
from einc_runtime.kernels.numpy.scalar import prepare_program
from einc_runtime.kernels.views import merge_axes
from einc_runtime.plan.index_programs import COPY_PROGRAM

REDUCING_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def build_map(invocation: Invocation[Array]) -> Kernel:
    return make_map(MapCall.parse(invocation))


def make_map(call: MapCall) -> Kernel:
    """Where the result lies at an operand, all is computed before it is written: a program may read that again."""
    output = call.output
    if call.source == COPY_PROGRAM and call.kinds[0] == call.kinds[1]:
        copied = [view_as_integers(output), view_as_integers(call.views[0])]
        return Kernel(lambda _: make_runner([(np.copyto, copied)]), nanoseconds=0.3 * output.size)
    views, _ = merge_axes([*call.views, output], [False] * output.ndim)
    program = prepare_program(call.steps, call.kinds[:-1])
    is_overlapping = any(np.may_share_memory(view, output) for view in call.views)
    walk = Walk.over(views[-1:], max(1, output.size) if is_overlapping else PIECE_ELEMENTS)

    def compute(*part: Array) -> None:
        program.write(part[:-1], part[-1])

    run = make_walk_runner(walk, views, compute)
    return Kernel(lambda _: run, nanoseconds=0.3 * output.size * max(1, len(program.calls)))


def build_reduce(invocation: Invocation[Array]) -> Kernel:
    """Walks the join in the layout of its largest input. Each piece is aggregated in the compute type; the results are
    combined in a wider type (sums and products of f32 in f64, integers in i64) and rounded once at the end."""
    call = ReduceCall.parse(invocation)
    (*sources, target), kinds = merge_axes([*call.views, call.output], call.reduced)
    program = prepare_program(call.steps, call.kinds[:-1])
    walk = Walk.over([*sources, target])
    scratch = ScratchAllocator()
    wide = choose_accumulator(call.kinds[-1], call.aggregation)
    sums = scratch.take(target.shape, wide)
    axes = tuple(axis for axis, kind in enumerate(kinds) if kind)
    ufunc = REDUCING_UFUNCS[call.aggregation]

    def compute(*part: Array) -> None:
        value = np.broadcast_to(program.compute(part[:-1])[0], np.broadcast_shapes(*(view.shape for view in part)))
        _accumulate(ufunc, value, axes, part[-1])

    def bind(memory: Array) -> Run:
        accumulator = sums.of(memory)
        aggregate = make_walk_runner(walk, [*sources, accumulator], compute)

        def run() -> None:
            accumulator.fill(find_identity(call.aggregation, wide))
            aggregate()
            np.copyto(target, accumulator, casting="unsafe")

        return run

    return Kernel(bind, scratch.size, 0.3 * math.prod(walk.extents) * (1 + len(program.calls)))


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
