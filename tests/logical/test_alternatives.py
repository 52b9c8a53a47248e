"""Alternatives: each must cost what the whole plan costs with one choice replaced."""

from __future__ import annotations

import pytest

from einc.logical.alternatives import find_next_best, list_alternatives
from einc.logical.optimize import optimize
from tests.support.logical_toys import Builder, random_graph, rank_of_plan, repartitions, specs, toy


@pytest.mark.parametrize("selector", ["eindecomp", "random"])
@pytest.mark.parametrize("seed", range(15))
def test_whole_plan_with_one_choice_replaced(seed, selector):
    graph = random_graph(seed, 5, False)
    plan = optimize(graph, 6, selector, seed)
    chosen = {choice.node: choice.candidate.spec for choice in plan.choices}
    for node in graph.nodes:
        found = list_alternatives(plan, node.name)
        expected = []
        for request, spec in specs(node.operator, 6):
            replaced = chosen | {node.name: spec}
            own = {n.name: replaced[n.name] for n in graph.nodes}
            expected.append((rank_of_plan(graph, own)[0], request))
            one = next(one for one in found if one.candidate.intervals == request)
            touching = sum(size for size, _ in repartitions(graph, own))
            away = sum(size for size, _ in repartitions(graph, {k: v for k, v in own.items() if k != node.name}))
            assert one.repartition + one.handover == touching - away
        assert [(one.total_cost, one.candidate.intervals) for one in found] == sorted(expected)
        second = find_next_best(plan, node.name)
        others = [entry for entry in sorted(expected) if entry[1] != chosen_intervals(plan, node.name)]
        assert (second and (second.total_cost, second.candidate.intervals)) == (others[0] if others else None)
        if selector == "eindecomp":
            assert found[0].total_cost == plan.total_cost


def chosen_intervals(plan, name):
    return next(choice.candidate.intervals for choice in plan.choices if choice.node == name)


def test_unknown_node():
    builder = Builder()
    plan = optimize(builder.graph(*builder.apply(toy("i -> i", i=4), builder.input("x", 4))), 2)
    with pytest.raises(KeyError):
        list_alternatives(plan, "y")
