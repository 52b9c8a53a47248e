"""The kernel `topk` {axis} in numpy: indices in the whole tensor, ranked as in `calls/ranking.py`.

It writes as many values and indices as its outputs have along the last axis; where the block has fewer, the rest is
filled in.
"""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls import ranking
from einc_runtime.kernels.calls.ranking import NO_INDEX, lowest_value, rank_keys

SHORT_ROW = 256
"""Up to so many values, sorting all rows at once takes less time than finding the largest of each in turn."""


def build_topk(invocation: Invocation[Array]) -> Kernel:
    call = ranking.parse_topk(invocation)
    source, first, values, indices = call.source, call.first, call.values, call.indices
    count = min(values.shape[-1], source.shape[-1])

    def run() -> None:
        values[..., count:] = lowest_value(values.dtype)
        indices[..., count:] = NO_INDEX
        if source.shape[-1] <= SHORT_ROW:
            chosen = np.argsort(rank_keys(source), axis=-1, kind="stable")[..., :count]  # leaves ties by index
            values[..., :count] = np.take_along_axis(source, chosen, -1)
            indices[..., :count] = chosen + first
            return
        for row in np.ndindex(source.shape[:-1]):
            ranked = rank_keys(source[row])
            last = np.partition(ranked, count - 1)[count - 1]
            chosen = np.flatnonzero(ranked <= last)  # ascending, so that a stable sort leaves ties by index
            chosen = chosen[np.argsort(ranked[chosen], kind="stable")[:count]]
            values[row][:count] = source[row][chosen]
            indices[row][:count] = chosen + first

    return Kernel(lambda _: run, nanoseconds=12.0 * source.size)
