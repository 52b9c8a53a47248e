"""The selectors: from a graph and a number of sites to a logical plan (paper, Section 4).

They look for the cheapest candidates for some nodes of a problem, while the others are fixed or left out. Plans are
ordered by cost, then by how early repartitions come, then by intervals. Cost and earliness are combined in one integer
here, so that one minimization finds both the exact optimum and the trees of the cut heuristic.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from einc.core.tensor import Array
from einc.errors import UsageError
from einc.graph.graph import Graph
from einc.logical.minsum import CostTable, minimize
from einc.logical.pins import Pin
from einc.logical.plan import Choice, LogicalPlan
from einc.logical.problem import Problem, build_problem, compute_own_costs
from einc.options import SELECTORS

if TYPE_CHECKING:
    import numpy as np


def solve(
    problem: Problem, nodes: Sequence[int], fixed: Mapping[int, int], bounded: bool = True
) -> dict[int, int] | None:
    """The best candidate number for each of `nodes` (ascending), given those of the `fixed` nodes.

    Repartition is charged on edges among `nodes` and between them and `fixed` nodes; other edges cost nothing.
    A repartition at the consumer in position n of N nodes adds N - n to the *earliness* of a plan. Among the plans of
    least cost, those of least earliness are taken, and among these the one whose intervals, in the order of nodes, are
    lexicographically first. None if `bounded` and the exact minimum would take too long.
    """
    variable = {node: v for v, node in enumerate(nodes)}
    count = len(problem.candidates)
    costs = [_subtract_cheapest(compute_own_costs(problem.candidates[node])) for node in nodes]
    earliness = [[0] * len(cost) for cost in costs]
    shared: list[tuple[int, int, int, int, Array, Array]] = []
    for v, node in enumerate(nodes):
        early = count - node
        for edge in problem.arriving[node]:
            if edge.producer in variable:
                shared.append((variable[edge.producer], v, edge.size, early, edge.produced, edge.required))
            elif edge.producer in fixed:
                differs = edge.required != edge.produced[fixed[edge.producer]]
                _charge(costs[v], earliness[v], differs, edge.size, early)
        for edge in problem.leaving[node]:
            if edge.consumer in fixed:
                differs = edge.produced != edge.required[fixed[edge.consumer]]
                _charge(costs[v], earliness[v], differs, edge.size, count - edge.consumer)
    # Cost and earliness as one integer: the whole earliness of any plan stays below one unit of cost.
    unit = gcd(*(c for cost in costs for c in cost), *(size for _, _, size, *_ in shared)) or 1
    scale = 1 + sum(map(max, earliness)) + sum(early for _, _, _, early, *_ in shared)
    joint = [
        [c // unit * scale + early for c, early in zip(*both, strict=True)]
        for both in zip(costs, earliness, strict=True)
    ]
    links = [
        (a, b, size // unit * scale + early, produced, required) for a, b, size, early, produced, required in shared
    ]
    return _minimize(nodes, joint, links, bounded)


_Link = tuple[int, int, int, Array, Array]
"""Two variables, and what it costs if the numbers of their values differ."""


def _minimize(nodes: Sequence[int], costs: list[list[int]], links: list[_Link], bounded: bool) -> dict[int, int] | None:
    """The minimization, in 64-bit integers if no sum can overflow, else in Python's integers."""
    import numpy as np

    around = [0] * len(nodes)
    for a, b, weight, *_ in links:
        around[a] += weight
        around[b] += weight
    # A value that costs more than the cheapest one plus every repartition around it is never chosen, whatever it costs.
    ceilings = [min(cost) + weight + 1 for cost, weight in zip(costs, around, strict=True)]
    costs = [[min(c, ceiling) for c in cost] for cost, ceiling in zip(costs, ceilings, strict=True)]
    largest = sum(map(max, costs)) + sum(weight for _, _, weight, *_ in links)
    dtype = np.dtype(np.int64) if largest < 1 << 62 else np.dtype(object)
    tables = [_build_table(link, dtype) for link in links]
    answer = minimize([np.array(cost, dtype=dtype) for cost in costs], tables, bounded)
    return None if answer is None else dict(zip(nodes, answer, strict=True))


def _build_table(link: _Link, dtype: np.dtype[Any]) -> CostTable:
    import numpy as np

    a, b, weight, produced, required = link
    numbers_a, classes_a = np.unique(produced, return_inverse=True)
    numbers_b, classes_b = np.unique(required, return_inverse=True)
    costs = np.zeros((len(numbers_a), len(numbers_b)), dtype)
    costs[numbers_a[:, None] != numbers_b[None, :]] = weight
    return CostTable((a, b), (classes_a, classes_b), costs)


def _charge(costs: list[int], earliness: list[int], differs: Array, size: int, early: int) -> None:
    """Adds a repartition to the candidates whose tiling differs."""
    for c in differs.nonzero()[0]:
        costs[c] += size
        earliness[c] += early


def _subtract_cheapest(costs: list[int]) -> list[int]:
    """How much more each candidate costs than the cheapest."""
    least = min(costs)
    return [cost - least for cost in costs]


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
