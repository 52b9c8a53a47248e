"""Bounds of plans against plans that are built, and against what can be worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from einc.errors import MachineError
from einc.frontend import build as build_graph
from einc.graph.fuse import fuse
from einc.graph.graph import Graph
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.machines.model import Machine
from einc.physical.build import build, build_fast
from einc.physical.synthesis import SynthesizingScheduler
from tests.support.plan_bounds import PlanBounds
from tests.support.search_toys import draw_graph

MODELS = Path(__file__).parents[2] / "models"
MACHINES = ("dgx-a100", "dgx-h100", "dgx-v100")
ROUNDING = 1e-9

PRODUCTS = """
dim n = 630
dim m = 1001
input x : f16[n, m]
weight w : f16[m, m]
weight v : f16[m, m]
h = matmul(x, w)
y = matmul(h, v)
output y
"""


def require_below(graph: Graph, machine: Machine, sites: int, seeds: range, *, synthesized: bool) -> list[float]:
    """Of random plans, how large the bound is as a part of the predicted time; never above 1."""
    offers = [build_problem(graph, sites, flexible=flexible) for flexible in (True, False)]
    bounds = PlanBounds(graph, machine, sites)
    scheduler = SynthesizingScheduler(machine, sites)
    parts = []
    for seed in seeds:
        problem, rng = offers[seed % 2], random.Random(seed)
        chosen = [rng.randrange(len(own)) for own in problem.candidates]
        choices = build_choices(graph, problem, chosen)
        spread = seed % 3 > 0
        plan = LogicalPlan(graph, sites, "random", choices, exact=False, cut_cost=0, spread=spread)
        try:
            program = build_fast(plan, machine, scheduler) if synthesized else build(plan, machine)
        except MachineError:  # on a machine with missing links
            continue
        least = bounds.bound([choice.candidate for choice in choices])
        assert least <= program.predicted_ms * (1 + ROUNDING), (seed, synthesized)
        parts.append(least / program.predicted_ms)
    return parts


def require_below_toys(seed: int, plans: int) -> None:
    rng = random.Random(seed)
    graph, machine, sites = draw_graph(seed, 6), load_machine(MACHINES[seed % 3]), rng.choice((2, 3, 5, 7, 8))
    assert require_below(graph, machine, sites, range(plans), synthesized=False)
    require_below(graph, machine, min(sites, 4) if plans < 10 else sites, range(plans // 3), synthesized=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_no_plan_of_toys_beats_its_bound(seed: int) -> None:
    require_below_toys(seed, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 124))
def test_no_plan_of_many_toys_beats_its_bound(seed: int) -> None:
    require_below_toys(seed, 40)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("machine", "sites", "synthesized", "plans"),
    [
        ("dgx-a100", 5, False, 10),
        ("dgx-v100", 7, False, 6),
        pytest.param("dgx-h100", 7, True, 8, marks=pytest.mark.slow),
        pytest.param("dgx-v100", 5, True, 8, marks=pytest.mark.slow),
    ],
)
def test_no_plan_of_a_transformer_beats_its_bound(machine: str, sites: int, synthesized: bool, plans: int) -> None:
    """With packed sequences of odd lengths; attention combines tuples, and slices and replicas occur."""
    text = (MODELS / "llama_block.ein").read_text(encoding="utf-8")
    graph = fuse(build_graph(text, "llama_block.ein", (("seq_lens", "[700, 77, 1234]"),), None, None))
    parts = require_below(graph, load_machine(machine), sites, range(plans), synthesized=synthesized)
    assert sorted(parts)[len(parts) // 2] > (0.5 if machine == "dgx-a100" else 0.03)


def bound_products(machine: Machine, sites: int, cuts: tuple[dict[int, int], dict[int, int]]) -> tuple[float, float]:
    """The bound and the naive time of two products; `cuts` say into how many parts which index of each is cut."""
    graph = fuse(build_graph(PRODUCTS, "m.ein", (), None, None))
    problem = build_problem(graph, sites, flexible=True)
    chosen = [
        next(
            i
            for i, one in enumerate(own)
            if [len(cut) for cut in one.intervals] == [wanted.get(d, 1) for d in range(3)] and one.replicas == 1
        )
        for own, wanted in zip(problem.candidates, cuts, strict=True)
    ]
    choices = build_choices(graph, problem, chosen)
    plan = LogicalPlan(graph, sites, "random", choices, exact=False, cut_cost=0)
    least = PlanBounds(graph, machine, sites).bound([choice.candidate for choice in choices])
    return least, build(plan, machine).predicted_ms


def test_the_bound_of_plans_without_exchanges_is_their_time() -> None:
    machine = load_machine("dgx-a100")
    least, built = bound_products(machine, 7, ({0: 7}, {0: 7}))
    assert least == pytest.approx(built, rel=1e-9)


def test_the_bound_counts_what_must_move() -> None:
    """Columns of h become rows: what enters a site limits the exchange, and the bound knows all of it."""
    least, built = bound_products(load_machine("dgx-a100"), 7, ({2: 7}, {0: 7}))
    assert least == pytest.approx(built, rel=1e-9)


def test_the_bound_counts_what_must_be_combined() -> None:
    """Without latencies, only bytes count: four of five partial copies of h cross the links of five sites."""
    machine = load_machine("dgx-a100").ideal()
    least, built = bound_products(machine, 5, ({1: 5}, {0: 5}))
    alone, _ = bound_products(machine, 5, ({0: 5}, {0: 5}))
    moving = 4 * 630 * 1001 * 2 / (5 * 300e6)
    assert alone / 2 + moving < least <= built  # the second product comes after all that


def test_machines_that_share_cores_are_refused() -> None:
    graph = fuse(build_graph(PRODUCTS, "m.ein", (), None, None))
    with pytest.raises(ValueError, match="cores"):
        PlanBounds(graph, replace(load_machine("dgx-a100"), cores=2), 2)
