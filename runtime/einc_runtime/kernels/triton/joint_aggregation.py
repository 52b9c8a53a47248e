"""Aggregations of tuples in Triton: `logsumexp` and `topk`, copy after copy in the order of the plan.

A copy may be empty: in `logsumexp` its weight is -inf, in `topk` it holds what `calls/ranking.py` says. The first
copy may be the target: what several programs read is written by a later launch than the one that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.kernels.base import dtype_name
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.triton.launches import LaunchSequence, WorkspaceAllocator
from einc_runtime.kernels.triton.moves import build_moves
from einc_runtime.kernels.triton.ranking import launch_ranking
from einc_runtime.kernels.triton.source import LANGUAGE
from einc_runtime.kernels.triton.tiles import ElementwiseTiles


def build_logsumexp(call: JointAggregationCall, rounded: Array | None = None) -> LaunchSequence:
    """Averages, each with the logarithm of its weight, become their weighted average and the logarithm of all weights.

    Where no copy has any weight, the average is 0 and the logarithm -inf. Averages are written before logarithms. With
    `rounded`, a view of another floating type, averages are written there instead.
    """
    wide_type, count = LANGUAGE[compute_type(dtype_name(call.target[0]))], len(call.copies)
    *parts, result = call.member(0)
    logs = call.member(1)
    names = [*(f"x{k}" for k in range(count)), *(f"log{k}" for k in range(count)), "y"]

    def weigh(tile: ElementwiseTiles) -> list[str]:
        lines = [f"w{k} = {tile.load(f'log{k}')}.to({wide_type})" for k in range(count)]
        lines.append(f"most = {_nest_calls('tl.maximum', [f'w{k}' for k in range(count)])}")
        lines.append('most = tl.where(most == float("-inf"), 0.0, most)')
        lines += [f"w{k} = tl.exp(w{k} - most)" for k in range(count)]
        lines.append(f"total = {' + '.join(f'w{k}' for k in range(count))}")
        return lines

    averages = ElementwiseTiles([*parts, *logs[:-1], result if rounded is None else rounded], names)
    lines = [
        *weigh(averages),
        "whole = tl.where(total == 0, 1.0, total)",
        *(f"v{k} = {averages.load(f'x{k}')} * (w{k} / whole)" for k in range(count)),
        f"result = {' + '.join(f'v{k}' for k in range(count))}",
        averages.store("y", "(result)"),
    ]
    first = averages.call("logsumexp", f"{count} weighted averages", lines)
    sums = ElementwiseTiles(logs, names[count:])
    lines = [*weigh(sums), sums.store("y", "(most + tl.log(total))")]
    return LaunchSequence((first, sums.call("logsumexp_weights", f"the logarithms of {count} weights", lines)))


def build_topk(call: JointAggregationCall) -> LaunchSequence:
    """Values and indices along the last dimension: the largest of all, in descending order, ties by index."""
    scratch = WorkspaceAllocator()
    values, indices = (scratch.take(member.shape, member.dtype) for member in call.target)
    sources, numbers = ([copy[member] for copy in call.copies] for member in range(2))
    ranking_launch = launch_ranking("merge_topk", sources, numbers, values, indices)
    return LaunchSequence((ranking_launch, *build_moves([values, indices], call.target).steps), scratch.size)


def _nest_calls(function: str, values: Sequence[str]) -> str:
    nested = values[0]
    for value in values[1:]:
        nested = f"{function}({nested}, {value})"
    return nested
