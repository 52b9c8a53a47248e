"""Placement against a count of elements and a brute force over all assignments."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from einc.core.tensor import DType, TensorType
from einc.physical import placement
from einc.physical.atoms import Inflow
from einc.physical.placement import assign_sites, count_moved_bytes, place_functions, prefer_sites
from einc.physical.residency import CompleteBlock, PartialCopy, Residency
from einc.physical.synthesis import _assign_placement
from einc_runtime.plan.schema import Region
from tests.support.physical_toys import aggregates_alone, computed, inflow_of


def random_inflow(rng: random.Random, functions: int, sites: int) -> Inflow:
    """A 9 x 4 tensor, cut into rows, in one to three copies; a few aggregates; none to two random blocks required."""
    copies = rng.randint(1, min(3, sites))
    rows = min(3, sites // copies)
    bounds = [r * 9 // rows for r in range(rows + 1)]
    blocks = [TensorType((lo, 0), (up, 4)) for lo, up in itertools.pairwise(bounds)]
    where = rng.sample(range(sites), rows * copies)
    copies_of = [PartialCopy(f, site, Region(f, blocks[f // copies]), f) for f, site in enumerate(where)]
    made_of = computed("h", (9, 4), rng.choice((DType.F64, DType.BF16)))
    tensor = Residency.of(0, made_of, aggregates_alone("sum", 2), copies_of)
    for _ in range(rng.randint(0, 3)):
        tensor.add(CompleteBlock(rng.randrange(sites), Region(99, _block(rng)), (0,)))
    return inflow_of(tensor, [tuple(_block(rng) for _ in range(rng.randint(0, 2))) for _ in range(functions)])


def _block(rng: random.Random) -> TensorType:
    lower = (rng.randrange(9), rng.randrange(4))
    return TensorType(lower, (rng.randint(lower[0] + 1, 9), rng.randint(lower[1] + 1, 4)))


def bytes_by_element(inflow: Inflow, function: int, site: int) -> int:
    (tensor,), moved = inflow.carried, 0
    for element in itertools.product(range(9), range(4)):
        point = TensorType(element, (element[0] + 1, element[1] + 1))
        if not any(inflow.grid.block(cell).contains(point) for cell in inflow.needs[function]):
            continue
        present = any(complete.site == site and complete.block.contains(point) for complete in tensor.wholes)
        exists = any(complete.block.contains(point) for complete in tensor.wholes)
        copies = next(copies for block, copies in tensor.copies.items() if block.contains(point))
        missing = sum(copy.site != site for copy in copies)
        moved += 0 if present else min(missing, 1) if exists else missing
    return moved * DType(tensor.tensor.dtype).itemsize


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("chunk", [1, 50, placement.CHUNK_ELEMENTS])
def test_moved_bytes_count_every_missing_copy(seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "CHUNK_ELEMENTS", chunk)
    rng = random.Random(seed)
    sites, functions = rng.randint(1, 5), rng.randint(1, 4)
    inflows = [random_inflow(rng, functions, sites) for _ in range(rng.randint(1, 2))]
    cost = count_moved_bytes(inflows, functions, sites)
    for f, s in itertools.product(range(functions), range(sites)):
        assert cost[f, s] == sum(bytes_by_element(inflow, f, s) for inflow in inflows)


@pytest.mark.parametrize("seed", range(60))
def test_the_assignment_is_the_cheapest_and_then_the_nearest_to_the_identity(seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.randint(1, 5)
    columns = rng.randint(rows, 6)
    most = rng.choice((1, 3, 1000))
    cost = np.array([[rng.randint(0, most) for _ in range(columns)] for _ in range(rows)], dtype=float)
    assigned = assign_sites(cost.copy())
    assert len(set(assigned)) == rows
    ranked = min(
        (sum(cost[r, c] for r, c in enumerate(columns)), sum(r != c for r, c in enumerate(columns)))
        for columns in itertools.permutations(range(columns), rows)
    )
    assert (sum(cost[r, c] for r, c in enumerate(assigned)), sum(r != c for r, c in enumerate(assigned))) == ranked


def test_huge_costs_stay_exact_without_the_preference() -> None:
    big = float(2**52)
    cost = np.array([[big, big - 1, big], [big - 1, big, big], [big, big, big - 1]])
    assert assign_sites(cost) == (1, 0, 2)


def test_without_computed_inputs_function_i_runs_at_site_i() -> None:
    assert place_functions([], 3, 5) == (0, 1, 2)


@pytest.mark.parametrize("seed", range(40))
def test_busy_sites_count_as_the_bytes_that_could_move_meanwhile(seed: int) -> None:
    rng = random.Random(seed)
    sites = rng.randint(2, 5)
    functions = rng.randint(1, sites)
    inflows = [random_inflow(rng, functions, sites) for _ in range(rng.randint(0, 2))]
    busy = [rng.randint(0, rng.choice((1, 300))) for _ in range(sites)]
    placed = place_functions(inflows, functions, sites, busy)
    cost = [
        [sum(bytes_by_element(inflow, f, s) for inflow in inflows) + busy[s] for s in range(sites)]
        for f in range(functions)
    ]
    every = itertools.permutations(range(sites), functions)
    least = min(sum(cost[f][s] for f, s in enumerate(places)) for places in every)
    assert len(set(placed)) == functions
    assert sum(cost[f][s] for f, s in enumerate(placed)) == least
    if functions == sites:  # every site works in any case
        assert placed == place_functions(inflows, functions, sites)


def test_without_computed_inputs_the_least_busy_sites_work() -> None:
    assert place_functions([], 2, 5, [7, 3, 4, 3, 9]) == (1, 3)
    assert place_functions([], 2, 5, [0, 3, 0, 0, 0]) == (0, 2)
    assert place_functions([], 5, 5, [4, 3, 2, 1, 0]) == (0, 1, 2, 3, 4)


def test_of_equally_busy_sites_those_work_that_are_near_each_other() -> None:
    widths = {
        (a, b): 50.0 if {a, b} in ({0, 3}, {1, 2}, {2, 4}) else 25.0 for a in range(5) for b in range(5) if a != b
    }
    assert place_functions([], 2, 5, [0, 0, 0, 0, 0], widths) == (0, 3)
    assert place_functions([], 2, 5, [1, 0, 0, 1, 0], widths) == (1, 2)
    assert place_functions([], 2, 5, [1, 3, 2, 1, 1], widths) == (0, 3)
    assert place_functions([], 3, 5, [9, 0, 0, 9, 0], widths) == (1, 2, 4)
    assert place_functions([], 2, 5, None, widths) == (0, 1)


def test_the_smallest_whole_block_serves_a_reader() -> None:
    tensor = Residency(0, computed("h", (9,), DType.F64), aggregates_alone("sum", 1), {})
    small, large, partial = ((2, 5), (0, 9), (3, 4))
    for site, (lower, upper) in ((1, large), (1, small), (2, partial)):
        tensor.add(CompleteBlock(site, Region(lower, TensorType((lower,), (upper,))), ()))
    for block, expected in (((3, 4), small), ((2, 5), small), ((1, 4), large)):
        complete = tensor.find(TensorType((block[0],), (block[1],)), 1)
        assert complete is not None
        assert (complete.block.lower[0], complete.block.upper[0]) == expected
    assert tensor.find(TensorType((2,), (5,)), 2) is None


def test_functions_stay_at_sites_of_their_number_and_the_others_follow_in_order() -> None:
    groups = ((0, 3), (1, 4), (2,))
    assert _assign_placement(groups, ((3, 5), (0, 1), (4,))) == (5, 1, 4, 3, 0)
    assert _assign_placement(groups, ((0, 3), (1, 4), (2,))) == (0, 1, 2, 3, 4)
    assert _assign_placement(groups, ((1, 4), (2, 3), (0,))) == (1, 2, 0, 4, 3)


def test_replicas_in_other_nodes_take_other_parts_of_an_index() -> None:
    """Of four blocks with two replicas each, on two nodes of four sites, each is read by two functions; those with one
    part of the second index lie in one node."""
    cost = np.ones((8, 8))
    for function, site in itertools.product(range(8), range(8)):
        if function // 2 == site % 4:
            cost[function, site] = 0
    preferred = prefer_sites(cost)
    assert preferred.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert assign_sites(cost, preferred) == (0, 4, 1, 5, 2, 6, 3, 7)


def test_more_equal_functions_than_sites_prefer_their_own_numbers() -> None:
    cost = np.ones((3, 3))
    cost[:, 1] = 0
    assert prefer_sites(cost).tolist() == [0, 1, 2]
    assert assign_sites(cost, prefer_sites(cost)) == (0, 1, 2)
