"""Calls of the kernel `topk`, and the order in which values are ranked.

Larger values come first; of equal values, the one with the smaller index does. Not-a-number comes before all numbers,
and -0 equals 0. So partial results can be combined in any order with the same outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType
from einc_runtime.kernels.base import Invocation


@dataclass(frozen=True, slots=True)
class RankingCall:
    """`source` is searched along its last axis, whose first element has index `first` in the whole tensor.

    `values` and `indices` have the other axes of `source`, and then one more.
    """

    source: Array
    first: int
    values: Array
    indices: Array


def parse_topk(invocation: Invocation[Array]) -> RankingCall:
    axis = invocation.attribute("axis", int)
    searched = np.moveaxis(invocation.input, axis, -1)
    return RankingCall(searched, invocation.input_blocks[0].lower[axis], *invocation.outputs)


NO_INDEX = np.iinfo(np.int64).max
"""The index of places that remain empty because there are fewer values; the value there is `lowest_value`."""


def lowest_value(dtype: DType) -> Any:
    """The value that is ranked behind all others of its type."""
    return np.iinfo(dtype).min if dtype.kind == "i" else -np.inf


def rank_keys(values: Array) -> Array:
    """Integers of the shape of `values` (i32, i64 or floats); their ascending order is the ranking."""
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
