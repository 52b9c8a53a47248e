"""Enumeration against an independent one, and against operators that break the contract."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.core.spec import FunctionSpec, JoinAggSpec, build_tiling
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.logical import candidates as candidates_module
from einc.logical.candidates import build_candidates, enumerate_candidates, enumerate_flexible_candidates
from einc.ops.registry import call
from tests.support.definition_oracle import find_tiling_fault
from tests.support.logical_toys import Toy, own_cost, specs, toy
from tests.support.property_examples import examples

EQUATIONS = (
    "ij jk -> ik",
    "ij -> ji",
    "ij i -> ij",
    "ij jk -> ik i",
    "ijk -> j",
    "i j k -> ijk",
    "ii i -> i",
    ". -> i",
    "ij -> .",
)


@st.composite
def toys(draw):
    equation = draw(st.sampled_from(EQUATIONS))
    names = sorted(set(equation) & set("ijk"))
    names = draw(st.permutations(names))
    extents = {name: draw(st.integers(1, 80)) for name in names}
    cuts = {
        name: tuple(sorted(draw(st.sets(st.integers(1, extents[name] - 1), max_size=5))))
        for name in names
        if extents[name] > 1 and draw(st.integers(0, 3)) == 0
    }
    return toy(equation, cuts, **extents)


@given(toys(), st.integers(1, 72))
@examples(60)
def test_equals_an_independent_enumeration(operator, sites):
    candidates, expected = enumerate_candidates(operator, sites), specs(operator, sites)
    assert [candidate.intervals for candidate in candidates] == [request for request, _ in expected]
    for offered, (_, spec) in zip(candidates, expected, strict=True):
        assert offered.spec == spec
        assert offered.join + offered.aggregation == own_cost(spec)
        assert offered.join == sum(block.size for f in spec.functions for block in f.inputs)
        reads, writes = zip(*((f.inputs, f.outputs) for f in spec.functions), strict=True)
        assert offered.input_tilings == tuple(map(build_tiling, zip(*reads, strict=True)))
        assert offered.output_tilings == tuple(map(build_tiling, zip(*writes, strict=True)))
        for desc, tiling in zip(operator.outputs, offered.output_tilings, strict=True):
            assert find_tiling_fault(desc.type, tiling) is None


def offer_by_definition(operator, sites):
    """Every cut into p' or fewer function specifications, with the replicas that it may have."""
    most = [index.max_intervals for index in operator.indices]
    every = [c for c in product(*(range(1, min(m, sites) + 1) for m in most)) if prod(c) <= sites]
    used = max(map(prod, every))
    offered = {}
    for counts in every:
        functions = prod(counts)
        spec = operator.build_spec(tuple(index.intervals(n) for index, n in zip(operator.indices, counts, strict=True)))
        partial = any(len({f.outputs[j] for f in spec.functions}) < functions for j in range(len(operator.outputs)))
        offered[functions, counts] = {1} if partial or sites // functions == 1 else {1, sites // functions}
        if functions == 1 and sites % 2 and 2 < sites <= candidates_module.LARGE_MACHINE_SITES and not partial:
            offered[functions, counts].add(sites - 1)
    return used, offered


@given(toys(), st.integers(1, 12))
@examples(60)
def test_the_flexible_offer_equals_its_definition(operator, sites):
    strict, flexible = enumerate_candidates(operator, sites), enumerate_flexible_candidates(operator, sites)
    used, expected = offer_by_definition(operator, sites)
    assert flexible[: len(strict)] == strict
    assert len(flexible) <= max(4 * len(strict), len(strict) + candidates_module.MIN_EXTRA[0])
    by_counts = {}
    for candidate in flexible:
        counts = tuple(map(len, candidate.intervals))
        by_counts.setdefault((prod(counts), counts), set()).add(candidate.replicas)
        assert candidate == build_candidates(operator, counts, candidate.replicas)[0]
        assert candidate.functions == candidate.spec.functions * candidate.replicas
        assert candidate.join == sum(block.size for f in candidate.functions for block in f.inputs)
        assert candidate.replicas == 1 or candidate.aggregation == 0
    assert len(flexible) == sum(map(len, by_counts.values()))
    assert all(expected[key] == replicas for key, replicas in by_counts.items())
    # of a number of function specifications, all cuts are there or none; and all that should be there, if there is room
    numbers = {functions for functions, _ in by_counts}
    assert by_counts.keys() == {key for key in expected if key[0] in numbers}
    ways = Counter(functions for functions, _ in expected)
    sizes = {1, sites // 2, (sites + 1) // 2, used}
    sizes |= {n for n in ways if used % n == 0 or sites % n == 0 or n in (2, 4, 8) or ways[n] > ways[used]}
    assert numbers <= sizes
    extra = sum(len(replicas) for (n, _), replicas in expected.items() if n in sizes) - len(strict)
    if extra <= candidates_module.MIN_EXTRA[0]:
        assert numbers == sizes & ways.keys()


def test_the_offer_on_eight_sites():
    matmul = toy("ij jk -> ik", i=64, j=64, k=64)
    candidates = enumerate_flexible_candidates(matmul, 8)
    assert Counter((len(candidate.spec.functions), candidate.replicas) for candidate in candidates) == {
        (8, 1): 10, (4, 1): 6, (4, 2): 3, (2, 1): 3, (2, 4): 2, (1, 1): 1, (1, 8): 1,
    }  # fmt: skip
    alone = enumerate_flexible_candidates(matmul, 8, replicated=False)
    everywhere = enumerate_flexible_candidates(matmul, 8, fewer=False)
    assert [candidate for candidate in candidates if candidate.replicas == 1] == list(alone)
    assert [
        candidate
        for candidate in candidates
        if candidate.replicas > 1 or len(candidate.functions) == 8 == len(candidate.spec.functions)
    ] == list(everywhere)
    assert candidates[-1].replicas == 8
    assert len(enumerate_flexible_candidates(matmul, 72)) <= 3 * len(enumerate_candidates(matmul, 72))


def test_what_is_cut_too_little_may_be_computed_on_all_sites():
    candidates = enumerate_flexible_candidates(toy("ij -> ij", i=3, j=1), 8)
    assert [(len(candidate.spec.functions), candidate.replicas) for candidate in candidates] == [
        (3, 1),
        (3, 2),
        (2, 1),
        (2, 4),
        (1, 1),
        (1, 8),
    ]


def test_choices_among_floats_are_made_once():
    """Replicas may round differently, so that a comparison could come out differently on two sites."""
    floats, numbers = (TensorDesc(("i",), (8,), dtype) for dtype in (DType.F32, DType.I64))
    ranked = call("topk", [floats, 1, "i"], {})
    assert all(candidate.replicas == 1 for candidate in enumerate_flexible_candidates(ranked, 4))
    with pytest.raises(ValueError, match="several sites"):
        build_candidates(ranked, (1,), 4)[0]
    shifted = call("add", [numbers, numbers], {})
    assert enumerate_flexible_candidates(shifted, 4)[-1].replicas == 4


def test_partial_copies_are_not_replicated():
    with pytest.raises(ValueError, match="several sites"):
        build_candidates(toy("ij jk -> ik", i=8, j=8, k=8), (1, 2, 1), 2)[0]


@pytest.mark.parametrize("sites", range(1, 73))
def test_every_number_of_sites(sites):
    operator = toy("ij jk -> ik", {"k": (5, 9)}, i=7, j=100, k=13)
    candidates = enumerate_candidates(operator, sites)
    used = {len(candidate.spec.functions) for candidate in candidates}
    reachable = max(a * b * c for a in range(1, 8) for b in range(1, 101) for c in range(1, 4) if a * b * c <= sites)
    assert used == {reachable}
    assert [candidate.intervals for candidate in candidates] == sorted(candidate.intervals for candidate in candidates)
    for offered in candidates:
        for index, intervals in zip(operator.indices, offered.intervals, strict=True):
            assert intervals[0][0] == 0
            assert intervals[-1][1] == index.extent
            if index.cuts is None:
                sizes = {up - lo for lo, up in intervals}
                assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("extents", "sites", "used"),
    [((2, 2), 7, 4), ((1, 3), 7, 3), ((5, 5), 11, 10), ((5, 1), 71, 5), ((1, 1), 8, 1), ((71, 2), 71, 71)],
)
def test_idle_sites(extents, sites, used):
    candidates = enumerate_candidates(toy("ij -> ij", i=extents[0], j=extents[1]), sites)
    assert {prod(map(len, candidate.intervals)) for candidate in candidates} == {used}


def test_no_shardable_index():
    (only,) = enumerate_candidates(Toy(". -> .", ()), 8)
    scalar = TensorType((), ())
    assert only.intervals == ()
    assert only.spec == JoinAggSpec((FunctionSpec((scalar,), (scalar,)),))
    assert (only.join, only.aggregation) == (1, 0)


def test_lexicographic_order_is_that_of_the_intervals():
    candidates = enumerate_candidates(toy("ij -> ij", i=8, j=8), 4)
    assert [tuple(map(len, candidate.intervals)) for candidate in candidates] == [(4, 1), (2, 2), (1, 4)]


def test_listed_cuts_are_the_only_bounds():
    candidates = enumerate_candidates(toy("ij -> ij", {"i": (1024, 2560)}, i=4096, j=3), 3)
    bounds = {interval for candidate in candidates for interval in candidate.intervals[0]}
    assert bounds == {(0, 4096), (0, 1024), (1024, 2560), (2560, 4096)}


def test_tilings_are_interned_and_equal_operators_share():
    operator = toy("ij hdj -> hid", h=16, i=16, d=16, j=16)
    candidates = enumerate_candidates(operator, 16)
    tilings = [candidate.input_tilings[0] for candidate in candidates]
    assert len({id(tiling) for tiling in tilings}) == len(set(tilings)) < len(tilings)
    assert enumerate_candidates(replace(operator), 16) is candidates


def test_a_high_rank_is_complete():
    """12 indices of extent 4 over 8 sites: 4 x 2 in either order on any two, or 2 x 2 x 2 on any three."""
    names = "abcdefghijkl"
    candidates = enumerate_candidates(toy(f"{names} -> {names}", **dict.fromkeys(names, 4)), 8)
    assert len({candidate.intervals for candidate in candidates}) == len(candidates) == 12 * 11 + 12 * 11 * 10 // 6


def test_an_absurd_rank_is_bounded(monkeypatch):
    monkeypatch.setattr(candidates_module, "MAX_BOUNDS", 1 << 16)
    names = "abcdefghijklmnopqrstuvwxyz"
    candidates = enumerate_candidates(toy(f"{names} -> {names}", **dict.fromkeys(names, 2)), 64)
    assert len(candidates) == (1 << 16) // (64 * 52)
    assert {len(candidate.spec.functions) for candidate in candidates} == {64}
