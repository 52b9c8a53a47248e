"""The selectors: from a graph and a number of sites to a logical plan (paper, Section 4)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from einc.errors import UsageError
from einc.graph.graph import Graph
from einc.logical.pins import Pin
from einc.logical.plan import Choice, LogicalPlan
from einc.logical.problem import Problem, build_problem, compute_own_costs
from einc.logical.solve import solve
from einc.options import SELECTORS

COST_SELECTORS = SELECTORS[1:]
"""The selectors that need nothing but the paper's cost."""


def cut_into_trees(problem: Problem) -> list[list[int]]:
    """The nodes of every tree, in the order in which the trees are optimized: the largest first.

    The graph is cut at every edge out of a node whose outputs go to several nodes. So the nodes of a tree have one
    consumer each, except the last, and several outputs to one consumer stay in its tree. Size is the number of nodes;
    of equally large trees, the one whose last node is first in the graph comes first.
    """
    root = list(range(len(problem.leaving)))
    for node in reversed(range(len(root))):
        consumers = {edge.consumer for edge in problem.leaving[node]}
        if len(consumers) == 1:
            root[node] = root[consumers.pop()]
    grown: dict[int, list[int]] = {}
    for node, last in enumerate(root):
        grown.setdefault(last, []).append(node)
    return [grown[last] for last in sorted(grown, key=lambda last: (-len(grown[last]), last))]


def choose_by_cuts(problem: Problem) -> list[int]:
    """The number of a candidate for each node, by the paper's heuristic for shared tensors (paper, Section 4.5).

    The graph is cut into trees, and each tree is optimized exactly, given the trees before it: repartition is charged
    on every edge to or from a node that is fixed already. An edge to a later tree costs nothing yet.
    """
    fixed: dict[int, int] = {}
    for tree in cut_into_trees(problem):
        answer = solve(problem, tree, fixed, bounded=False)
        assert answer is not None  # the tables of a tree range over two operators at most
        fixed.update(answer)
    return [fixed[node] for node in range(len(problem.candidates))]


def optimize(
    graph: Graph, sites: int, selector: str = "eindecomp", seed: int = 0, pins: Sequence[Pin] = ()
) -> LogicalPlan:
    """A join-agg spec for every operator; `pins` fix some of them, whatever the selector.

    `eindecomp` takes the cheapest plan, or the cut heuristic's if the exact one would take too long. `greedy` gives
    each operator its own cheapest spec as if repartition were free. `random` draws uniformly, by `seed`. The costs of
    the plan always include repartition. Raises UsageError for an unknown selector, and what `build_problem` raises.
    """
    if selector not in COST_SELECTORS:
        raise UsageError(f"unknown selector {selector!r}", hint=f"known selectors: {', '.join(SELECTORS)}")
    problem = build_problem(graph, sites, pins=pins)
    cut = choose_by_cuts(problem)
    exact = False
    if selector == "greedy":
        chosen = _choose_greedily(problem)
    elif selector == "random":
        chosen = _choose_randomly(problem, seed)
    else:
        nodes = range(len(graph.nodes))
        optimum = solve(problem, nodes, {})
        exact = optimum is not None
        chosen = cut if optimum is None else [optimum[node] for node in nodes]
    return LogicalPlan(graph, sites, selector, build_choices(graph, problem, chosen), exact, problem.cost(cut))


def _choose_greedily(problem: Problem) -> list[int]:
    """The cheapest candidate of each node by itself; the lexicographically first of equally cheap ones."""
    costs = [compute_own_costs(options) for options in problem.candidates]
    return [cost.index(min(cost)) for cost in costs]


def _choose_randomly(problem: Problem, seed: int) -> list[int]:
    """A uniformly drawn candidate per node, in the graph's order. All versions of Python give the same `random()`."""
    generator = random.Random(seed)
    return [int(generator.random() * len(options)) for options in problem.candidates]


def build_choices(graph: Graph, problem: Problem, chosen: Sequence[int]) -> tuple[Choice, ...]:
    """The choices of a plan, from the number of a candidate for every node."""
    paid = problem.repartitions(chosen)
    return tuple(
        Choice(node.name, options[c], repartition)
        for node, options, c, repartition in zip(graph.nodes, problem.candidates, chosen, paid, strict=True)
    )
