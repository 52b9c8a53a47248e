"""The kernels `argmax` {axis} and `topk` {axis} in numpy: indices in the whole tensor, ranked as in `calls/ranking.py`.

`argmax` writes indices and values without the axis. `topk` writes as many values and indices as its outputs have along
the last axis; where the block has fewer, the rest is filled in.
"""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls import ranking
from einc_runtime.kernels.calls.ranking import NO_INDEX, lowest_value, rank_keys


def build_argmax(invocation: Invocation[Array]) -> Kernel:
    call = ranking.parse_argmax(invocation)
    source, first, value, index = call.source, call.first, call.values, call.indices
    # 16-bit elements are widened row by row: numpy compares them slowly, and bf16 differently.
    half = source.dtype.itemsize == 2 and source.ndim > 1

    def run() -> None:
        for row in np.ndindex(source.shape[:-1]) if half else [()]:
            rows = source[row]
            at = np.argmin(rank_keys(rows), axis=-1) if rows.dtype.itemsize == 2 else np.argmax(rows, axis=-1)
            best = at[..., None]
            value[row] = np.take_along_axis(rows, best, -1)[..., 0]
            index[row] = at + first

    return Kernel(lambda _: run, nanoseconds=1.0 * source.size)


def build_topk(invocation: Invocation[Array]) -> Kernel:
    call = ranking.parse_topk(invocation)
    source, first, values, indices = call.source, call.first, call.values, call.indices
    count = min(values.shape[-1], source.shape[-1])

    def run() -> None:
        values[..., count:] = lowest_value(values.dtype)
        indices[..., count:] = NO_INDEX
        for row in np.ndindex(source.shape[:-1]):
            ranked = rank_keys(source[row])
            last = np.partition(ranked, count - 1)[count - 1]
            chosen = np.flatnonzero(ranked <= last)  # ascending, so that a stable sort leaves ties by index
            chosen = chosen[np.argsort(ranked[chosen], kind="stable")[:count]]
            values[row][:count] = source[row][chosen]
            indices[row][:count] = chosen + first

    return Kernel(lambda _: run, nanoseconds=12.0 * source.size)
