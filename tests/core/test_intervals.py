"""Intervals of indices and the ways to write a number of sites as a product of interval counts."""

from __future__ import annotations

import itertools
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.core.intervals import (
    ShardableIndex,
    count_reachable_sites,
    enumerate_factorizations,
    enumerate_requests,
)


@given(st.integers(1, 200), st.data())
def test_intervals_of_any_index_are_near_equal_and_cover_it(extent: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, extent))
    intervals = ShardableIndex("i", extent).intervals(count)
    assert [p for lower, upper in intervals for p in range(lower, upper)] == list(range(extent))
    assert {upper - lower for lower, upper in intervals} <= {extent // count, -(-extent // count)}
    assert [lower for lower, _ in intervals] == [k * extent // count for k in range(count)]


@given(st.sets(st.integers(1, 59), max_size=8), st.data())
def test_bounds_are_the_nearest_cuts_that_leave_enough_for_those_to_come(cuts: set[int], data: st.DataObject) -> None:
    extent, count = 60, data.draw(st.integers(1, len(cuts) + 1))
    index = ShardableIndex("i", extent, tuple(sorted(cuts)))
    assert index.max_intervals == len(cuts) + 1
    before, left = 0, sorted(cuts)
    bounds = [upper for _, upper in index.intervals(count)]
    assert bounds[-1] == extent
    for k, bound in enumerate(bounds[:-1], 1):
        allowed = [c for c in left if c > before and sum(later > c for later in left) >= count - 1 - k]
        target = k * extent // count
        assert bound == min(allowed, key=lambda c: (abs(c - target), c))
        before = bound


def test_work_moves_bounds_to_where_half_of_it_is_done() -> None:
    index = ShardableIndex("i", 10, (2, 4, 6, 8), work=(1, 2, 3, 40, 100))
    assert index.intervals(2) == ((0, 8), (8, 10))
    assert ShardableIndex("i", 10, (2, 4, 6, 8)).intervals(2) == ((0, 4), (4, 10))


def test_an_index_with_a_balance_has_two_ways_where_they_differ() -> None:
    index = ShardableIndex("i", 9, balance=lambda count: tuple(8 * k // count + 1 for k in range(1, count)))
    assert index.choices(2) == (((0, 4), (4, 9)), ((0, 5), (5, 9)))
    assert index.choices(1) == (((0, 9),),)
    assert ShardableIndex("i", 9, balance=lambda count: (4,)).choices(2) == (((0, 4), (4, 9)),)
    pair = [index, ShardableIndex("j", 4)]
    assert [(len(i), len(j)) for i, j in enumerate_requests(pair, (2, 3))] == [(2, 3)] * 2


@pytest.mark.parametrize("count", [0, 4])
def test_counts_beyond_the_most_are_refused(count: int) -> None:
    index = ShardableIndex("i", 10, (2, 4, 6, 8), limit=3)
    assert index.max_intervals == 3
    with pytest.raises(ValueError, match=f"index i cannot be cut into {count} intervals"):
        index.intervals(count)


@given(st.integers(1, 24), st.lists(st.integers(1, 6), max_size=4))
def test_factorizations_by_exhaustion(product: int, limits: list[int]) -> None:
    every = itertools.product(*(range(1, limit + 1) for limit in limits))
    assert list(enumerate_factorizations(product, limits)) == sorted(f for f in every if prod(f) == product)


@given(st.integers(1, 30), st.lists(st.integers(1, 6), max_size=3))
def test_the_most_sites_that_counts_multiply_to(sites: int, limits: list[int]) -> None:
    every = itertools.product(*(range(1, limit + 1) for limit in limits))
    assert count_reachable_sites(sites, limits) == max(p for f in every if (p := prod(f)) <= sites)
