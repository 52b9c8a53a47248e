"""Moves between strided layouts are few two-dimensional copies of long rows, whatever the order of the dimensions."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from einc_runtime.kernels.copies_2d import count_2d_copies, list_2d_copies
from einc_runtime.kernels.views import strides_of


def layout(shape, itemsize, order, rng):
    """Strides of a block of this shape inside of a larger array in this order, and the bytes of that array."""
    whole = [extent + rng.choice([0, 0, 2]) for extent in shape]
    strides = strides_of(whole, itemsize, order)
    return strides, itemsize * int(np.prod(whole, dtype=np.int64))


@pytest.mark.parametrize("seed", range(60))
def test_copies_move_every_element_once(seed):
    rng = random.Random(seed)
    shape = [rng.choice([1, 2, 3, 5]) for _ in range(rng.randint(0, 4))]
    itemsize = rng.choice([1, 2, 4])
    orders = list(itertools.permutations(range(len(shape))))
    (targets, target_bytes), (sources, source_bytes) = (layout(shape, itemsize, rng.choice(orders), rng) for _ in "ts")
    source = np.random.default_rng(seed).integers(1, 250, source_bytes, dtype=np.uint8)
    target, expected = np.zeros(target_bytes, np.uint8), np.zeros(target_bytes, np.uint8)
    for place in np.ndindex(*shape):
        to, at = (sum(i * s for i, s in zip(place, strides, strict=True)) for strides in (targets, sources))
        expected[to : to + itemsize] = source[at : at + itemsize]
    copies = list_2d_copies(shape, itemsize, targets, sources)
    moved = 0
    for copy in copies:
        assert copy.height == 1 or copy.width <= min(copy.target_pitch, copy.source_pitch)
        for row in range(copy.height):
            to, at = copy.target + row * copy.target_pitch, copy.source + row * copy.source_pitch
            target[to : to + copy.width] = source[at : at + copy.width]
            moved += copy.width
    assert np.array_equal(target, expected)
    assert moved == itemsize * int(np.prod(shape, dtype=np.int64))
    assert len(copies) <= max(1, count_2d_copies(shape, itemsize, targets, sources))


def test_heads_that_lie_by_tokens_are_one_copy_of_long_rows():
    """Four of 32 heads of 128, f16, for 1024 tokens: declared by heads, but in memory token after token."""
    shape, strides, own = (4, 1024, 128), (256, 8192, 2), (256, 1024, 2)
    (copy,) = list_2d_copies(shape, 2, own, strides)
    assert (copy.width, copy.height, copy.source_pitch, copy.target_pitch) == (1024, 1024, 8192, 1024)
    assert count_2d_copies(shape, 2, own, strides) == 1
