"""The paper's heuristic for shared tensors: cut the graph into trees and optimize them one at a time
(paper, Section 4.5)."""

from __future__ import annotations

from einc.logical.problem import Problem
from einc.logical.solve import solve


def trees(problem: Problem) -> list[list[int]]:
    """The nodes of every tree, in the order in which the trees are optimized: the largest first.

    The graph is cut at every edge out of a node whose outputs go to several nodes, so that every tree hangs together
    by nodes with one consumer each, and several outputs to one consumer stay in its tree. Size is the number of
    nodes; among equals, the tree whose last node stands first in the graph comes first.
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


def cut_plan(problem: Problem) -> list[int]:
    """One candidate number per node.

    Each tree is optimized exactly, subject to the trees before it: repartition is charged on every edge to or from
    a node that is fixed already, whichever of the two produces; an edge to a tree still to come costs nothing yet.
    """
    fixed: dict[int, int] = {}
    for tree in trees(problem):
        answer = solve(problem, tree, fixed, bounded=False)
        assert answer is not None  # the tables of a tree range over two operators at most
        fixed.update(answer)
    return [fixed[node] for node in range(len(problem.candidates))]
