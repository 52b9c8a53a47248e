"""Aggregations of tuples in numpy: `logsumexp` and `topk`, copy after copy in the order of the plan.

A copy may be empty: in `logsumexp` its weight is -inf, in `topk` it holds what `calls/ranking.py` says. Everything
is read before anything that shares its memory is written, so the first copy may be the target.
"""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import compute_type, storage_dtype
from einc_runtime.kernels.base import Kernel, dtype_name
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.calls.ranking import rank_keys


def build_logsumexp(call: JointAggregationCall) -> Kernel:
    """Averages, each with the logarithm of its weight, become their weighted average and the logarithm of all weights.

    It computes in f32, and in f64 for averages in f64, whose logarithms may be either. Where no copy has any weight,
    the average is 0 and the logarithm -inf.
    """
    (*parts, result), (*logs, total) = call.member(0), call.member(1)
    dtype = storage_dtype(compute_type(dtype_name(result)))

    def run() -> None:
        with np.errstate(all="ignore"):
            weights = np.stack([log.astype(dtype) for log in logs])
            largest = weights.max(axis=0)
            largest = np.where(largest == -np.inf, dtype.type(0), largest)  # -inf minus -inf would be NaN
            shares = np.exp(weights - largest)
            sums = shares.sum(axis=0)
            shares /= np.where(sums == 0, dtype.type(1), sums)
            average = parts[0].astype(dtype) * shares[0]
            for part, share in zip(parts[1:], shares[1:], strict=True):
                average += part.astype(dtype) * share
            np.copyto(total, largest + np.log(sums), casting="unsafe")
            np.copyto(result, average, casting="unsafe")

    return Kernel(lambda _: run, nanoseconds=2.0 * len(parts) * result.size)


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
