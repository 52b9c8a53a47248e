"""The kernel `meanpool` {seq_lens} in numpy: the mean of every packed sequence's tokens that a mask lets through."""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchPlan
from einc_runtime.kernels.calls.pool import Pooling
from einc_runtime.kernels.numpy.pieces import Resolved, runner


def build_meanpool(invocation: Invocation[Array]) -> Kernel:
    """Sums are made in f64. Values that the mask stops are not looked at; without any other, the mean is zero."""
    call = Pooling.parse(invocation)
    source, mask = call.source, call.mask
    scratch = ScratchPlan()
    line = scratch.take((source.shape[1],), np.dtype(np.float64))

    def bind(memory: Array) -> Run:
        sums = line.of(memory)
        spans = [slice(start, stop) for start, stop in call.spans.tolist()]
        calls: list[Resolved] = [
            (_mean, [source[span], mask[span], sums, row]) for span, row in zip(spans, call.target, strict=True)
        ]
        return runner(calls)

    return Kernel(bind, scratch.size, 2.0 * source.size)


def _mean(values: Array, mask: Array, sums: Array, target: Array) -> None:
    np.add.reduce(values, axis=0, dtype=sums.dtype, out=sums, where=mask[:, None])
    np.divide(sums, max(1, int(mask.sum())), out=target, casting="unsafe")
