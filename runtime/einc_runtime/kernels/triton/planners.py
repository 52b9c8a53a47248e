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
from einc_runtime.kernels.calls.merges import Merge
from einc_runtime.kernels.triton.map import plan_aggregate
from einc_runtime.kernels.triton.moves import plan_moves
from einc_runtime.kernels.triton.plan import Plan

__all__ = ["KERNELS", "MERGES", "plan_aggregate", "plan_kernel", "plan_merge", "plan_moves"]

KERNELS: dict[str, tuple[str, str]] = {
    "attention": ("einc_runtime.kernels.triton.attention", "plan_attention"),
    "contract": ("einc_runtime.kernels.triton.contract", "plan_contract"),
    "map": ("einc_runtime.kernels.triton.map", "plan_map"),
    "reduce": ("einc_runtime.kernels.triton.reduce", "plan_reduce"),
    "softmax": ("einc_runtime.kernels.triton.rows", "plan_softmax"),
    "regroup": ("einc_runtime.kernels.triton.moves", "plan_regroup"),
    "rmsnorm": ("einc_runtime.kernels.triton.rows", "plan_norm"),
    "layernorm": ("einc_runtime.kernels.triton.rows", "plan_norm"),
    "rope": ("einc_runtime.kernels.triton.rope", "plan_rope"),
    "embedding": ("einc_runtime.kernels.triton.gather", "plan_embedding"),
    "append": ("einc_runtime.kernels.triton.gather", "plan_append"),
    "concat": ("einc_runtime.kernels.triton.moves", "plan_concat"),
    "argmax": ("einc_runtime.kernels.triton.select", "plan_argmax"),
    "topk": ("einc_runtime.kernels.triton.select", "plan_topk"),
    "meanpool": ("einc_runtime.kernels.triton.pool", "plan_meanpool"),
}
"""Kernel name -> module and planner."""

MERGES: dict[str, tuple[str, str]] = {
    "logsumexp": ("einc_runtime.kernels.triton.merges", "plan_merge_logsumexp"),
    "argmax": ("einc_runtime.kernels.triton.merges", "plan_merge_argmax"),
    "topk": ("einc_runtime.kernels.triton.merges", "plan_merge_topk"),
}
"""Aggregation of tuples -> module and planner."""


SIZED = frozenset({"attention"})
"""Kernels whose planners are told the architecture: how much shared memory there is decides how large tiles are."""


def plan_kernel(invocation: Invocation[Array], architecture: str = "sm_90") -> Plan:
    """Operands are layouts (`plan.layout`).

    Raises PlanFault for a kernel that there is not, or that does not take these operands.
    """
    name = invocation.name
    if name not in KERNELS:
        raise PlanFault(f"unknown kernel '{name[:40]}'", hint=f"this runtime has {', '.join(KERNELS)}")
    planner: Callable[..., Plan] = _found(*KERNELS[name])
    return planner(invocation, architecture) if name in SIZED else planner(invocation)


def plan_merge(
    aggregation: str, reads: Sequence[Array], writes: Sequence[Array], dims: Sequence[Sequence[int]]
) -> Plan:
    """`reads` has as many arrays as `writes` for each copy, copy after copy; see `Merge`."""
    if aggregation not in MERGES:
        raise PlanFault(f"tuples cannot be aggregated by '{aggregation[:40]}'", hint=f"there are {', '.join(MERGES)}")
    planner: Callable[[Merge], Plan] = _found(*MERGES[aggregation])
    return planner(Merge.of(reads, writes, dims))


@cache
def _found(module: str, function: str):  # type: ignore[no-untyped-def]
    return getattr(importlib.import_module(module), function)
