"""The time that no plan beats: never above a plan of a small graph, built one by one, and near the best of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from einc.machines.load import load_machine
from einc.physical.build import build_fast
from einc.search.lower_bound import bound_plans
from tests.support.search_toys import draw_graph, evaluator_of, list_plans

MACHINES = ("dgx-a100", "dgx-h100", "dgx-v100")
BUILT = 60
"""Plans of a graph that are built here; the slow test builds more."""


def require_below(seed: int, most: int) -> tuple[float, float]:
    """The bound, and the least time of the plans, in ms; the best five are built with synthesized exchanges, too."""
    rng = random.Random(seed)
    graph, sites, machine = draw_graph(seed, 4), rng.choice((2, 3, 4)), load_machine(rng.choice(MACHINES))
    evaluator = evaluator_of(graph, machine, sites, rng.choice(("replicated", "once")))
    bound = bound_plans(graph, machine, sites, math.inf)
    assert bound is not None
    plans = [evaluator.evaluate(assignment) for assignment in list_plans(evaluator.space.problem, most)]
    built = sorted((plan for plan in plans if plan is not None), key=lambda plan: plan.predicted_ms)
    assert bound <= built[0].predicted_ms * (1 + 1e-9), seed
    completed_ms = [build_fast(evaluator.make_plan(plan), machine).predicted_ms for plan in built[:5]]
    least = min(built[0].predicted_ms, *completed_ms)
    for completed in completed_ms:
        assert bound <= completed * (1 + 1e-9), seed
        known = bound_plans(graph, machine, sites, completed)  # leaves out more candidates, and so proves more
        assert known is not None
        assert min(bound, completed) * (1 - 1e-9) <= known <= min(least, completed) * (1 + 1e-9), seed
    return bound, built[0].predicted_ms


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [1, 4, 9])
def test_no_plan_takes_less(seed: int) -> None:
    bound, least = require_below(seed, BUILT)
    assert bound > least / 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_no_plan_of_thousands_takes_less(seed: int) -> None:
    require_below(seed, 3000)


def test_there_is_none_where_sites_share_cores() -> None:
    assert bound_plans(draw_graph(1, 2), replace(load_machine("dgx-a100"), cores=8), 2, 1.0) is None


def test_the_bound_is_no_more_than_what_a_plan_takes() -> None:
    assert bound_plans(draw_graph(1, 3), load_machine("dgx-a100"), 2, 1e-6) == 1e-6
