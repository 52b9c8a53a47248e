"""The kernels by name, from one provider each. Providers are imported when a plan first needs them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array
from runtime.errors import PlanFault
from runtime.kernels.base import Builder, Kernel

PROVIDERS: dict[str, dict[str, tuple[str, str]]] = {
    "numpy": {
        "attention": ("runtime.kernels.numpy_attention", "build_attention"),
        "contract": ("runtime.kernels.numpy_contract", "build_contract"),
        "map": ("runtime.kernels.numpy_map", "build_map"),
        "reduce": ("runtime.kernels.numpy_map", "build_reduce"),
        "softmax": ("runtime.kernels.numpy_rows", "build_softmax"),
        "regroup": ("runtime.kernels.numpy_rows", "build_regroup"),
        "rmsnorm": ("runtime.kernels.numpy_norm", "build_rmsnorm"),
        "layernorm": ("runtime.kernels.numpy_norm", "build_layernorm"),
        "rope": ("runtime.kernels.numpy_rope", "build_rope"),
        "embedding": ("runtime.kernels.numpy_gather", "build_embedding"),
        "append": ("runtime.kernels.numpy_gather", "build_append"),
        "concat": ("runtime.kernels.numpy_gather", "build_concat"),
        "meanpool": ("runtime.kernels.numpy_pool", "build_meanpool"),
    },
}
"""Provider -> kernel name -> module and builder."""


@cache
def builder(name: str, provider: str = "numpy") -> Builder:
    """Raises PlanFault for a kernel that the provider does not have."""
    kernels = PROVIDERS[provider]
    if name not in kernels:
        raise PlanFault(f"unknown kernel '{name[:40]}'", hint=f"this runtime has {', '.join(kernels)}")
    module, function = kernels[name]
    found: Builder = getattr(importlib.import_module(module), function)
    return found


def prepare(
    name: str,
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block] = (),
    output_blocks: Sequence[Block] = (),
    provider: str = "numpy",
) -> Kernel:
    """One invocation, ready to be bound and run; everything that could be wrong with it raises PlanFault here."""
    return builder(name, provider)(attributes, inputs, outputs, input_blocks, output_blocks)
