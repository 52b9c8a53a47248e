"""Random inputs and weights: `rand:SEED` gives every tensor its own values, which are the same on every machine."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from einc_runtime.dtypes import FLOATS, Array, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.plan.schema import NARROW_FLOATS, QUANTIZED, Tensor
from einc_runtime.plan.states import is_weight

RANDOM_PREFIX = "rand:"


def parse_seed(source: str) -> int:
    """The SEED of `rand:SEED`, a natural number below 10^18."""
    digits = source.removeprefix(RANDOM_PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ArrayFault(f"'{source[:40]}' does not name a seed", hint="write a number, as in rand:0")
    return int(digits)


def make_random_array(tensor: Tensor, seed: int) -> Array:
    """Values for an input or weight, in its type.

    Floats come from N(0, 1), and those of a weight are divided by the square root of its fan-in; integers are uniform
    in [0, 8), quantized integers in all that they can be, and truth values are equally likely. Floats of 8 bits come
    from N(0, 256), and powers of two from the magnitudes of floats. Values depend only on the seed and the tensor's
    name and shape.
    """
    digest = hashlib.sha256(tensor.name.encode()).digest()
    words = np.frombuffer(digest, "<u4").astype(np.uint32).tolist()
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))
    if tensor.dtype == "bool":
        return generator.integers(0, 2, tensor.shape, np.uint8).astype(np.bool_)
    if tensor.dtype in NARROW_FLOATS:
        spread = 16 * generator.standard_normal(tensor.shape, np.float32)  # 448, the largest, is 28 times 16
        return spread.astype(storage_dtype(tensor.dtype))
    if tensor.dtype == "f8e8m0":
        powers = np.abs(generator.standard_normal(tensor.shape, np.float32)) / np.float32(math.sqrt(tensor.fan_in))
        return powers.astype(storage_dtype(tensor.dtype))
    if tensor.dtype in QUANTIZED:
        return generator.integers(0, 256, tensor.shape, np.uint8).view(storage_dtype(tensor.dtype))
    if tensor.dtype not in FLOATS:
        return generator.integers(0, 8, tensor.shape, np.int64).astype(storage_dtype(tensor.dtype))
    wide = np.float64 if tensor.dtype == "f64" else np.float32
    values = generator.standard_normal(tensor.shape, wide)
    if is_weight(tensor):
        values *= wide(1 / math.sqrt(tensor.fan_in))
    return values.astype(storage_dtype(tensor.dtype), copy=False)
