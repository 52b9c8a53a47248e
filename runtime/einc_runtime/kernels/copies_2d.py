"""Moves of strided arrays as two-dimensional copies: rows of bytes with a pitch, as CUDA's copies take them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_PITCH = (1 << 31) - 1
"""The largest pitch in bytes that CUDA's copies accept."""


@dataclass(frozen=True, slots=True)
class Copy2D:
    """`height` rows of `width` bytes, at byte offsets into two memories and with a pitch in each."""

    target: int
    target_pitch: int
    source: int
    source_pitch: int
    width: int
    height: int


def list_2d_copies(shape: Sequence[int], itemsize: int, targets: Sequence[int], sources: Sequence[int]) -> list[Copy2D]:
    """The copies that move an array of this shape between two layouts, each given by its strides in bytes.

    The order of the dimensions does not matter: rows are as long as both layouts have them in memory.
    """
    extents = _sort_dims(shape, targets, sources)
    if any(n == 0 for n, _, _ in extents):
        return []
    width = itemsize
    while extents and extents[-1][1] == extents[-1][2] == width:
        width *= extents.pop()[0]
    outer: list[tuple[int, int, int]] = []
    for n, t, s in extents:
        if outer and outer[-1][1] == t * n and outer[-1][2] == s * n:
            outer[-1] = (outer[-1][0] * n, t, s)
        else:
            outer.append((n, t, s))
    height, target_pitch, source_pitch = 1, width, width
    if outer and width <= min(outer[-1][1:]) and max(outer[-1][1:]) <= MAX_PITCH:
        height, target_pitch, source_pitch = outer.pop()
    starts = itertools.product(*([(i * t, i * s) for i in range(n)] for n, t, s in outer))
    return [
        Copy2D(sum(t for t, _ in start), target_pitch, sum(s for _, s in start), source_pitch, width, height)
        for start in starts
    ]


def count_2d_copies(shape: Sequence[int], itemsize: int, targets: Sequence[int], sources: Sequence[int]) -> int:
    """An upper bound of the number of copies in `list_2d_copies`, without making them: one for each position of all
    dimensions but the last two."""
    flat = _sort_dims(shape, targets, sources)
    width = itemsize
    while flat and flat[-1][1] == flat[-1][2] == width:
        width *= flat.pop()[0]
    return math.prod(n for n, _, _ in flat[:-1])


def _sort_dims(shape: Sequence[int], targets: Sequence[int], sources: Sequence[int]) -> list[tuple[int, int, int]]:
    """Extent and strides of the dimensions that have more than one place, from the largest stride to the smallest."""
    dims = [(n, t, s) for n, t, s in zip(shape, targets, sources, strict=True) if n != 1]
    return sorted(dims, key=lambda dim: (-dim[1], -dim[2]))
