"""The cut heuristic against an independent reading of the paper: cut, sort, and try every plan of every tree."""

from __future__ import annotations

import itertools

import pytest

from einc.logical.optimize import choose_by_cuts, cut_into_trees, optimize
from einc.logical.problem import build_problem
from tests.support.logical_toys import Builder, own_cost, random_graph, rank_of_plan, repartitions, specs, toy


def names_of_trees(graph):
    """Trees as sets of node names, by union of every node with its only consumer, largest first."""
    groups = {node.name: {node.name} for node in graph.nodes}
    readers = {node.name: {r.name for out in node.outputs for r, _ in graph.consumers()[out]} for node in graph.nodes}
    for name, consumers in readers.items():
        if len(consumers) == 1:
            merged = groups[name] | groups[next(iter(consumers))]
            for member in merged:
                groups[member] = merged
    position = {node.name: n for n, node in enumerate(graph.nodes)}
    distinct = {frozenset(group) for group in groups.values()}
    ordered = sorted(distinct, key=lambda group: (-len(group), max(position[name] for name in group)))
    return [sorted(group, key=position.__getitem__) for group in ordered]


def reference(graph, sites):
    """The heuristic's plan by brute force over each tree, given the specs of the trees before it."""
    nodes = {node.name: node for node in graph.nodes}
    fixed = {}
    for tree in names_of_trees(graph):
        best = None
        for combination in itertools.product(*(specs(nodes[name].operator, sites) for name in tree)):
            tried = {name: spec for name, (_, spec) in zip(tree, combination, strict=True)}
            moved = list(repartitions(graph, fixed | tried))  # edges to trees still to come are not there
            cost = sum(map(own_cost, tried.values())) + sum(size for size, _ in moved)
            earliness = sum(len(graph.nodes) - position for _, position in moved)
            rank = (cost, earliness, tuple(request for request, _ in combination))
            if best is None or rank < best[0]:
                best = (rank, tried)
        fixed |= best[1]
    return fixed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(40))
def test_equals_the_reference(seed):
    graph = random_graph(seed, 3 + seed % 4, False, square=8 if seed % 3 == 0 else None)
    for sites in (2, 6):
        problem = build_problem(graph, sites)
        expected = reference(graph, sites)
        solutions = {
            n.name: o[c].spec for n, o, c in zip(graph.nodes, problem.candidates, choose_by_cuts(problem), strict=True)
        }
        assert solutions == expected
        assert optimize(graph, sites).cut_cost == rank_of_plan(graph, expected)[0]


def test_trees_by_hand():
    builder = Builder()
    a = builder.input("a", 4, 4)
    (n0,) = builder.apply(toy("ij -> ij", i=4, j=4), a)
    (n1,) = builder.apply(toy("ij -> ij", i=4, j=4), n0)  # read by n2 and n3: its edges are cut
    (n2,) = builder.apply(toy("ij -> ij", i=4, j=4), n1)
    (n3,) = builder.apply(toy("ij -> ij", i=4, j=4), n1)
    (n4,) = builder.apply(toy("ij ij -> ij", i=4, j=4), n2, n3)
    (n5,) = builder.apply(toy("ij ij -> ij", i=4, j=4), n4, n4)  # one consumer, twice: stays in its tree
    diagonal, rows = builder.apply(toy("ij -> ij i", i=4, j=4), n5)  # both outputs to one consumer: the same
    (n7,) = builder.apply(toy("ij i -> ij", i=4, j=4), diagonal, rows)
    diagonal, rows = builder.apply(toy("ij -> ij i", i=4, j=4), a)  # outputs to two consumers: cut
    (n9,) = builder.apply(toy("ij -> ij", i=4, j=4), diagonal)
    (n10,) = builder.apply(toy("i -> i", i=4), rows)
    problem = build_problem(builder.graph(n7, n9, n10), 2)
    assert cut_into_trees(problem) == [[2, 3, 4, 5, 6, 7], [0, 1], [8], [9], [10]]


def test_fixed_consumers_are_charged():
    """The producer's tree comes last here, and must serve the two consumers that are fixed by then."""
    builder = Builder()
    x = builder.input("x", 8, 8)
    (shared,) = builder.apply(toy("ij -> ij", i=8, j=8), x)
    outputs = []
    for _ in range(2):
        (tensor,) = builder.apply(toy("ij -> ij", {"i": ()}, i=8, j=8), shared)
        outputs += builder.apply(toy("ij -> ij", i=8, j=8), tensor)
    plan = optimize(builder.graph(*outputs), 4)
    assert plan.cut_cost == plan.total_cost == 5 * 64
    assert [tuple(map(len, choice.candidate.intervals)) for choice in plan.choices] == [(1, 4)] * 5
