"""The GPU's kernels by name: what plans each of them. Modules are imported when a device program first needs them.

A plan is pure data: sources, tables, products of matrices, and the addresses that they work on. It is made without a
GPU, from shapes, strides and addresses alone, so that the same invocation is always planned alike.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache

from einc_runtime.dtypes import Array
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.map import build_aggregate
from einc_runtime.kernels.triton.moves import build_moves

__all__ = ["JOINT_AGGREGATIONS", "KERNELS", "build_aggregate", "build_joint_aggregation", "build_kernel", "build_moves"]

KERNELS: dict[str, tuple[str, str]] = {
    "attention": ("einc_runtime.kernels.triton.attention", "build_attention"),
    "contract": ("einc_runtime.kernels.triton.contract", "build_contract"),
    "map": ("einc_runtime.kernels.triton.map", "build_map"),
    "reduce": ("einc_runtime.kernels.triton.map", "build_reduce"),
    "softmax": ("einc_runtime.kernels.triton.rows", "build_softmax"),
    "regroup": ("einc_runtime.kernels.triton.moves", "build_reshape"),
    "rmsnorm": ("einc_runtime.kernels.triton.rows", "build_norm"),
    "layernorm": ("einc_runtime.kernels.triton.rows", "build_norm"),
    "rope": ("einc_runtime.kernels.triton.rope", "build_rope"),
    "embedding": ("einc_runtime.kernels.triton.moves", "build_embedding"),
    "append": ("einc_runtime.kernels.triton.moves", "build_append"),
    "concat": ("einc_runtime.kernels.triton.moves", "build_concat"),
    "argmax": ("einc_runtime.kernels.triton.ranking", "build_argmax"),
    "topk": ("einc_runtime.kernels.triton.ranking", "build_topk"),
    "meanpool": ("einc_runtime.kernels.triton.rows", "build_meanpool"),
}
"""Kernel name -> module and planner."""

JOINT_AGGREGATIONS: dict[str, tuple[str, str]] = {
    "logsumexp": ("einc_runtime.kernels.triton.joint_aggregation", "build_logsumexp"),
    "argmax": ("einc_runtime.kernels.triton.joint_aggregation", "build_argmax"),
    "topk": ("einc_runtime.kernels.triton.joint_aggregation", "build_topk"),
}
"""Aggregation of tuples -> module and planner."""


SIZED = frozenset({"attention"})
"""Kernels whose planners are told the architecture: how much shared memory there is decides how large tiles are."""


def build_kernel(invocation: Invocation[Array], architecture: str = "sm_90") -> LaunchSequence:
    """Operands are layouts (`plan.layout`).

    Raises PlanFault for a kernel that there is not, or that does not take these operands.
    """
    name = invocation.name
    if name not in KERNELS:
        raise PlanFault(f"unknown kernel '{name[:40]}'", hint=f"this runtime has {', '.join(KERNELS)}")
    planner: Callable[..., LaunchSequence] = _import_builder(*KERNELS[name])
    return planner(invocation, architecture) if name in SIZED else planner(invocation)


def build_joint_aggregation(
    aggregation: str, reads: Sequence[Array], writes: Sequence[Array], dims: Sequence[Sequence[int]]
) -> LaunchSequence:
    """`reads` has as many arrays as `writes` for each copy, copy after copy; see `JointAggregationCall`."""
    if aggregation not in JOINT_AGGREGATIONS:
        raise PlanFault(
            f"tuples cannot be aggregated by '{aggregation[:40]}'", hint=f"there are {', '.join(JOINT_AGGREGATIONS)}"
        )
    planner: Callable[[JointAggregationCall], LaunchSequence] = _import_builder(*JOINT_AGGREGATIONS[aggregation])
    return planner(JointAggregationCall.of(reads, writes, dims))


@cache
def _import_builder(module: str, function: str):  # type: ignore[no-untyped-def]
    return getattr(importlib.import_module(module), function)
