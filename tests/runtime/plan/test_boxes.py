"""Block geometry against element sets."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.errors import PlanFault
from einc_runtime.plan import boxes
from einc_runtime.plan.schema import Block
from tests.support.property_examples import examples


def elements(block):
    return set(itertools.product(*(range(lo, up) for lo, up in zip(block.lower, block.upper, strict=True))))


@st.composite
def blocks_in(draw, shape):
    spans = []
    for extent in shape:
        lo = draw(st.integers(0, extent - 1))
        spans.append((lo, draw(st.integers(lo + 1, extent))))
    return Block(tuple(lo for lo, _ in spans), tuple(up for _, up in spans))


SHAPES = st.lists(st.integers(1, 4), max_size=3)


@given(data=st.data(), shape=SHAPES)
def test_set_operations(data, shape):
    a, b = data.draw(blocks_in(shape)), data.draw(blocks_in(shape))
    assert a.size == len(elements(a))
    assert b.contains(a) == (elements(a) <= elements(b))
    common = a.intersect(b)
    assert a.overlaps(b) == (common is not None)
    assert (elements(common) if common else set()) == elements(a) & elements(b)
    if common:
        remainder = boxes.subtract(a, common)
        assert len(remainder) <= 2 * len(shape)
        assert sum(block.size for block in remainder) == len(elements(a) - elements(b))
        assert set().union(*map(elements, remainder)) == elements(a) - elements(b)


def tiles(outer, blocks):
    return boxes.find_tiling_fault(outer, blocks, boxes.StepBudget(1 << 20), "here") is None


@given(data=st.data(), shape=SHAPES)
def test_disjoint_blocks_have_no_element_twice(data, shape):
    blocks = data.draw(st.lists(blocks_in(shape), max_size=6))
    results = [element for block in blocks for element in elements(block)]
    assert boxes.are_disjoint(blocks) == (len(results) == len(set(results)))


@examples(150)
@given(data=st.data(), shape=SHAPES)
def test_tilings_are_those_that_cover_every_element_once(data, shape):
    outer = Block.whole(shape)
    blocks = [outer]
    for _ in range(data.draw(st.integers(0, 6))):  # split one at random, along one dimension
        block = blocks.pop(data.draw(st.integers(0, len(blocks) - 1)))
        at = data.draw(blocks_in([up - lo for lo, up in zip(block.lower, block.upper, strict=True)]))
        inner = Block(
            tuple(a + b for a, b in zip(at.lower, block.lower, strict=True)),
            tuple(a + b for a, b in zip(at.upper, block.lower, strict=True)),
        )
        blocks += [inner, *boxes.subtract(block, inner)]
    assert tiles(outer, blocks)
    wrong = data.draw(blocks_in(shape))
    position = data.draw(st.integers(0, len(blocks) - 1))
    replaced = list(dict.fromkeys([*blocks[:position], wrong, *blocks[position + 1 :]]))
    once = sorted(e for b in replaced for e in elements(b)) == sorted(elements(outer))
    assert tiles(outer, replaced) == once
    fewer = blocks[:position] + blocks[position + 1 :]
    assert not tiles(outer, fewer)


def test_pinwheels_tile_and_equal_volumes_do_not_suffice():
    spans = [((0, 2), (0, 1)), ((2, 3), (0, 2)), ((1, 3), (2, 3)), ((0, 1), (1, 3)), ((1, 2), (1, 2))]
    pinwheel = [Block((i[0], j[0]), (i[1], j[1])) for i, j in spans]
    assert tiles(Block.whole((3, 3)), pinwheel)
    overlapping = [Block((0, 0), (2, 2)), Block((1, 1), (2, 2)), Block((2, 0), (3, 1)), Block((0, 2), (3, 3))]
    assert sum(block.size for block in overlapping) == 9
    assert not tiles(Block.whole((3, 3)), overlapping)


def test_a_scalar_is_tiled_by_itself():
    assert tiles(Block.whole(()), [Block.whole(())])
    assert not tiles(Block.whole(()), [])


def test_a_scalar_overlaps_every_other():
    scalar = Block((), ())
    assert boxes.find_overlap([]) is None
    assert boxes.find_overlap([scalar]) is None
    assert boxes.find_overlap([scalar, scalar]) == (0, 1)


@given(data=st.data(), shape=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_an_overlap_names_two_blocks_that_share_an_element(data, shape):
    blocks = data.draw(st.lists(blocks_in(shape), max_size=6))
    overlap = boxes.find_overlap(blocks, boxes.StepBudget(1 << 20), "here")
    shared = {(i, j) for j in range(len(blocks)) for i in range(j) if elements(blocks[i]) & elements(blocks[j])}
    assert overlap in shared if shared else overlap is None


def test_a_block_of_other_rank_or_form_is_not_contained():
    square = Block((0, 0), (2, 2))
    assert square.contains(Block((0, 0), (1, 2)))
    for block in (Block((0,), (1,)), Block((0, 0), (1,)), Block((0, 0, 0), (1, 1, 1)), Block((0, 1), (1, 0))):
        assert not square.contains(block)
    assert not Block((0, 0), (2,)).contains(square)


def test_work_is_bounded():
    budget = boxes.StepBudget(2)
    budget.spend(2, "here")
    with pytest.raises(PlanFault, match="too complex"):
        budget.spend(1, "here")


def test_a_block_of_another_rank_is_not_inside():
    square = Block((0, 0), (4, 4))
    assert square.contains(Block((1, 0), (2, 4)))
    for block in (Block((1,), (2,)), Block((1, 0), (2,)), Block((1, 0, 0), (2, 4, 1)), Block((1, 0), (2, 5))):
        assert not square.contains(block)
