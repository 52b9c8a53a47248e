"""Rounds rows of a weight to integers or narrow floats with scales, to the nearest, and measures what is lost.

Every group of a row has a scale, that of integers in the weight's own type. Without zero points, the element of the
largest magnitude becomes the lowest integer, which is its exact multiple: -8 or -128. With zero points, the range of a
group, which is taken to have 0 in it, becomes all 16 or 256 integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from einc.core.tensor import Array
from einc_runtime.plan.element_types import StoredForm, find_element_type
from einc_runtime.stored_values import choose_scales, decode_values, encode_floats

UNIT_FACTOR = np.float32(1)


@dataclass(frozen=True, slots=True)
class RoundingScheme:
    """How a weight is stored: `group` elements of a row share a scale, all of them if it is 0; `zeros`: with zero
    points. Groups of f8e4m3 are blocks, of as many rows as columns."""

    form: StoredForm
    group: int = 0
    zeros: bool = False

    @property
    def bits(self) -> int:
        """The bits of a value."""
        return 8 // self.packing

    @property
    def packing(self) -> int:
        """The values in a byte."""
        return self.form.packing

    @property
    def has_blocks(self) -> bool:
        """Whether scales are those of blocks."""
        return self.form.is_float and self.group > 0 and not self.form.group

    @property
    def low(self) -> int:
        return -(1 << self.bits - 1)


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Values [n, k], two floats of 4 bits in a byte, scales [n, groups], zero points if there are any; and the sums of
    squares of the weight and of what rounding changed."""

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


def find_global_scale(largest: float, form: StoredForm) -> np.float32:
    """What a tensor whose largest magnitude is known is multiplied with, so that scales of groups may be all floats of
    their type: the largest of these then stands for the largest group."""
    kinds = [find_element_type(name).bits for name in (form.values, form.scales) if name]
    most = math.prod(bits.largest for bits in kinds if bits)
    return np.float32(most / largest) if largest > 0 else np.float32(1)


def round_floats(weight: Array, scheme: RoundingScheme, factor: np.float32 = UNIT_FACTOR) -> RoundedRows:
    """Rounds a matrix [n, k] of floats to floats of 8 or 4 bits: scales are [n, groups], or [blocks, blocks], and are
    multiplied with a `factor`. Raises ValueError where an element is not finite."""
    wide = weight.astype(np.float32)
    if not np.isfinite(wide).all():
        raise ValueError("it has elements that are not finite")
    form = scheme.form
    rows, columns = (scheme.group if scheme.has_blocks else 1), scheme.group or wide.shape[1]
    starts = [np.arange(0, extent, size) for extent, size in zip(wide.shape, (rows, columns), strict=True)]
    largest = np.maximum.reduceat(np.maximum.reduceat(np.abs(wide), starts[0], 0), starts[1], 1)
    scales = choose_scales(largest, form.values, form.scales or "f32", factor)
    steps = scales.astype(np.float32) * factor
    for axis, begins in enumerate(starts):
        steps = np.repeat(steps, np.diff([*begins, wide.shape[axis]]), axis)
    values = encode_floats(wide / np.where(steps == 0, UNIT_FACTOR, steps), form.values)
    change = wide - decode_values(values, form.values, np.float32) * steps
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
