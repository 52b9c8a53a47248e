"""Rounds rows of a weight to integers with scales, to the nearest, and measures what is lost.

Every group of a row has a scale in the weight's own type. Without zero points, the element of the largest magnitude
becomes the lowest integer, which is its exact multiple: -8 or -128. With zero points, the range of a group, which is
taken to have 0 in it, becomes all 16 or 256 integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class RoundingScheme:
    """`bits` 8 or 4; `group` elements of a row share a scale, all of them if it is 0; `zeros`: with zero points."""

    bits: int
    group: int = 0
    zeros: bool = False

    @property
    def low(self) -> int:
        """The lowest integer."""
        return -(1 << self.bits - 1)


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Integers [n, k], scales [n, groups], zero points if there are any; and the sums of squares of the weight and of
    what rounding changed."""

    values: Array
    scales: Array
    zeros: Array | None
    square: float
    lost: float


def round_rows(weight: Array, scheme: RoundingScheme) -> RoundedRows:
    """Rounds a matrix [n, k] of floats; raises ValueError where an element is not finite."""
    kind, (rows, depth) = weight.dtype, weight.shape
    group = scheme.group or depth
    wide = weight.astype(np.float32).reshape(rows, depth // group, group)
    if not np.isfinite(wide).all():
        raise ValueError("it has elements that are not finite")
    low, high = scheme.low, -scheme.low - 1
    if scheme.zeros:
        least, most = np.minimum(wide.min(-1), 0), np.maximum(wide.max(-1), 0)
        scales = ((most - least) / np.float32(high - low)).astype(kind)
    else:
        largest_at = np.abs(wide).argmax(-1)[..., None]
        scales = (np.take_along_axis(wide, largest_at, -1)[..., 0] / np.float32(low)).astype(kind)
    steps = scales.astype(np.float32)
    divisors = np.where(steps == 0, np.float32(1), steps)
    zeros = np.clip(np.rint(low - least / divisors), low, high) if scheme.zeros else np.zeros_like(steps)
    numbers = np.clip(np.rint(wide / divisors[..., None]) + zeros[..., None], low, high)
    numbers = np.where(steps[..., None] == 0, zeros[..., None], numbers)
    change = wide - (numbers - zeros[..., None]) * steps[..., None]
    return RoundedRows(
        numbers.astype(np.int8).reshape(rows, depth),
        scales,
        zeros.astype(np.int8) if scheme.zeros else None,
        float(np.square(wide, dtype=np.float64).sum()),
        float(np.square(change, dtype=np.float64).sum()),
    )


def pack_words(values: Array, bits: int) -> Array:
    """Signed integers along the last axis as 32-bit words, each plus half of the range, the first in the lowest bits.

    The last word is filled up with the lowest integer.
    """
    each = 32 // bits
    *rows, depth = values.shape
    filled = np.zeros((*rows, -(-depth // each) * each), np.uint32)
    filled[..., :depth] = (values.astype(np.int32) + (1 << bits - 1)).astype(np.uint32)
    parts = filled.reshape(*rows, -1, each) << np.arange(0, 32, bits, dtype=np.uint32)
    words: Array = np.bitwise_or.reduce(parts, axis=-1).view(np.int32)
    return words
