"""The time tables for inputs that lie on one site each, against whole plans that are simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.frontend import build as build_graph
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.physical.build import build
from einc.search.neighbours import sum_times
from einc.search.tables import UNITS_PER_MS, build_time_problems
from tests.support.peak_machines import load_at_peak

ONE_INPUT = """
dim n = 1000
dim m = 1400
input x : f16[n, m]
y[n] = sum[m](x[n, m] * x[n, m])
z[m] = max[n](x[n, m])
output y, z
"""
PRODUCT = """
dim n = 1024
dim m = 2048
dim k = 512
input x : f16[n, m]
weight w : f16[m, k]
output y = matmul(x, w)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("machine", "sites"), [("dgx-a100", 6), ("dgx-h100", 5), ("dgx-v100", 4)])
def test_bringing_inputs_takes_what_whole_plans_say(machine: str, sites: int) -> None:
    """Exactly, where one input moves; where two do, the tables add what may overlap."""
    graph, site = build_graph(PRODUCT, "m.ein", (), None, None), load_at_peak(machine)
    problem = build_problem(graph, sites, flexible=True)
    before = build_time_problems(graph, problem.candidates, site, sites)[0]
    tables = build_time_problems(graph, problem.candidates, site, sites, once=True)[0]
    exact = 0
    for i, candidate in enumerate(problem.candidates[0]):
        choices = build_choices(graph, problem, (i,))
        plan = LogicalPlan(
            graph, sites, "by hand", choices, exact=False, cut_cost=0, spread=False
        )  # function i at site i
        simulated = build(replace(plan, input_placement="once"), site).predicted_ms - build(plan, site).predicted_ms
        told = (sum_times(tables, (i,)) - sum_times(before, (i,))) / UNITS_PER_MS
        counts = [len(intervals) for intervals in candidate.intervals]
        if candidate.replicas == 1 and 1 in (counts[0], counts[2]):
            assert told == pytest.approx(simulated, rel=1e-6, abs=1e-9), counts
            exact += 1
        assert simulated - 1e-9 <= told <= 2 * simulated + 2e-3 * site.transfer_latency_us
    assert exact > 4


def test_a_second_reader_pays_for_what_the_first_does_not_leave() -> None:
    graph, machine = build_graph(ONE_INPUT, "m.ein", (), None, None), load_machine("dgx-a100", None)
    problem = build_problem(graph, 4)
    tables = build_time_problems(graph, problem.candidates, machine, 4, once=True)[0]
    assert [table.variables for table in tables.tables] == [(0, 1)]
    base = build_time_problems(graph, problem.candidates, machine, 4)[0]
    assert not base.tables
    for i, first in enumerate(problem.candidates[0]):
        for j, second in enumerate(problem.candidates[1]):
            told = sum_times(tables, (i, j)) - sum_times(base, (i, j))
            same = [f.inputs[0] for f in first.functions] == [f.inputs[0] for f in second.functions]
            assert (told == 0) == same
