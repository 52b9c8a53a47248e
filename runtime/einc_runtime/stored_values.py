"""Values and scales of quantized weights in numpy: what bits stand for, and rounding to them, by definition."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from einc_runtime.dtypes import NARROW_FLOATS, Array, storage_dtype
from einc_runtime.plan.element_types import find_element_type

_MIN_EXPONENT, _MAX_EXPONENT = -126, 127
"""Exponents of f8e8m0 that rounding chooses: f32 has normal numbers of these, and no GPU takes others for 0."""


def decode_values(stored: Array, name: str, wide: Any) -> Array:
    """The values in an array of the type `name` as numbers of the numpy type `wide`, those of a byte side by side."""
    table = _list_values(name, np.dtype(wide))  # faster than a conversion of each
    bits, packing = stored.view(np.uint8), find_element_type(name).packing
    if packing == 1:
        return table[bits]
    numbers = np.empty((*stored.shape[:-1], stored.shape[-1] * packing), table.dtype)
    numbers[..., 0::2], numbers[..., 1::2] = table[bits & 15], table[bits >> 4]
    return numbers


@cache
def _list_values(name: str, wide: np.dtype[Any]) -> Array:
    """What all bits of a value stand for."""
    kind = find_element_type(name)
    if kind.packing == 1:
        return np.arange(256, dtype=np.uint8).view(storage_dtype(name)).astype(wide)
    codes = np.arange(16, dtype=np.uint8)
    return codes.view(_find_single(name)).astype(wide) if kind.bits else codes.astype(wide) - wide.type(8)


def _find_single(name: str) -> np.dtype[Any]:
    """The numpy type of one value of a float type that lies in an array of its own."""
    import ml_dtypes

    return storage_dtype(name) if find_element_type(name).packing == 1 else np.dtype(ml_dtypes.float4_e2m1fn)


def encode_floats(numbers: Array, name: str) -> Array:
    """Numbers, rounded to the nearest value of a narrow float type, ties to even, as an array of that type: what is
    larger than all of them becomes the largest, with its sign."""
    kind = find_element_type(name)
    assert kind.bits is not None
    with np.errstate(all="ignore"):
        clipped = np.clip(numbers.astype(np.float32), -kind.bits.largest, kind.bits.largest)
        values = clipped.astype(_find_single(name))
    if kind.packing == 1:
        return values
    codes = values.view(np.uint8)
    packed: Array = (codes[..., 0::2] & 15 | codes[..., 1::2] << 4).view(storage_dtype(name))
    return packed


def choose_scales(largest: Array, values: str, scales: str, factor: Array | np.float32 | float = 1.0) -> Array:
    """The scales of groups whose largest magnitudes, in f32, are known and whose elements become `values`.

    In f32, and in narrow floats times `factor`, the largest value stands for the largest element. A power of two is
    that of the largest element over that of the largest value (OCP Microscaling Formats specification, 6.3).
    """
    bits = find_element_type(values).bits
    assert bits is not None
    with np.errstate(all="ignore"):
        if scales in NARROW_FLOATS:
            return encode_floats(largest / np.float32(bits.largest) / factor, scales)
        if scales != "f8e8m0":
            plain: Array = (largest / np.float32(bits.largest)).astype(np.float32)
            return plain
        exponents = np.clip(np.frexp(largest)[1] - 1 - bits.largest_exponent, _MIN_EXPONENT, _MAX_EXPONENT)
        return np.where(np.isfinite(largest), exponents + 127, 255).astype(np.uint8).view(storage_dtype(scales))
