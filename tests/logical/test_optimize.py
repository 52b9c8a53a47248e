"""The optimizer against brute force over all plans, and against the figures of the paper."""

from __future__ import annotations

from math import prod

import pytest
from logical_toys import brute_force, counts, random_graph, rank_of_plan

from einc.logical.optimize import optimize


def plans_of(graph, sites):
    return prod(len(counts(sites, [index.most for index in node.operator.indices])) for node in graph.nodes)


def agrees(graph, sites):
    plan = optimize(graph, sites)
    cost, earliness, intervals = brute_force(graph, sites)
    assert plan.exact
    assert plan.total_cost == cost <= plan.cut_cost
    assert rank_of_plan(graph, {c.node: c.candidate.spec for c in plan.choices}) == (cost, earliness)
    assert tuple(choice.candidate.intervals for choice in plan.choices) == intervals


@pytest.mark.parametrize("tree", [True, False], ids=["tree", "dag"])
@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force(seed, tree):
    graph = random_graph(seed, 2 + seed % 5, tree, square=8 if seed % 4 == 0 else None)
    for sites in (2, 3, 4, 6, 7, 8):
        if plans_of(graph, sites) <= 20_000:
            agrees(graph, sites)
