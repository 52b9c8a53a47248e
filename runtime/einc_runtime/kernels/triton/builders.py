"""The kernels of GPUs by name, and the functions that build their launch sequences.

A module is imported when a plan first needs it. Launch sequences are built without a GPU, from shapes,
strides and addresses alone, so the same invocation always gives the same launches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import (
    COMPOSED_KERNELS,
    Invocation,
    JointInvocation,
    find_builder,
)
from einc_runtime.kernels.calls.fold import CombineCall
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.triton.fold import build_combine
from einc_runtime.kernels.triton.index import build_index
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.map import build_aggregate
from einc_runtime.kernels.triton.moves import build_moves
from einc_runtime.plan.reproducible import require_order

__all__ = [
    "JOINT_AGGREGATION_BUILDERS",
    "KERNELS",
    "build_aggregate",
    "build_joint_aggregation",
    "build_kernel",
    "build_moves",
]

KERNELS: dict[str, tuple[str, str]] = {
    "attention": ("einc_runtime.kernels.triton.attention", "build_attention"),
    "contract": ("einc_runtime.kernels.triton.contract", "build_contract"),
    "dequantize": ("einc_runtime.kernels.triton.quantized", "build_dequantize"),
    "quantized_contract": ("einc_runtime.kernels.triton.quantized", "build_quantized_contract"),
    "rounded_contract": ("einc_runtime.kernels.triton.rounded_floats", "build_rounded_contract"),
    "map": ("einc_runtime.kernels.triton.map", "build_map"),
    "reduce": ("einc_runtime.kernels.triton.map", "build_reduce"),
    "softmax": ("einc_runtime.kernels.triton.rows", "build_softmax"),
    "recurrence": ("einc_runtime.kernels.triton.recurrence", "build_recurrence"),
    "reshape": ("einc_runtime.kernels.triton.moves", "build_reshape"),
    "rmsnorm": ("einc_runtime.kernels.triton.rows", "build_norm"),
    "layernorm": ("einc_runtime.kernels.triton.rows", "build_norm"),
    "rope": ("einc_runtime.kernels.triton.rows", "build_rope"),
    "expert_matmul": ("einc_runtime.kernels.triton.experts", "build_expert_matmul"),
    "append": ("einc_runtime.kernels.triton.moves", "build_append"),
    "custom": ("einc_runtime.kernels.triton.custom", "build_custom"),
    "topk": ("einc_runtime.kernels.triton.ranking", "build_topk"),
}
"""Kernel name -> module and builder."""

ORDERED: dict[str, tuple[str, str]] = {
    "attention": ("einc_runtime.kernels.triton.attention", "build_ordered_attention"),
    "contract": ("einc_runtime.kernels.triton.ordered_products", "build_ordered_contract"),
    "expert_matmul": ("einc_runtime.kernels.triton.experts", "build_ordered_expert_matmul"),
    "quantized_contract": ("einc_runtime.kernels.triton.quantized", "build_ordered_quantized_contract"),
    "rounded_contract": ("einc_runtime.kernels.triton.rounded_floats", "build_ordered_rounded_contract"),
    "recurrence": ("einc_runtime.kernels.triton.recurrence", "build_ordered_recurrence"),
    "reduce": ("einc_runtime.kernels.triton.ordered_sums", "build_ordered_reduce"),
    "softmax": ("einc_runtime.kernels.triton.rows", "build_ordered_softmax"),
    "rmsnorm": ("einc_runtime.kernels.triton.rows", "build_ordered_norm"),
    "layernorm": ("einc_runtime.kernels.triton.rows", "build_ordered_norm"),
}
"""The kernels of reproducible plans that add anything up."""

JOINT_AGGREGATION_BUILDERS: dict[str, tuple[str, str]] = {
    "logsumexp": ("einc_runtime.kernels.triton.joint_aggregation", "build_logsumexp"),
    "topk": ("einc_runtime.kernels.triton.joint_aggregation", "build_topk"),
}
"""Aggregation of tuples -> module and builder."""


SIZED = frozenset({"attention", "rounded_contract"})
"""Kernels whose builders take the architecture: tiles depend on shared memory, and types on tensor cores."""


def build_kernel(invocation: Invocation[Array], architecture: str = "sm_90") -> LaunchSequence:
    """The launches of a kernel; its operands are layouts (`launches.as_layout`).

    With the attribute `reproducible`, the bits of each result depend on what it is computed from alone, whatever the
    block is that it lies in (docs/reproducible.md).
    """
    if invocation.name in COMPOSED_KERNELS:
        return build_index(invocation, partial(build_kernel, architecture=architecture))
    ordered = invocation.is_reproducible
    table = ORDERED if ordered and require_order(invocation.name) else KERNELS
    build: Callable[..., LaunchSequence] = find_builder(invocation.name, table)
    plain = invocation.without_mark() if ordered else invocation
    sequence = build(plain, architecture) if invocation.name in SIZED else build(plain)
    return sequence.without_fusion() if ordered and invocation.name not in ORDERED else sequence


def build_joint_aggregation(invocation: JointInvocation[Array]) -> LaunchSequence:
    """The launches of an aggregation of tuples, or by a definition of the plan."""
    if invocation.definition:
        return build_combine(CombineCall.parse(invocation))
    build: Callable[[JointAggregationCall], LaunchSequence]
    build = find_builder(invocation.aggregation, JOINT_AGGREGATION_BUILDERS)
    return build(JointAggregationCall.parse(invocation))
