"""Running aggregates and scatters in numpy: one value after the other, in the accumulator of reductions."""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, dtype_name
from einc_runtime.kernels.calls.keyed_aggregates import RunningCall, ScatterCall
from einc_runtime.kernels.numpy.map import REDUCING_UFUNCS, choose_accumulator
from einc_runtime.plan.index_patterns import find_identity


def make_running(call: RunningCall) -> Kernel:
    kind = dtype_name(call.target)
    wide = choose_accumulator(kind, call.aggregation)
    scratch = ScratchAllocator()
    slot = scratch.take(call.source.shape, wide)
    ufunc, identity = REDUCING_UFUNCS[call.aggregation], find_identity(call.aggregation, kind)
    source, target = (np.moveaxis(array, call.axis, 0) for array in (call.source, call.target))
    empty, lead, steps = call.empty, call.lead, call.steps

    def bind(memory: Array) -> Run:
        values = slot.of(memory)
        sums = np.moveaxis(values, call.axis, 0)

        def run() -> None:
            np.copyto(sums, source, casting="unsafe")
            ufunc.accumulate(values, axis=call.axis, out=values)
            target[:empty] = identity
            np.copyto(target[empty : empty + steps], sums[lead : lead + steps], casting="unsafe")
            if empty + steps < len(target):
                np.copyto(target[empty + steps :], sums[-1:], casting="unsafe")

        return run

    return Kernel(bind, scratch.size, 4.0 * call.source.size)


def make_scatter(call: ScatterCall) -> Kernel:
    kind = dtype_name(call.target)
    wide = choose_accumulator(kind, call.aggregation)
    scratch = ScratchAllocator()
    source, target = (np.moveaxis(array, call.axis, 0) for array in (call.source, call.target))
    places = scratch.take(target.shape, wide), scratch.take(source.shape, wide)
    ufunc, identity = REDUCING_UFUNCS[call.aggregation], find_identity(call.aggregation, kind)

    def bind(memory: Array) -> Run:
        sums, values = (slot.of(memory) for slot in places)

        def run() -> None:
            sums.fill(identity)
            np.copyto(values, source, casting="unsafe")
            rows = call.keys.astype(np.int64) - call.first
            chosen = np.flatnonzero((rows >= 0) & (rows < len(sums)))
            ufunc.at(sums, rows[chosen], values[chosen])
            np.copyto(target, sums, casting="unsafe")

        return run

    return Kernel(bind, scratch.size, 20.0 * source.size + 2.0 * target.size)
