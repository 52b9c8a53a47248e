"""Plans that are placed from where another one left off are those that are placed from the beginning."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from einc.machines.load import load_machine
from einc.physical.build import MAX_KEPT_BEGINNINGS, PlacedBeginnings, build
from einc.physical.placer import Placer, PlanRecords
from einc.physical.records import OperationRecorder
from einc.physical.schedule import NaiveScheduler
from einc.search.orders import list_orders
from tests.support.search_toys import draw_graph, space_of


@pytest.mark.sampled(2)
@pytest.mark.parametrize("input_placement", ["replicated", "once"])
@pytest.mark.parametrize("seed", range(6))
def test_plans_from_kept_beginnings(
    seed: int, input_placement: Literal["replicated", "once"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random walks: single operators change, now and then the order does, or whether idle sites are used."""
    rng = random.Random(seed)
    machine, sites = load_machine("dgx-v100"), 5
    space = space_of(draw_graph(seed, 7), machine, sites, input_placement)
    orders = [tuple(range(len(space.graph.nodes))), *list_orders(space.graph)]
    beginnings, recorder, scheduler = PlacedBeginnings(), OperationRecorder(), NaiveScheduler(machine, sites)
    placed: list[int] = []
    original = Placer.place
    monkeypatch.setattr(Placer, "place", lambda placer, *number: (placed.append(number), original(placer, *number)))
    saved = 0
    assignment = [0] * len(space.graph.nodes)
    for _ in range(4 * MAX_KEPT_BEGINNINGS):
        changed = rng.randrange(len(assignment))
        copied = assignment.copy()
        copied[changed] = rng.randrange(len(space.problem.candidates[changed]))
        plan = space.make_plan(tuple(copied), rng.choice(orders), rng.random() < 0.7)
        placed.clear()
        program = build(
            plan, machine, scheduler, PlanRecords.of(plan, recorder), check_memory=False, beginnings=beginnings
        )
        saved += len(assignment) - len(placed)
        assert program == build(plan, machine, NaiveScheduler(machine, sites), check_memory=False)
        if rng.random() < 0.5:
            assignment = copied
    assert saved or len(assignment) == 1
