"""The kernels by name, from the providers that have them. Providers are imported when a plan first needs them.

`numpy` has every kernel and says what they mean. `native` is faster where it can compile, and turns to numpy where it
cannot, or where it is not worth it.

Kernels that combine partial copies of tuples are beside those that operations name: aggregations name them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache

from einc_runtime.dtypes import Array
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Builder, Invocation, Kernel
from einc_runtime.kernels.calls.map import aggregation_as_map
from einc_runtime.kernels.calls.merges import Merge

PROVIDERS: dict[str, dict[str, tuple[str, str]]] = {
    "numpy": {
        "attention": ("einc_runtime.kernels.numpy.attention", "build_attention"),
        "contract": ("einc_runtime.kernels.numpy.contract", "build_contract"),
        "map": ("einc_runtime.kernels.numpy.map", "build_map"),
        "reduce": ("einc_runtime.kernels.numpy.map", "build_reduce"),
        "softmax": ("einc_runtime.kernels.numpy.rows", "build_softmax"),
        "regroup": ("einc_runtime.kernels.numpy.moves", "build_regroup"),
        "rmsnorm": ("einc_runtime.kernels.numpy.rows", "build_norm"),
        "layernorm": ("einc_runtime.kernels.numpy.rows", "build_norm"),
        "rope": ("einc_runtime.kernels.numpy.rope", "build_rope"),
        "embedding": ("einc_runtime.kernels.numpy.gather", "build_embedding"),
        "append": ("einc_runtime.kernels.numpy.gather", "build_append"),
        "concat": ("einc_runtime.kernels.numpy.moves", "build_concat"),
        "argmax": ("einc_runtime.kernels.numpy.select", "build_argmax"),
        "topk": ("einc_runtime.kernels.numpy.select", "build_topk"),
        "meanpool": ("einc_runtime.kernels.numpy.pool", "build_meanpool"),
    },
    "native": {
        "attention": ("einc_runtime.kernels.llvm.attention", "build_attention"),
        "contract": ("einc_runtime.kernels.llvm.contract", "build_contract"),
        "map": ("einc_runtime.kernels.llvm.map", "build_map"),
        "softmax": ("einc_runtime.kernels.llvm.rows", "build_softmax"),
        "rmsnorm": ("einc_runtime.kernels.llvm.rows", "build_norm"),
        "layernorm": ("einc_runtime.kernels.llvm.rows", "build_norm"),
        "rope": ("einc_runtime.kernels.llvm.rope", "build_rope"),
    },
}
"""Provider -> kernel name -> module and builder."""

MERGES: dict[str, dict[str, tuple[str, str]]] = {
    "numpy": {
        "logsumexp": ("einc_runtime.kernels.numpy.merges", "merge_logsumexp"),
        "argmax": ("einc_runtime.kernels.numpy.merges", "merge_argmax"),
        "topk": ("einc_runtime.kernels.numpy.merges", "merge_topk"),
    },
    "native": {
        "logsumexp": ("einc_runtime.kernels.llvm.merges", "merge_logsumexp"),
    },
}
"""Provider -> aggregation of tuples -> module and builder."""


FASTEST = "native"
"""The provider that is used where nobody asks for another."""


@cache
def _builder(name: str, provider: str) -> Builder:
    """Raises PlanFault for a kernel that neither the provider nor numpy has."""
    kernels = PROVIDERS["numpy"] | PROVIDERS[provider]
    if name not in kernels:
        raise PlanFault(f"unknown kernel '{name[:40]}'", hint=f"this runtime has {', '.join(kernels)}")
    module, function = kernels[name]
    found: Builder = getattr(importlib.import_module(module), function)
    return found


def prepare(invocation: Invocation[Array], provider: str = FASTEST) -> Kernel:
    """The invocation, ready to be bound and run; everything that could be wrong with it raises PlanFault here."""
    return _builder(invocation.name, provider)(invocation)


def prepare_aggregate(aggregation: str, reads: Sequence[Array], write: Array, provider: str = FASTEST) -> Kernel:
    """The aggregation of copies of a block in their order, rounded once at the end."""
    return prepare(aggregation_as_map(aggregation, reads, write), provider)


def prepare_merge(
    aggregation: str,
    reads: Sequence[Array],
    writes: Sequence[Array],
    dims: Sequence[Sequence[int]],
    provider: str = FASTEST,
) -> Kernel:
    """The aggregation of copies of a tuple. `reads` has as many arrays as `writes` for each copy; see `Merge`."""
    merges = MERGES["numpy"] | MERGES[provider]
    if aggregation not in merges:
        raise PlanFault(f"tuples cannot be aggregated by '{aggregation[:40]}'", hint=f"there are {', '.join(merges)}")
    module, function = merges[aggregation]
    make: Callable[[Merge], Kernel] = getattr(importlib.import_module(module), function)
    return make(Merge.of(reads, writes, dims))
