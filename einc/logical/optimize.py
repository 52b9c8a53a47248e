"""The selectors: from a graph and a number of sites to a logical plan (paper, Section 4)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from einc.errors import UsageError
from einc.graph.graph import Graph
from einc.logical.cuts import cut_plan
from einc.logical.plan import Choice, LogicalPlan
from einc.logical.problem import Problem, build_problem, own_costs
from einc.logical.solve import solve
from einc.options import SELECTORS


def optimize(graph: Graph, sites: int, selector: str = "eindecomp", seed: int = 0) -> LogicalPlan:
    """A join-agg spec for every operator.

    `eindecomp` takes the cheapest plan, or the cut heuristic's where exactness cannot be afforded; `greedy` gives each
    operator its own cheapest spec as if repartition were free; `random` draws uniformly, by `seed`. Whatever
    selects, the plan's costs include repartition. Raises UsageError for an unknown selector.
    """
    if selector not in SELECTORS:
        raise UsageError(f"unknown selector {selector!r}", hint=f"known selectors: {', '.join(SELECTORS)}")
    problem = build_problem(graph, sites)
    cut = cut_plan(problem)
    exact = False
    if selector == "greedy":
        chosen = _greedy(problem)
    elif selector == "random":
        chosen = _random(problem, seed)
    else:
        nodes = range(len(graph.nodes))
        optimum = solve(problem, nodes, {})
        exact = optimum is not None
        chosen = cut if optimum is None else [optimum[node] for node in nodes]
    return LogicalPlan(graph, sites, selector, _choices(graph, problem, chosen), exact, problem.cost(cut))


def _greedy(problem: Problem) -> list[int]:
    """The cheapest candidate of each node by itself; the lexicographically first among equals."""
    costs = [own_costs(options) for options in problem.candidates]
    return [cost.index(min(cost)) for cost in costs]


def _random(problem: Problem, seed: int) -> list[int]:
    """A uniform candidate per node, in the graph's order. Python promises its `random()` across versions, no more."""
    generator = random.Random(seed)
    return [int(generator.random() * len(options)) for options in problem.candidates]


def _choices(graph: Graph, problem: Problem, chosen: Sequence[int]) -> tuple[Choice, ...]:
    paid = problem.repartitions(chosen)
    return tuple(
        Choice(node.name, options[c], repartition)
        for node, options, c, repartition in zip(graph.nodes, problem.candidates, chosen, paid, strict=True)
    )
