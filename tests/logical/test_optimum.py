"""The optimizer against brute force over all plans, and against the figures of the paper."""

from __future__ import annotations

import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from einc.core.tensor import DType, TensorDesc
from einc.errors import UsageError
from einc.graph.graph import TensorKind
from einc.logical import minsum
from einc.logical.optimize import COST_SELECTORS, optimize
from einc.ops.registry import call
from tests.support.logical_toys import Builder, brute_force, counts, own_cost, random_graph, rank_of_plan, specs, toy
from tests.support.sampling import first


def chosen_counts(plan):
    return [tuple(map(len, choice.candidate.intervals)) for choice in plan.choices]


def chosen_specs(plan):
    return {choice.node: choice.candidate.spec for choice in plan.choices}


def plans_of(graph, sites):
    return prod(len(counts(sites, [index.max_intervals for index in node.operator.indices])) for node in graph.nodes)


def agrees(graph, sites):
    plan = optimize(graph, sites)
    cost, earliness, intervals = brute_force(graph, sites)
    assert plan.exact
    assert plan.total_cost == cost <= plan.cut_cost
    assert rank_of_plan(graph, chosen_specs(plan)) == (cost, earliness)
    assert tuple(choice.candidate.intervals for choice in plan.choices) == intervals
    return plan


# ---- brute force ----


@pytest.mark.sampled(6)
@pytest.mark.parametrize("tree", [True, False], ids=["tree", "dag"])
@pytest.mark.parametrize("seed", first(40, range(60)))
def test_equals_brute_force(seed, tree):
    graph = random_graph(seed, 2 + seed % 5, tree, square=8 if seed % 4 == 0 else None)
    for sites in (2, 3, 4, 6, 7, 8):
        if plans_of(graph, sites) <= 10_000:
            plan = agrees(graph, sites)
            if tree:
                assert plan.cut_cost == plan.total_cost  # one tree per output: nothing is cut


@pytest.mark.slow
@pytest.mark.parametrize("tree", [True, False], ids=["tree", "dag"])
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_equals_brute_force_at_length(seed, tree):
    graph = random_graph(seed, 2 + seed % 5, tree, square=(None, 6, 8, 12)[seed % 4])
    for sites in (2, 3, 4, 5, 6, 7, 8, 9, 12):
        if plans_of(graph, sites) <= 300_000:
            agrees(graph, sites)


@pytest.mark.parametrize("exponent", range(54, 66))
def test_costs_that_64_bits_do_not_hold(exponent):
    """Sums of costs that are just below and far beyond what a machine integer holds."""
    i, j = 7, 2**exponent + 3
    builder = Builder()
    (a,) = builder.apply(toy("ij -> ij", i=i, j=j), builder.input("x", i, j))
    (b,) = builder.apply(toy("ij -> ji", j=j, i=i), a)
    (c,) = builder.apply(toy("ij ji -> i", {"i": (5,)}, i=i, j=j), a, b)
    agrees(builder.graph(c), 4)


def test_the_random_graphs_have_repartitions_and_imperfect_cuts():
    """Without these the comparison above would show little."""
    plans = [optimize(random_graph(seed, 2 + seed % 5, False), 6) for seed in range(60)]
    assert sum(plan.cut_cost > plan.total_cost for plan in plans) >= 5
    assert sum(any(choice.repartition for choice in plan.choices) for plan in plans) >= 15


# ---- the paper's figures ----


def matmul(m, n, k):
    left, right = TensorDesc(("a", "b"), (m, n), DType.F32), TensorDesc(("b", "c"), (n, k), DType.F32)
    return call("matmul", [left, right], {})


def single(operator):
    builder = Builder()
    inputs = [builder.input(f"x{k}", *desc.shape) for k, desc in enumerate(operator.inputs)]
    return builder.graph(*builder.apply(operator, *inputs))


@pytest.mark.parametrize(("extent", "q"), [(8192, 2), (8192, 4), (8100, 3), (720, 1)])
@pytest.mark.parametrize("make", [matmul, lambda m, n, k: toy("ij jk -> ik", i=m, j=n, k=k)], ids=["registry", "toy"])
def test_3d_matmul(extent, q, make):
    plan = optimize(single(make(extent, extent, extent)), q**3)
    assert chosen_counts(plan) == [(q, q, q)]
    assert plan.total_cost == plan.cut_cost == (3 * q - 1) * extent**2
    assert plan.exact
    if (extent, q) == (8192, 2):
        assert plan.total_cost == 335_544_320


@pytest.mark.parametrize("make", [matmul, lambda m, n, k: toy("ij jk -> ik", i=m, j=n, k=k)], ids=["registry", "toy"])
def test_chain_c(make):
    builder = Builder()
    a, b, c = builder.input("a", 10240, 12288), builder.input("b", 12288, 32768), builder.input("c", 32768, 2048)
    (inner,) = builder.apply(make(12288, 32768, 2048), b, c)
    plan = optimize(builder.graph(*builder.apply(make(10240, 12288, 2048), a, inner)), 8)
    assert plan.total_cost == 859_832_320
    assert plan.exact


# ---- ties ----


def test_repartition_as_late_as_possible():
    """Of four equal places for the one unavoidable repartition of a chain, the last is taken."""
    builder = Builder()
    tensor = builder.input("x", 8, 8)
    steps = [toy("ij -> ij", {"j": ()}, i=8, j=8)]  # may be cut by rows only
    steps += [toy("ij -> ij", i=8, j=8)] * 3
    steps += [toy("ij -> ij", {"i": ()}, i=8, j=8)]  # by columns only
    for step in steps:
        (tensor,) = builder.apply(step, tensor)
    plan = agrees(builder.graph(tensor), 4)
    assert [choice.repartition for choice in plan.choices] == [0, 0, 0, 0, 64]
    assert chosen_counts(plan) == [(4, 1)] * 4 + [(1, 4)]


def test_lateness_counts_before_intervals():
    """The first two nodes would come first with rows, but then the repartition would come early."""
    builder = Builder()
    tensor = builder.input("x", 8, 8)
    steps = [toy("ij -> ij", {"i": ()}, i=8, j=8), toy("ij -> ij", i=8, j=8), toy("ij -> ij", {"j": ()}, i=8, j=8)]
    for step in steps:
        (tensor,) = builder.apply(step, tensor)
    plan = agrees(builder.graph(tensor), 2)
    assert chosen_counts(plan) == [(1, 2), (1, 2), (2, 1)]


def test_lexicographically_first_intervals():
    for sites in (2, 5, 6):
        plan = optimize(single(toy("ij jk -> ik", i=30, j=30, k=30)), sites)
        best = min(own_cost(spec) for _, spec in specs(plan.graph.nodes[0].operator, sites))
        first = next(r for r, spec in specs(plan.graph.nodes[0].operator, sites) if own_cost(spec) == best)
        assert plan.choices[0].candidate.intervals == first
    builder = Builder()
    tensor = builder.input("x", 12, 12)
    for _ in range(4):
        (tensor,) = builder.apply(toy("ij -> ji", i=12, j=12), tensor)
    assert chosen_counts(optimize(builder.graph(tensor), 6)) == [(6, 1), (1, 6)] * 2


# ---- shapes of graphs ----


def test_inputs_and_weights_never_pay():
    builder = Builder()
    x, w = builder.input("x", 8, 8), builder.input("w", 8, 8, kind=TensorKind.WEIGHT)
    rows, columns = toy("ij ij -> ij", {"j": ()}, i=8, j=8), toy("ij ij -> ij", {"i": ()}, i=8, j=8)
    first, second = builder.apply(rows, x, w), builder.apply(columns, x, w)
    plan = agrees(builder.graph(*first, *second), 4)
    assert plan.total_cost == 4 * 64


def test_a_tensor_read_twice_by_one_node_pays_twice():
    builder = Builder()
    (total,) = builder.apply(toy("ij -> ij", {"j": ()}, i=8, j=8), builder.input("x", 8, 8))
    plan = agrees(builder.graph(*builder.apply(toy("ij ij -> ij", {"i": ()}, i=8, j=8), total, total)), 2)
    assert plan.choices[1].repartition == 128


def test_several_outputs_to_one_consumer():
    """The producer's tilings of its outputs must come from one candidate."""
    builder = Builder()
    x = builder.input("x", 12, 10)
    diagonal, rows, columns = builder.apply(toy("ij -> ij i j", i=12, j=10), x)
    (out,) = builder.apply(toy("ij i j -> ij", {"i": (3, 6), "j": (5,)}, i=12, j=10), diagonal, rows, columns)
    for sites in (2, 3, 4, 6):
        plan = agrees(builder.graph(out), sites)
        assert plan.cut_cost == plan.total_cost


def test_several_outputs_to_several_consumers():
    builder = Builder()
    diagonal, rows = builder.apply(toy("ij -> ij i", i=12, j=10), builder.input("x", 12, 10))
    (left,) = builder.apply(toy("ij -> ij", {"i": ()}, i=12, j=10), diagonal)
    (right,) = builder.apply(toy("i -> i", i=12), rows)
    (out,) = builder.apply(toy("ij i -> ij", i=12, j=10), left, right)
    for sites in (2, 4, 5):
        agrees(builder.graph(out, rows), sites)


def test_no_operators():
    builder = Builder()
    plan = optimize(builder.graph(builder.input("x", 3)), 8)
    assert (plan.choices, plan.total_cost, plan.cut_cost, plan.exact) == ((), 0, 0, True)


def test_extents_beyond_64_bits():
    """Coprime extents, so that no common unit brings the costs back into 64 bits."""
    i, j, k = 2**40 + 1, 2**41 + 1, 2**43 - 1
    builder = Builder()
    (tensor,) = builder.apply(toy("ij -> ij", {"j": ()}, i=i, j=j), builder.input("x", i, j))
    (tensor,) = builder.apply(toy("ij -> ji", i=i, j=j), tensor)
    (tensor,) = builder.apply(toy("ij jk -> ik", i=j, j=i, k=k), tensor, builder.input("w", i, k))
    for sites in (2, 6):
        plan = agrees(builder.graph(tensor), sites)
        assert plan.total_cost > 2**80


def test_idle_sites_and_primes():
    builder = Builder()
    tensor = builder.input("x", 5, 3)
    for step in (toy("ij -> ij", i=5, j=3), toy("ij -> i", i=5, j=3), toy("i -> .", i=5)):
        (tensor,) = builder.apply(step, tensor)
    graph = builder.graph(tensor)
    for sites in (1, 2, 3, 5, 7, 11, 13, 16):
        plan = agrees(graph, sites)
        used = [len(choice.candidate.spec.functions) for choice in plan.choices]
        assert used == [max(a * b for a in range(1, 6) for b in range(1, 4) if a * b <= sites)] * 2 + [min(sites, 5)]


def chain(links, extent):
    builder = Builder()
    tensor = builder.input("x", extent, extent)
    for n in range(links):
        tensor = builder.apply(
            toy("ij jk -> ik", i=extent, j=extent, k=extent), tensor, builder.input(f"w{n}", extent, extent)
        )[0]
        tensor = builder.apply(toy("ij -> ij", i=extent, j=extent), tensor)[0]
    return builder.graph(tensor)


@pytest.mark.parametrize("sites", [64, 71, 72])
def test_many_sites(sites):
    plan = optimize(chain(20, 1000), sites)
    assert plan.exact
    assert {len(choice.candidate.spec.functions) for choice in plan.choices} == {sites}
    assert plan.total_cost == plan.cut_cost == rank_of_plan(plan.graph, chosen_specs(plan))[0]


# ---- where exactness cannot be afforded ----


def test_falls_back_to_the_cut_heuristic(monkeypatch):
    graph = next(
        graph
        for graph in (random_graph(seed, 6, False) for seed in range(200))
        if (plan := optimize(graph, 6)).cut_cost > plan.total_cost
    )
    best = optimize(graph, 6)
    monkeypatch.setattr(minsum, "MAX_TABLE_ENTRIES", 1)
    plan = optimize(graph, 6)
    assert not plan.exact
    assert plan.total_cost == plan.cut_cost == best.cut_cost > best.total_cost


def test_a_dense_graph_is_bounded():
    """Every node reads all nodes before it: no order is narrow, and the heuristic must answer in time."""
    builder = Builder()
    tensors = [builder.input("x", 720, 720)]
    for _ in range(8):
        tensors += builder.apply(toy(" ".join(["ij"] * len(tensors)) + " -> ij", i=720, j=720), *tensors)
        tensors += builder.apply(toy("ij -> ji", i=720, j=720), tensors[-1])
    plan = optimize(builder.graph(tensors[-1]), 72)
    assert plan.total_cost == rank_of_plan(plan.graph, chosen_specs(plan))[0]
    assert plan.exact or plan.total_cost == plan.cut_cost


# ---- selectors ----


def test_greedy_takes_each_operators_own_cheapest():
    for seed in range(30):
        graph = random_graph(seed, 5, False)
        plan = optimize(graph, 6, "greedy")
        for node, choice in zip(graph.nodes, plan.choices, strict=True):
            offered = specs(node.operator, 6)
            best = min(own_cost(spec) for _, spec in offered)
            assert choice.candidate.intervals == next(r for r, spec in offered if own_cost(spec) == best)
        assert plan.total_cost == rank_of_plan(graph, chosen_specs(plan))[0] >= optimize(graph, 6).total_cost


def test_random_is_uniform_seeded_and_costed():
    graph = single(toy("ij jk -> ik", i=8, j=8, k=8))
    seen: dict[object, int] = {}
    for seed in range(1000):
        plan = optimize(graph, 8, "random", seed)
        assert plan == optimize(graph, 8, "random", seed)
        seen[plan.choices[0].candidate.intervals] = seen.get(plan.choices[0].candidate.intervals, 0) + 1
    assert len(seen) == 10
    assert 60 < min(seen.values()) <= max(seen.values()) < 140
    graph = chain(6, 64)
    plan = optimize(graph, 8, "random", 3)
    assert plan.total_cost == rank_of_plan(graph, chosen_specs(plan))[0]
    assert chosen_counts(plan) != chosen_counts(optimize(graph, 8, "random", 4))


def test_random_draws_are_those_of_the_generator():
    """Frozen: another version of Python must draw the same plan from the same seed."""
    plan = optimize(chain(2, 64), 8, "random", 2024)
    assert chosen_counts(plan) == [(2, 2, 2), (2, 4), (2, 4, 1), (1, 8)]


def test_every_selector_reports_the_cut_heuristic():
    graph = random_graph(7, 6, False)
    plans = [optimize(graph, 6, selector) for selector in COST_SELECTORS]
    assert len({plan.cut_cost for plan in plans}) == 1
    assert [plan.selector for plan in plans] == list(COST_SELECTORS)
    assert [plan.exact for plan in plans] == [True, False, False]


def test_an_unknown_selector():
    with pytest.raises(UsageError, match="clever"):
        optimize(chain(1, 8), 2, "clever")


# ---- determinism ----


ROOT = Path(__file__).parents[2]
SCRIPT = """
from tests.support.logical_toys import random_graph
from einc.logical.plan import dump_plan
from einc.logical.optimize import COST_SELECTORS, optimize
for seed in range(12):
    for selector in ("eindecomp", "greedy", "random"):
        print(dump_plan(optimize(random_graph(seed, 6, False, square=12), 6, selector, seed)))
"""


@pytest.mark.slow
def test_the_hash_seed_changes_nothing():
    texts = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert "logical plan random11" in texts.pop()
