"""The optimum of the time tables against all assignments, and the chosen plan against all plans, one by one."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from einc.frontend import build as build_graph
from einc.graph.fuse import fuse
from einc.logical.minsum import minimize
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.physical.budget import SearchBudget
from einc.search.exhaustive import list_small_plans
from einc.search.fastest import find_fastest
from einc.search.neighbours import list_changes, list_pair_changes, sum_times
from einc.search.tables import TimeProblem, build_time_problems
from tests.support.peak_machines import load_at_peak
from tests.support.plan_bounds import PlanBounds
from tests.support.search_toys import draw_graph, evaluator_of, find_faster_plan, space_of

MODELS = Path(__file__).parents[2] / "models"
MACHINES = ("dgx-a100", "dgx-h100", "dgx-v100")


def sum_all(problem: TimeProblem) -> np.ndarray:
    """What the tables say of every assignment, with an axis for each node, by adding up with broadcasting."""
    shape = [len(times) for times in problem.node_times]
    total = np.zeros(shape, dtype=np.int64)
    for v, milliseconds in enumerate(problem.node_times):
        total += milliseconds.reshape([-1 if u == v else 1 for u in range(len(shape))])
    for table in problem.tables:
        full = table.costs
        for axis, classes in enumerate(table.classes):
            full = np.take(full, classes, axis=axis)
        total += full.reshape([shape[u] if u in table.variables else 1 for u in range(len(shape))])
    return total


@pytest.mark.parametrize("seed", range(16))
def test_tables_are_minimized_exactly(seed: int) -> None:
    graph, sites = draw_graph(seed, 5), 2 + seed % 3
    machine = load_machine(MACHINES[seed % 3])
    problem = build_problem(graph, sites, flexible=True)
    for tables in build_time_problems(graph, problem.candidates, machine, sites, once=seed % 4 == 3):
        every = sum_all(tables)
        best = minimize(tables.node_times, tables.tables)
        assert best is not None
        assert every[tuple(best)] == every.min() == sum_times(tables, best)
        rng = random.Random(seed)
        start = tuple(rng.randrange(size) for size in every.shape)
        for change in list_changes(tables, start) + list_pair_changes(tables, start):
            neighbour = change.apply(start)
            assert change.added == every[neighbour] - every[start]
            assert {v for v in range(len(start)) if start[v] != neighbour[v]} == set(change.nodes)
        assert len(list_changes(tables, start)) == sum(size - 1 for size in every.shape)


def require_near_best(seed: int, most: int) -> None:
    rng = random.Random(seed)
    graph, sites, machine = draw_graph(seed), rng.choice((2, 3, 4)), load_machine(rng.choice(MACHINES))
    placement = rng.choice(("replicated", "replicated", "once"))
    fastest = find_fastest(graph, machine, sites, naive=True, budget=SearchBudget(), input_placement=placement)
    assert fastest.program is not None
    evaluator = evaluator_of(graph, machine, sites, placement)
    bounds = PlanBounds(graph, machine, sites, once=placement == "once")
    faster = find_faster_plan(evaluator, bounds, fastest.program.predicted_ms / 1.03, most)
    assert faster is None, (seed, fastest.program.predicted_ms, faster)
    assert find_faster_plan(evaluator, bounds, fastest.program.predicted_ms * 5, most) is not None


@pytest.mark.parametrize("seed", [302, pytest.param(303, marks=pytest.mark.slow)])
def test_no_plan_is_faster(seed: int) -> None:
    require_near_best(seed, 80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_no_plan_of_thousands_is_faster(seed: int) -> None:
    require_near_best(seed, 3000)


def test_small_plans_are_listed_by_what_they_take_at_least() -> None:
    """Without exchanges and with one operator after another, that is the sum of the operators' times."""
    graph, machine = draw_graph(2, 3), load_machine("dgx-a100")
    space = space_of(graph, machine, 3)
    tables, _ = space.build_time_problems()
    plans = list(list_small_plans(space, tables))
    assert [least for least, _ in plans] == sorted(least for least, _ in plans)
    assert len({plan for _, plan in plans}) == len(plans)
    sizes = [range(len(candidates)) for candidates in space.problem.candidates]
    assert {plan for _, plan in plans} <= set(itertools.product(*sizes))
    assert all(least <= sum_times(tables, plan) for least, plan in plans)


def test_changes_are_tried_even_if_many_plans_of_a_small_graph_promise_more() -> None:
    """On four sites, a plan of chain B that is one change away from the optimum of the tables is faster, and hundreds
    of plans seem as good to the estimate that sees no links."""
    text = (MODELS / "chain_b.ein").read_text(encoding="utf-8")
    graph = fuse(build_graph(text, "chain_b.ein", (("scale", "2"),), None, None))
    fastest = find_fastest(graph, load_at_peak("dgx-a100"), 4, naive=True, budget=SearchBudget())
    times = {contender.name: contender.predicted_ms for contender in fastest.plan.contenders}
    assert fastest.program is not None
    assert times["time"] is not None
    assert fastest.program.predicted_ms < 0.97 * times["time"]
