"""The order in which values are ranked by `argmax` and `topk`, and what stands where there is nothing to rank.

Larger values come first, and of equal ones that with the smaller index. Not-a-number comes before all numbers, and
-0 equals 0, so that every way to combine partial results ends alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType

INDEX = "i64"
"""The element type of indices."""

NOWHERE = np.iinfo(np.int64).max
"""The index of a place that no value takes; its value is `least`."""


def least(dtype: DType) -> Any:
    """The value that comes last, behind all others of its type."""
    return np.iinfo(dtype).min if dtype.kind == "i" else -np.inf


def keys(values: Array) -> Array:
    """Integers of the shape of `values` (i32, i64 or floats) whose ascending order ranks them."""
    if values.dtype.kind == "i":
        return np.invert(values, out=np.empty_like(values))  # descending, and nothing overflows as it would in -values
    double = values.dtype == np.float64
    wide: Array = values.astype(np.float64 if double else np.float32)
    np.add(wide, 0, out=wide)  # turns -0 into 0
    np.copyto(wide, np.nan, where=np.isnan(wide))  # of one sign
    bits: Array = wide.view(np.int64 if double else np.int32)
    flipped = np.bitwise_xor(bits, np.iinfo(np.int64 if double else np.int32).max)
    np.copyto(bits, flipped, where=np.signbit(wide))  # floats order as these integers do
    return np.invert(bits, out=bits)
