"""The time tables of a producer and a consumer against the simulated plan of the two."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.machines.model import KernelRate
from einc.physical.build import build
from einc.search.neighbours import sum_times
from einc.search.tables import UNITS_PER_MS, build_time_problems
from tests.support.logical_toys import Builder, random_graph, toy
from tests.support.search_toys import scale_graph

RATES = (("aggregate", KernelRate(9.0, gbs=90.0)), ("copy", KernelRate(5.0, gbs=40.0)))
"""Far from what data sheets say, as those of a machine that was measured may be."""


def compare(seed: int, plans: int, rates: tuple[tuple[str, KernelRate], ...] = ()) -> list[float]:
    """The times of the tables, as parts of the simulated ones, for plans of two operators on alike sites."""
    graph = scale_graph(random_graph(seed, 2, tree=seed % 2 == 0), (30, 150, 300)[seed % 3])
    producers = graph.producers()
    if len(graph.nodes) != 2 or not any(name in producers for name in graph.nodes[1].inputs):
        return []
    sites, machine = 2 + seed % 4, load_machine(("dgx-a100", "dgx-h100")[seed % 2])
    machine = replace(machine, sites=tuple(replace(site, kernels=rates) for site in machine.sites))
    problem = build_problem(graph, sites, flexible=True)
    tables, _ = build_time_problems(graph, problem.candidates, machine, sites)
    rng, estimates = random.Random(seed), []
    for _ in range(plans):
        chosen = tuple(rng.randrange(len(candidates)) for candidates in problem.candidates)
        choices = build_choices(graph, problem, chosen)
        plan = LogicalPlan(graph, sites, "by hand", choices, exact=False, cut_cost=0, spread=False)
        estimates.append(sum_times(tables, chosen) / UNITS_PER_MS / build(plan, machine).predicted_ms)
    return estimates


@pytest.mark.parametrize("rates", [(), RATES])
def test_tables_of_two_operators_are_their_simulated_time(rates: tuple[tuple[str, KernelRate], ...]) -> None:
    """Nearly all are exact. Others are mostly above: tables add exchanges of several tensors, which may overlap."""
    parts = [part for seed in range(60) for part in compare(seed, 3, rates)]
    assert len(parts) > 80
    assert all(0.7 < part < 1.6 for part in parts)
    assert sum(abs(part - 1) < 1e-6 for part in parts) >= 0.85 * len(parts)
    assert sum(abs(part - 1) < 0.02 for part in parts) >= 0.9 * len(parts)


@pytest.mark.parametrize("equation", ["ij ij -> ij", "ij ij -> i"])
def test_a_tensor_that_a_node_reads_twice_moves_once(equation: str) -> None:
    builder = Builder()
    (product,) = builder.apply(toy("ij -> ji", i=700, j=900), builder.input("x", 700, 900))
    (twice,) = builder.apply(toy(equation, i=900, j=700), product, product)
    graph, machine = builder.graph(twice), load_machine("dgx-a100")
    problem = build_problem(graph, 4, flexible=True)
    tables, _ = build_time_problems(graph, problem.candidates, machine, 4)
    for chosen in ((0, 0), (1, 0), (0, 1), (2, 1)):
        plan = LogicalPlan(graph, 4, "by hand", build_choices(graph, problem, chosen), False, 0, False)
        told = sum_times(tables, chosen) / UNITS_PER_MS
        assert told == pytest.approx(build(plan, machine).predicted_ms, rel=1e-6)
