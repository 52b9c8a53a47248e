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
    floats: bool = False
    """Whether the 8 bits are those of a float (f8e4m3). A group is a block then, of as many rows as columns."""

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


LARGEST_E4M3 = 448.0
"""Of the floats with 4 bits of an exponent and 3 of a fraction."""


def round_floats(weight: Array, scheme: RoundingScheme) -> RoundedRows:
    """Rounds a matrix [n, k] of floats to floats of 8 bits, whose largest magnitude in a row, or in a block, is 448;
    scales are f32 [n, 1], or [blocks, blocks]. Raises ValueError where an element is not finite."""
    import ml_dtypes

    wide = weight.astype(np.float32)
    if not np.isfinite(wide).all():
        raise ValueError("it has elements that are not finite")
    starts = [
        np.arange(0, extent, scheme.group or size) for extent, size in zip(wide.shape, (1, wide.shape[1]), strict=True)
    ]
    largest = np.maximum.reduceat(np.maximum.reduceat(np.abs(wide), starts[0], 0), starts[1], 1)
    scales = (largest / np.float32(LARGEST_E4M3)).astype(np.float32)
    steps = scales
    for axis, begins in enumerate(starts):
        steps = np.repeat(steps, np.diff([*begins, wide.shape[axis]]), axis)
    values = (wide / np.where(steps == 0, np.float32(1), steps)).astype(ml_dtypes.float8_e4m3fn)
    change = wide - values.astype(np.float32) * steps
    square, lost = (float(np.square(part, dtype=np.float64).sum()) for part in (wide, change))
    return RoundedRows(values, scales, None, square, lost)


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
