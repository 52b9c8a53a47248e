"""Aggregations of tuples in numpy: `logsumexp`, `argmax` and `topk`, copy after copy in the order of the plan.

A copy may be empty: of weight -inf in `logsumexp`, and as `runtime.kernels.ranking` says in the others. Everything is
read before anything that shares its memory is written, so that the first copy may be the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from runtime.dtypes import Array, compute, storage
from runtime.errors import PlanFault
from runtime.kernels.base import Kernel, Run, ScratchPlan
from runtime.kernels.merge_signature import Copies, average_types, ranked_types, spread
from runtime.kernels.pieces import Resolved, Walk, merged, runner
from runtime.kernels.ranking import keys


def merge_logsumexp(copies: Copies, target: Sequence[Array], dims: Sequence[Sequence[int]]) -> Kernel:
    """Averages, each with the logarithm of its weight: their weighted average, and the logarithm of all weights.

    Computed in f32 (f64 for averages in f64, whose logarithms may be either). Where no copy has any weight, the average
    is 0 and the weight -inf.
    """
    kind = average_types(copies, target)
    rank = target[0].ndim
    weights = [spread(copy[1], dims[1], rank) for copy in (*copies, target)]
    views, _ = merged([copy[0] for copy in (*copies, target)] + weights, [False] * rank)
    averages, logs = views[: len(views) // 2], views[len(views) // 2 :]
    dtype, scratch = storage(compute(kind[0])), ScratchPlan()
    shares = scratch.take((len(copies), *logs[0].shape), dtype)
    total = scratch.take(logs[0].shape, dtype)
    walk = Walk.over([averages[-1]])
    sums, term = scratch.take((walk.size,), dtype), scratch.take((walk.size,), dtype)

    def bind(memory: Array) -> Run:
        share = shares.of(memory)
        calls: list[Resolved] = [(_weigh, [logs[:-1], share, total.of(memory), logs[-1]])]
        for piece in walk:
            parts = [piece.of(view) for view in averages]
            shape = parts[-1].shape
            room = [slot.of(memory)[: parts[-1].size].reshape(shape) for slot in (sums, term)]
            calls.append((_average, [parts[:-1], [piece.of(row) for row in share], *room, parts[-1]]))
        return runner(calls)

    return Kernel(bind, scratch.size, 2.0 * len(copies) * target[0].size)


def _weigh(logs: Sequence[Array], shares: Array, total: Array, target: Array) -> None:
    """The share of every copy, and the logarithm of the sum of all weights."""
    for row, log in zip(shares, logs, strict=True):
        np.copyto(row, log, casting="unsafe")
    np.max(shares, axis=0, out=total)
    total[total == -np.inf] = 0  # no copy has any weight: -inf minus 0 is fine, minus -inf is not
    np.subtract(shares, total, out=shares)
    np.exp(shares, out=shares)
    whole = shares.sum(axis=0)
    np.add(total, np.log(whole), out=total)
    np.divide(shares, np.where(whole == 0, 1, whole), out=shares)
    np.copyto(target, total, casting="unsafe")


def _average(parts: Sequence[Array], shares: Sequence[Array], sums: Array, term: Array, target: Array) -> None:
    for number, (part, share) in enumerate(zip(parts, shares, strict=True)):
        np.copyto(term, part, casting="unsafe")
        np.multiply(term, share, out=term if number else sums)
        if number:
            np.add(sums, term, out=sums)
    np.copyto(target, sums, casting="unsafe")


def merge_argmax(copies: Copies, target: Sequence[Array], dims: Sequence[Sequence[int]]) -> Kernel:
    """Indices and values: the larger value wins with its index, of equal values the smaller index."""
    ranked_types(copies, target, index=0)
    values = [spread(copy[1], dims[1], target[0].ndim) for copy in (*copies, target)]
    pairs = [(copy[0], value) for copy, value in zip((*copies, target), values, strict=True)]

    def run() -> None:
        (index, value), *others = ((i.copy(), v.copy()) for i, v in pairs[:-1])
        best = keys(value)
        for i, v in others:
            key = keys(v)
            wins = (key < best) | ((key == best) & (i < index))
            for kept, new in ((index, i), (value, v), (best, key)):
                np.copyto(kept, new, where=wins)
        np.copyto(pairs[-1][0], index)
        np.copyto(pairs[-1][1], value)

    return Kernel(lambda _: run, nanoseconds=10.0 * len(copies) * target[0].size)


def merge_topk(copies: Copies, target: Sequence[Array], dims: Sequence[Sequence[int]]) -> Kernel:
    """Values and indices along the last dimension: the largest of all, in descending order, ties by index."""
    ranked_types(copies, target, index=1)
    if not target[0].ndim:
        raise PlanFault("topk merges lists along a last dimension")
    count = target[0].shape[-1]

    def run() -> None:
        values = np.concatenate([copy[0] for copy in copies], axis=-1)
        indices = np.concatenate([copy[1] for copy in copies], axis=-1)
        order = np.lexsort((indices, keys(values)), axis=-1)[..., :count]
        np.copyto(target[0], np.take_along_axis(values, order, -1))
        np.copyto(target[1], np.take_along_axis(indices, order, -1))

    size = len(copies) * math.prod(target[0].shape)
    return Kernel(lambda _: run, nanoseconds=60.0 * size)
