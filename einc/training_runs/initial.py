"""Weights to begin with, of a model that nobody has trained."""

from __future__ import annotations

import hashlib

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.weights import list_weights
from einc_runtime.plan.schema import Bundle

INITIAL_PREFIX = "init:"
SPREAD = 0.02
"""The standard deviation of matrices at first, as in GPT-2 and the families after it."""
NORMS = ("rmsnorm", "layernorm")
"""Kernels whose second operand is a factor of what they normalize."""


def make_weights(bundle: Bundle, source: str) -> dict[str, Array]:
    """Weights by their names in the plan, for `init:SEED`: matrices are from N(0, 0.02), factors of norms leave what
    they scale as it is, and all other vectors are zeros. They depend on the seed, names and shapes alone."""
    digits = source.removeprefix(INITIAL_PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ArrayFault(f"'{source[:40]}' does not name a seed", hint="write a number, as in init:0")
    factors: dict[str, float] = {}
    for operation in bundle.operations:
        if operation.kernel in NORMS and len(operation.inputs) > 1:
            offset = operation.attributes.get("offset", 0.0)
            factors[bundle.tensors[operation.inputs[1]].name] = 1.0 - float(offset)  # type: ignore[arg-type]
    weights: dict[str, Array] = {}
    for tensor in list_weights(bundle):
        words = np.frombuffer(hashlib.sha256(tensor.name.encode()).digest(), "<u4").astype(np.uint32).tolist()
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([int(digits), *words])))
        if tensor.name in factors or len(tensor.shape) < 2:
            values = np.full(tensor.shape, factors.get(tensor.name, 0.0))
        else:
            values = SPREAD * generator.standard_normal(tensor.shape)
        weights[tensor.name] = values.astype(storage_dtype(tensor.dtype))
    return weights
