"""What the time tables say of a plan, and of plans that differ from it in one operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.logical.minsum import CostTable
from einc.search.tables import TimeProblem

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """Candidate number `candidate` for node `node` in place of the chosen one, and what it adds, in picoseconds."""

    added: int
    node: int
    candidate: int


def sum_times(problem: TimeProblem, assignment: Sequence[int]) -> int:
    """What the tables say of a plan, in picoseconds."""
    total = sum(int(own[c]) for own, c in zip(problem.own, assignment, strict=True))
    return total + sum(_look_up(table, assignment) for table in problem.tables)


def list_changes(problem: TimeProblem, assignment: Sequence[int]) -> list[Change]:
    """Every other candidate of every node, those first that the tables find least harmful."""
    around: list[list[CostTable]] = [[] for _ in assignment]
    for table in problem.tables:
        for v in table.variables:
            around[v].append(table)
    changes: list[Change] = []
    for v, own in enumerate(problem.own):
        added = own - own[assignment[v]]
        for table in around[v]:
            at = [
                classes if u == v else classes[assignment[u]]
                for u, classes in zip(table.variables, table.classes, strict=True)
            ]
            added = added + table.costs[tuple(at)] - _look_up(table, assignment)
        changes += [Change(int(more), v, i) for i, more in enumerate(added) if i != assignment[v]]
    return sorted(changes)


def _look_up(table: CostTable, assignment: Sequence[int]) -> int:
    at = tuple(own[assignment[v]] for v, own in zip(table.variables, table.classes, strict=True))
    return int(table.costs[at])
