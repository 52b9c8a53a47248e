"""Aggregations of tuples in numpy: `logsumexp` and `topk`, copy after copy in the order of the plan.

A copy may be empty: in `logsumexp` its weight is -inf, in `topk` it holds what `calls/ranking.py` says. Everything
is read before anything that shares its memory is written, so the first copy may be the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, dtype_name
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.calls.ranking import rank_keys
from einc_runtime.kernels.numpy.pieces import Resolved, Walk, make_runner
from einc_runtime.kernels.views import merge_axes


def build_logsumexp(call: JointAggregationCall) -> Kernel:
    """Averages, each with the logarithm of its weight, become their weighted average and the logarithm of all weights.

    It computes in f32, and in f64 for averages in f64, whose logarithms may be either. Where no copy has any weight,
    the average is 0 and the logarithm -inf.
    """
    kind, copies = dtype_name(call.target[0]), len(call.copies)
    views, _ = merge_axes([*call.member(0), *call.member(1)], [False] * call.target[0].ndim)
    averages, logs = views[: copies + 1], views[copies + 1 :]
    dtype, scratch = storage_dtype(compute_type(kind)), ScratchAllocator()
    shares = scratch.take((copies, *logs[0].shape), dtype)
    total = scratch.take(logs[0].shape, dtype)
    walk = Walk.over([averages[-1]])
    sums, term = scratch.take((walk.size,), dtype), scratch.take((walk.size,), dtype)

    def bind(memory: Array) -> Run:
        share = shares.of(memory)
        calls: list[Resolved] = [(_weigh, [logs[:-1], share, total.of(memory), logs[-1]])]
        for piece in walk:
            parts = [piece.of(view) for view in averages]
            shape = parts[-1].shape
            buffers = [slot.of(memory)[: parts[-1].size].reshape(shape) for slot in (sums, term)]
            calls.append((_average, [parts[:-1], [piece.of(row) for row in share], *buffers, parts[-1]]))
        return make_runner(calls)

    return Kernel(bind, scratch.size, 2.0 * copies * call.target[0].size)


def _weigh(logs: Sequence[Array], shares: Array, total: Array, target: Array) -> None:
    """Writes the share of every copy, and the logarithm of the sum of all weights."""
    for row, log in zip(shares, logs, strict=True):
        np.copyto(row, log, casting="unsafe")
    np.max(shares, axis=0, out=total)
    total[total == -np.inf] = 0  # no copy has any weight; -inf minus -inf would be NaN
    np.subtract(shares, total, out=shares)
    np.exp(shares, out=shares)
    weights_sum = shares.sum(axis=0)
    np.add(total, np.log(weights_sum), out=total)
    np.divide(shares, np.where(weights_sum == 0, 1, weights_sum), out=shares)
    np.copyto(target, total, casting="unsafe")


def _average(parts: Sequence[Array], shares: Sequence[Array], sums: Array, term: Array, target: Array) -> None:
    for number, (part, share) in enumerate(zip(parts, shares, strict=True)):
        np.copyto(term, part, casting="unsafe")
        np.multiply(term, share, out=term if number else sums)
        if number:
            np.add(sums, term, out=sums)
    np.copyto(target, sums, casting="unsafe")


def build_topk(call: JointAggregationCall) -> Kernel:
    """Values and indices along the last dimension: the largest of all, in descending order, ties by index."""
    copies, target = call.copies, call.target
    count = target[0].shape[-1]

    def run() -> None:
        values = np.concatenate([copy[0] for copy in copies], axis=-1)
        indices = np.concatenate([copy[1] for copy in copies], axis=-1)
        order = np.lexsort((indices, rank_keys(values)), axis=-1)[..., :count]
        np.copyto(target[0], np.take_along_axis(values, order, -1))
        np.copyto(target[1], np.take_along_axis(indices, order, -1))

    return Kernel(lambda _: run, nanoseconds=60.0 * len(copies) * target[0].size)
