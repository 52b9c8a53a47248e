"""Alternatives: each must cost what the whole plan costs with one choice replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.logical.alternatives import find_next_best, list_alternatives
from einc.logical.candidates import build_candidates, enumerate_candidates
from einc.logical.optimize import optimize
from einc.logical.plan import Choice
from tests.support.logical_toys import Builder, random_graph, rank_of_plan, repartitions, specs, toy


@pytest.mark.parametrize("selector", ["eindecomp", "random"])
@pytest.mark.parametrize("seed", range(15))
def test_whole_plan_with_one_choice_replaced(seed, selector):
    graph = random_graph(seed, 5, False)
    plan = optimize(graph, 6, selector, seed)
    chosen = {choice.node: choice.candidate.spec for choice in plan.choices}
    for node in graph.nodes:
        alternatives = list_alternatives(plan, node.name)
        expected = []
        for request, spec in specs(node.operator, 6):
            replaced = chosen | {node.name: spec}
            cuts = {n.name: replaced[n.name] for n in graph.nodes}
            expected.append((rank_of_plan(graph, cuts)[0], request))
            alternative = next(candidate for candidate in alternatives if candidate.candidate.intervals == request)
            touching = sum(size for size, _ in repartitions(graph, cuts))
            away = sum(size for size, _ in repartitions(graph, {k: v for k, v in cuts.items() if k != node.name}))
            assert alternative.repartition + alternative.handover == touching - away
        assert [(alternative.total_cost, alternative.candidate.intervals) for alternative in alternatives] == sorted(
            expected
        )
        second = find_next_best(plan, node.name)
        rejected = [entry for entry in sorted(expected) if entry[1] != chosen_intervals(plan, node.name)]
        assert (second and (second.total_cost, second.candidate.intervals)) == (rejected[0] if rejected else None)
        if selector == "eindecomp":
            assert alternatives[0].total_cost == plan.total_cost


def chosen_intervals(plan, name):
    return next(choice.candidate.intervals for choice in plan.choices if choice.node == name)


def test_unknown_node():
    builder = Builder()
    plan = optimize(builder.graph(*builder.apply(toy("i -> i", i=4), builder.input("x", 4))), 2)
    with pytest.raises(KeyError):
        list_alternatives(plan, "y")


def test_a_choice_beyond_the_papers_candidates_is_among_the_alternatives():
    """Computed on all sites, or on two: the others are the strict candidates, and the plan costs what it does."""
    builder = Builder()
    (h,) = builder.apply(toy("ij -> ij", i=4, j=6), builder.input("x", 4, 6))
    plan = optimize(builder.graph(*builder.apply(toy("ij -> ij", i=4, j=6), h)), 4)
    (first, second), node = plan.choices, plan.graph.nodes[1]
    for candidate in (build_candidates(node.operator, (1, 1), 4)[0], build_candidates(node.operator, (1, 2))[0]):
        changed = replace(plan, choices=(first, Choice(second.node, candidate, 24)))
        alternatives = list_alternatives(changed, second.node)
        assert len(alternatives) == 1 + len(enumerate_candidates(node.operator, 4))
        assert (
            next(alternative for alternative in alternatives if alternative.candidate == candidate).total_cost
            == changed.total_cost
        )
        best = find_next_best(changed, second.node)
        assert best is not None
        assert (best.total_cost, best.candidate) == (plan.total_cost, second.candidate)
