"""The paper's five workloads against an optimum that an integer program finds over the same candidates."""

from __future__ import annotations

import functools
from pathlib import Path

import highspy
import numpy as np
import pytest

from einc.frontend import build
from einc.graph.fuse import fuse
from einc.logical.optimize import optimize
from einc.logical.problem import Problem, build_problem

MODEL = Path(__file__).parents[2] / "models" / "llama_block.ein"
# What the cut heuristic costs above the optimum, in percent, where it costs more.
GAPS = {("b1x8k", 8): 2.49, ("b8x1k", 8): 3.46}


def integer_optimum(problem: Problem) -> int:
    """The least cost: a 0-1 variable per candidate, and one per tiling on which both ends of an edge agree."""
    model = highspy.Highs()
    model.silent()
    # HiGHS has one pool of threads in a process, and refuses to run with another number of them later.
    model.setOptionValue("threads", 1)
    base = 0
    chosen = []
    for options in problem.candidates:
        costs = [candidate.join + candidate.aggregation for candidate in options]
        variables = [model.addBinary(obj=cost - min(costs)) for cost in costs]
        model.addConstr(functools.reduce(lambda a, b: a + b, variables) == 1)
        base += min(costs)
        chosen.append(variables)
    for edge in (edge for edges in problem.arriving for edge in edges):
        base += edge.size
        for tiling in np.intersect1d(edge.produced, edge.required).tolist():
            agree = model.addVariable(lb=0, ub=1, obj=-edge.size)
            for node, numbers in ((edge.producer, edge.produced), (edge.consumer, edge.required)):
                takers = [chosen[node][c] for c in np.flatnonzero(numbers == tiling).tolist()]
                model.addConstr(agree <= functools.reduce(lambda a, b: a + b, takers))
    model.setOptionValue("mip_rel_gap", 0.0)
    model.run()
    assert model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return base + round(model.getObjectiveValue())


@pytest.mark.parametrize("preset", ["b1x1k", "b1x8k", "b1x128k", "b8x1k", "b128x1k"])
@pytest.mark.parametrize("sites", [4, 8])
def test_no_plan_of_a_workload_costs_less_than_the_one_found(preset: str, sites: int) -> None:
    graph = fuse(build(MODEL.read_text(), str(MODEL), preset=preset))
    plan = optimize(graph, sites)
    assert plan.exact
    assert plan.total_cost == integer_optimum(build_problem(graph, sites))
    assert round(100 * (plan.cut_cost / plan.total_cost - 1), 2) == GAPS.get((preset, sites), 0)
