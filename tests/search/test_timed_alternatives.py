"""The fastest alternative of an operator, against the tables of the whole graph with one candidate replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.frontend import build as build_graph
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.options import FASTEST
from einc.search import alternatives
from einc.search.alternatives import AlternativeTimer
from einc.search.neighbours import sum_times
from einc.search.tables import UNITS_PER_MS, build_time_problems

TEXT = """
dim n = 300
dim m = 210
input x : f16[n, m]
input z : f16[n, m]
weight w : f16[m, m]
a = matmul(x, w)
b[n, m] = a[n, m] * x[n, m] + z[n, m]
c = matmul(b, w)
d[n, m] = c[n, m] * a[n, m] + b[n, m]
e = softmax(d)
f = matmul(d, w)
g = matmul(f, w)
h = matmul(g, w)
output e, h, a
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("naive", [True, False])
@pytest.mark.parametrize("once", [True, False])
def test_one_candidate_replaced_in_the_whole_graph(naive: bool, once: bool) -> None:
    """Tensors with several readers, saved ones, and equal operators with unequal surroundings are among them."""
    graph, machine, sites = build_graph(TEXT, "m.ein", (), None, None), load_machine("dgx-v100", None), 6
    problem = build_problem(graph, sites, flexible=True)
    both = build_time_problems(graph, problem.candidates, machine, sites, once=once)
    tables = both[0] if naive else both[1]
    for seed in range(2):
        chosen = [(7 * n + 5 * seed * n + seed) % len(options) for n, options in enumerate(problem.candidates)]
        choices = build_choices(graph, problem, tuple(chosen))
        plan = LogicalPlan(graph, sites, FASTEST, choices, exact=False, cut_cost=0)
        timer = AlternativeTimer(replace(plan, input_placement="once" if once else "replicated"), machine, naive=naive)
        now = sum_times(tables, chosen)
        for n, node in enumerate(graph.nodes):
            alternatives = [i for i in range(len(problem.candidates[n])) if i != chosen[n]]
            added = [sum_times(tables, [*chosen[:n], i, *chosen[n + 1 :]]) - now for i in alternatives]
            timed = timer.find(node.name)
            assert timed is not None
            assert round(timed.added_ms * UNITS_PER_MS) == min(added)
            assert timed.candidate == problem.candidates[n][alternatives[added.index(min(added))]]


def test_no_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "dim n = 1\ninput x : f32[n]\noutput y = exp(x)\n"
    graph, machine = build_graph(text, "m.ein", (), None, None), load_machine("dgx-a100", None)
    problem = build_problem(graph, 1, flexible=True)
    plan = LogicalPlan(graph, 1, FASTEST, build_choices(graph, problem, (0,)), exact=False, cut_cost=0)
    assert AlternativeTimer(plan, machine, naive=True).find("y") is None
    graph = build_graph(TEXT, "m.ein", (), None, None)
    problem = build_problem(graph, 2, flexible=True)
    plan = LogicalPlan(graph, 2, FASTEST, build_choices(graph, problem, (0,) * 8), exact=False, cut_cost=0)
    assert AlternativeTimer(plan, machine, naive=True).find("a") is not None
    monkeypatch.setattr(alternatives, "MAX_TIMED_SITES", 1)
    assert AlternativeTimer(plan, machine, naive=True).find("a") is None
