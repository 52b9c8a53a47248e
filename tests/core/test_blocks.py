"""Blocks, tilings and overlays against sets of index vectors."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from einc.core.spec import FunctionSpec, JoinAggSpec, Overlay, build_tiling
from einc.core.tensor import TensorType
from tests.support.definition_oracle import find_spec_fault, find_tiling_fault

WHOLE = TensorType.whole((5, 3))


def points(block: TensorType) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(lo, up) for lo, up in zip(block.lower, block.upper, strict=True))))


def blocks(outer: TensorType = WHOLE) -> st.SearchStrategy[TensorType]:
    spans = [
        st.lists(st.integers(lo, up), min_size=2, max_size=2, unique=True).map(sorted)
        for lo, up in zip(outer.lower, outer.upper, strict=True)
    ]
    return st.tuples(*spans).map(lambda s: TensorType(tuple(lo for lo, _ in s), tuple(up for _, up in s)))


@given(blocks(), blocks())
def test_boxes_are_sets_of_points(a: TensorType, b: TensorType) -> None:
    common = a.intersect(b)
    assert (points(common) if common is not None else set()) == points(a) & points(b)
    assert a.contains(b) is (points(b) <= points(a))
    assert a.size == len(points(a))
    assert points(a.projected((1,))) == {(p[1],) for p in points(a)}


@given(st.lists(blocks(), max_size=6))
def test_families_tile_where_every_point_is_in_one_block(family: list[TensorType]) -> None:
    tiling = build_tiling(family)
    assert list(tiling) == sorted(set(family), key=lambda b: (b.lower, b.upper))
    counted = [p for block in tiling for p in points(block)]
    assert (find_tiling_fault(WHOLE, tiling) is None) is (sorted(counted) == sorted(points(WHOLE)))


@given(st.lists(st.integers(1, 4), max_size=3, unique=True), st.lists(st.integers(1, 2), max_size=2, unique=True))
def test_grids_tile(rows: list[int], columns: list[int]) -> None:
    spans = (itertools.pairwise((0, *sorted(cuts), end)) for cuts, end in ((rows, 5), (columns, 3)))
    family = [TensorType((a, c), (b, d)) for (a, b), (c, d) in itertools.product(*map(list, spans))]
    assert find_tiling_fault(WHOLE, build_tiling(family)) is None
    if len(family) > 1:
        assert "elements where" in str(find_tiling_fault(WHOLE, build_tiling(family[1:])))


def test_the_words_of_what_is_no_tiling() -> None:
    left, right, wide = (TensorType((lo, 0), (up, 3)) for lo, up in ((0, 3), (2, 5), (0, 6)))
    assert "is no projection of [0:5, 0:3]" in str(find_tiling_fault(WHOLE, (wide,)))
    assert "hold 18 elements where" in str(find_tiling_fault(WHOLE, (left, right)))
    overlapping = (TensorType((0, 0), (2, 3)), TensorType((1, 0), (4, 3)))  # and the last row in no block: 15 in all
    assert "two blocks overlap at [1:2, 0:3]" in str(find_tiling_fault(WHOLE, overlapping))


@given(st.lists(blocks(), min_size=1, max_size=5))
def test_cells_of_an_overlay_make_up_every_block(family: list[TensorType]) -> None:
    overlay = Overlay(WHOLE, family[:2], family[2:])
    for block in [*family, WHOLE]:
        cells = overlay.cells(block)
        assert cells == sorted(cells)
        assert sorted(p for cell in cells for p in points(cell)) == sorted(points(block))
    atoms = overlay.cells(WHOLE)
    assert all(atom.intersect(block) in (None, atom) for atom in atoms for block in family)


def test_a_box_needs_as_many_lower_bounds_as_upper_ones_and_no_upper_below() -> None:
    for lower, upper in (((0,), (1, 2)), ((3,), (2,))):
        block, outer = TensorType(lower, upper), TensorType.whole((5,))
        assert not outer.contains(block)
        spec = JoinAggSpec((FunctionSpec((block,), (outer,)),))
        assert "is no projection of [0:5]" in str(find_spec_fault(spec, [outer], [outer]))
        assert "is no projection of [0:5]" in str(find_tiling_fault(outer, (block,)))


def test_what_is_no_spec_is_told_by_operand() -> None:
    half, remainder = TensorType((0, 0), (2, 3)), TensorType((2, 0), (5, 3))
    outside = TensorType((2, 0), (6, 3))
    good = JoinAggSpec((FunctionSpec((half,), (half,)), FunctionSpec((WHOLE,), (remainder,))))
    assert find_spec_fault(good, [WHOLE], [WHOLE]) is None
    for bad, words in (
        (FunctionSpec((outside,), (remainder,)), "input 0: block [2:6, 0:3] is no projection"),
        (FunctionSpec((WHOLE,), (half,)), "output 0: the blocks hold 6 elements"),
        (FunctionSpec((WHOLE, half), (remainder,)), "has 2 inputs, 1 outputs"),
    ):
        assert words in str(find_spec_fault(JoinAggSpec((good.functions[0], bad)), [WHOLE], [WHOLE]))
