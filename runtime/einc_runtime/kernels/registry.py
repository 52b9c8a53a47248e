"""The kernels of the CPU by name. Their modules are imported when a plan first needs them.

The provider `numpy` has every kernel and defines what it computes. `llvm` compiles some of them, and uses those of
numpy where it cannot compile or where an invocation is too small. Operations name kernels; joint aggregations of
partial tuples have a table of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import COMPOSED_KERNELS, Invocation, JointInvocation, Kernel, KernelBuilder, find_builder
from einc_runtime.kernels.calls.fold import CombineCall
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.calls.map import aggregation_as_map
from einc_runtime.kernels.index import build_index
from einc_runtime.kernels.index_aggregates import build_combine
from einc_runtime.plan.reproducible import require_order

PROVIDERS: dict[str, dict[str, tuple[str, str]]] = {
    "numpy": {
        "attention": ("einc_runtime.kernels.numpy.attention", "build_attention"),
        "contract": ("einc_runtime.kernels.numpy.contract", "build_contract"),
        "dequantize": ("einc_runtime.kernels.numpy.quantized", "build_dequantize"),
        "quantized_contract": ("einc_runtime.kernels.numpy.quantized", "build_quantized_contract"),
        "rounded_contract": ("einc_runtime.kernels.numpy.rounded", "build_rounded_contract"),
        "map": ("einc_runtime.kernels.numpy.map", "build_map"),
        "reduce": ("einc_runtime.kernels.numpy.map", "build_reduce"),
        "softmax": ("einc_runtime.kernels.numpy.rows", "build_softmax"),
        "recurrence": ("einc_runtime.kernels.numpy.recurrence", "build_recurrence"),
        "reshape": ("einc_runtime.kernels.numpy.moves", "build_reshape"),
        "rmsnorm": ("einc_runtime.kernels.numpy.rows", "build_norm"),
        "layernorm": ("einc_runtime.kernels.numpy.rows", "build_norm"),
        "rope": ("einc_runtime.kernels.numpy.rows", "build_rope"),
        "expert_matmul": ("einc_runtime.kernels.numpy.experts", "build_expert_matmul"),
        "append": ("einc_runtime.kernels.numpy.moves", "build_append"),
        "custom": ("einc_runtime.kernels.numpy.custom", "build_custom"),
        "topk": ("einc_runtime.kernels.numpy.ranking", "build_topk"),
    },
    "llvm": {
        "attention": ("einc_runtime.kernels.llvm.attention", "build_attention"),
        "contract": ("einc_runtime.kernels.llvm.contract", "build_contract"),
        "expert_matmul": ("einc_runtime.kernels.llvm.experts", "build_expert_matmul"),
        "dequantize": ("einc_runtime.kernels.llvm.quantized", "build_dequantize"),
        "quantized_contract": ("einc_runtime.kernels.llvm.quantized", "build_quantized_contract"),
        "rounded_contract": ("einc_runtime.kernels.llvm.rounded", "build_rounded_contract"),
        "map": ("einc_runtime.kernels.llvm.map", "build_map"),
        "reduce": ("einc_runtime.kernels.llvm.reduce", "build_reduce"),
        "softmax": ("einc_runtime.kernels.llvm.rows", "build_softmax"),
        "rmsnorm": ("einc_runtime.kernels.llvm.rows", "build_norm"),
        "layernorm": ("einc_runtime.kernels.llvm.rows", "build_norm"),
        "rope": ("einc_runtime.kernels.llvm.rows", "build_rope"),
        "recurrence": ("einc_runtime.kernels.llvm.recurrence", "build_recurrence"),
        "append": ("einc_runtime.kernels.llvm.moves", "build_append"),
        "reshape": ("einc_runtime.kernels.llvm.moves", "build_reshape"),
        "topk": ("einc_runtime.kernels.llvm.ranking", "build_topk"),
    },
}
"""Provider -> kernel name -> module and builder."""

REPRODUCIBLE: dict[str, tuple[str, str]] = {
    "attention": ("einc_runtime.kernels.reproducible.attention", "build_attention"),
    "contract": ("einc_runtime.kernels.reproducible.contract", "build_contract"),
    "expert_matmul": ("einc_runtime.kernels.reproducible.contract", "build_expert_matmul"),
    "quantized_contract": ("einc_runtime.kernels.reproducible.contract", "build_quantized_contract"),
    "rounded_contract": ("einc_runtime.kernels.reproducible.contract", "build_rounded_contract"),
    "map": ("einc_runtime.kernels.reproducible.dense", "build_map"),
    "reduce": ("einc_runtime.kernels.reproducible.sums", "build_reduce"),
    "softmax": ("einc_runtime.kernels.reproducible.dense", "build_softmax"),
    "rmsnorm": ("einc_runtime.kernels.reproducible.dense", "build_norm"),
    "layernorm": ("einc_runtime.kernels.reproducible.dense", "build_norm"),
    "rope": ("einc_runtime.kernels.reproducible.dense", "build_rope"),
    "recurrence": ("einc_runtime.kernels.reproducible.dense", "build_recurrence"),
}
"""The kernels of reproducible operations that compute. Those of others that add nothing up have one result anyway."""

JOINT_AGGREGATIONS: dict[str, dict[str, tuple[str, str]]] = {
    "numpy": {
        "logsumexp": ("einc_runtime.kernels.numpy.joint_aggregation", "build_logsumexp"),
        "topk": ("einc_runtime.kernels.numpy.joint_aggregation", "build_topk"),
    },
    "llvm": {"logsumexp": ("einc_runtime.kernels.llvm.joint_aggregation", "build_logsumexp")},
}
"""Provider -> aggregation of tuples -> module and builder."""


FASTEST_PROVIDER = "llvm"
"""The default provider."""


def prepare(invocation: Invocation[Array], provider: str = FASTEST_PROVIDER) -> Kernel:
    """The kernel of an invocation, ready to be bound.

    With the attribute `reproducible`, the bits of each result depend on what it is computed from alone, whatever the
    block is that it lies in (docs/reproducible.md).
    """
    if invocation.name in COMPOSED_KERNELS:
        is_compiled = provider == FASTEST_PROVIDER
        return build_index(invocation, partial(prepare, provider=provider), compiled=is_compiled)
    table = PROVIDERS["numpy"] | PROVIDERS[provider]
    if not invocation.is_reproducible:
        build: KernelBuilder = find_builder(invocation.name, table)
        return build(invocation)
    ordered = REPRODUCIBLE if require_order(invocation.name) else table | REPRODUCIBLE
    build = find_builder(invocation.name, ordered)
    return build(invocation.without_mark())


def prepare_aggregate(
    aggregation: str, reads: Sequence[Array], write: Array, provider: str = FASTEST_PROVIDER, repetitions: int = 1
) -> Kernel:
    """The kernel that aggregates copies of a block in their order, and rounds once at the end. An execution has so many
    of its kind."""
    return prepare(replace(aggregation_as_map(aggregation, reads, write), repetitions=repetitions), provider)


def prepare_joint_aggregation(invocation: JointInvocation[Array], provider: str = FASTEST_PROVIDER) -> Kernel:
    """The kernel that aggregates copies of a tuple, ready to be bound."""
    if invocation.definition:
        call, is_compiled = CombineCall.parse(invocation), provider == FASTEST_PROVIDER
        return build_combine(call, invocation.repetitions, compiled=is_compiled)
    table = JOINT_AGGREGATIONS["numpy"] | JOINT_AGGREGATIONS[provider]
    build: Callable[[JointAggregationCall], Kernel] = find_builder(invocation.aggregation, table)
    return build(JointAggregationCall.parse(invocation))
