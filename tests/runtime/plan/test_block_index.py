"""Blocks that overlap with a block, by an index against a look at all of them."""

from __future__ import annotations

import random

import pytest

from einc_runtime.execution.rewrites.dependencies import MAX_SCANNED_BLOCKS, BlockIndex
from einc_runtime.plan.schema import Block


def random_block(rng: random.Random, shape: tuple[int, ...]) -> Block:
    bounds = [sorted(rng.sample(range(extent + 1), 2)) if rng.random() < 0.7 else [0, extent] for extent in shape]
    return Block(tuple(lower for lower, _ in bounds), tuple(upper for _, upper in bounds))


@pytest.mark.parametrize("shape", [(), (1,), (60,), (7, 33), (3, 5, 17)])
def test_found_are_exactly_those_that_overlap(shape: tuple[int, ...]) -> None:
    rng, index, kept = random.Random(len(shape)), BlockIndex[int](), dict[int, Block]()
    largest = 0
    for value in range(400):
        block = random_block(rng, shape)
        index.add(block, value)
        kept[value] = block
        query = random_block(rng, shape)
        overlapping = index.find_overlapping(query)
        assert {index.entries[key][1] for key in overlapping} == {v for v, b in kept.items() if b.overlaps(query)}
        assert len(overlapping) == len(set(overlapping))
        largest = max(largest, len(kept))
        if rng.random() < 0.15 or len(kept) > 3 * MAX_SCANNED_BLOCKS:
            for key in rng.sample(
                sorted(index.entries), min(len(index.entries), rng.choice([1, 2, MAX_SCANNED_BLOCKS]))
            ):
                del kept[index.entries[key][1]]
                index.remove(key)
    assert largest > 2 * MAX_SCANNED_BLOCKS


def test_a_large_block_does_not_hide_small_ones() -> None:
    """Few of many blocks are looked at, whichever dimension they are cut along."""
    index = BlockIndex[int]()
    index.add(Block((0, 0), (1000, 1000)), -1)
    for value in range(1000):
        index.add(Block((0, value), (1000, value + 1)), value)
    near = index._find_near(index._orders or [], Block((3, 500), (4, 501)))
    assert len(near) <= 4
