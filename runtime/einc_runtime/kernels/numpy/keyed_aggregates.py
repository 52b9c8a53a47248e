"""Running aggregates and scatters in numpy: one value after the other, in the accumulator of reductions."""

from __future__ import annotations

import numpy as np

from einc_runtime.kernels.base import Kernel, dtype_name
from einc_runtime.kernels.calls.keyed_aggregates import RunningCall, ScatterCall
from einc_runtime.kernels.numpy.map import REDUCING_UFUNCS, choose_accumulator
from einc_runtime.plan.index_patterns import find_identity


def make_running(call: RunningCall) -> Kernel:
    kind = dtype_name(call.target)
    wide, identity = choose_accumulator(kind, call.aggregation), find_identity(call.aggregation, kind)
    ufunc, target = REDUCING_UFUNCS[call.aggregation], np.moveaxis(call.target, call.axis, 0)
    empty, lead, steps = call.empty, call.lead, call.steps

    def run() -> None:
        sums = np.moveaxis(ufunc.accumulate(call.source.astype(wide), axis=call.axis), call.axis, 0)
        target[:empty] = identity
        np.copyto(target[empty : empty + steps], sums[lead : lead + steps], casting="unsafe")
        if empty + steps < len(target):
            np.copyto(target[empty + steps :], sums[-1:], casting="unsafe")

    return Kernel(lambda _: run, nanoseconds=4.0 * call.source.size)


def make_scatter(call: ScatterCall) -> Kernel:
    kind = dtype_name(call.target)
    wide, identity = choose_accumulator(kind, call.aggregation), find_identity(call.aggregation, kind)
    source, target = (np.moveaxis(array, call.axis, 0) for array in (call.source, call.target))

    def run() -> None:
        sums = np.full(target.shape, identity, wide)
        rows = call.keys.astype(np.int64) - call.first
        chosen = np.flatnonzero((rows >= 0) & (rows < len(sums)))
        REDUCING_UFUNCS[call.aggregation].at(sums, rows[chosen], source[chosen].astype(wide))
        np.copyto(target, sums, casting="unsafe")

    return Kernel(lambda _: run, nanoseconds=20.0 * source.size + 2.0 * target.size)
