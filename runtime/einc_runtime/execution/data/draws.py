"""Random inputs and weights: `rand:SEED` gives every tensor values of its own, the same ones on every machine."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from einc_runtime.dtypes import FLOATS, Array, storage_dtype
from einc_runtime.plan.schema import Tensor


def random_input(tensor: Tensor, seed: int) -> Array:
    """Values for an input or weight, in its type.

    Floats are drawn from N(0, 1), and those of a weight divided by the square root of its fan-in; integers are
    uniform in [0, 8), truth values fair coins. They depend on the seed and the tensor's name and shape only.
    """
    digest = hashlib.sha256(tensor.name.encode()).digest()
    words = np.frombuffer(digest, "<u4").astype(np.uint32).tolist()
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))
    if tensor.dtype == "bool":
        return generator.integers(0, 2, tensor.shape, np.uint8).astype(np.bool_)
    if tensor.dtype not in FLOATS:
        return generator.integers(0, 8, tensor.shape, np.int64).astype(storage_dtype(tensor.dtype))
    wide = np.float64 if tensor.dtype == "f64" else np.float32
    values = generator.standard_normal(tensor.shape, wide)
    if tensor.kind == "weight":
        values *= wide(1 / math.sqrt(tensor.fan_in))
    return values.astype(storage_dtype(tensor.dtype), copy=False)
