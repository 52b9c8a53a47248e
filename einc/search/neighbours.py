"""What the time tables say of a plan, and of plans that differ from it in one operator or in two neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einc.core.tensor import Array
from einc.logical.minsum import CostTable
from einc.search.tables import TimeProblem

MAX_PAIR_CHANGES = 64
"""Changes of the same two operators that are listed: those that the tables find least harmful."""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """Nodes with their new candidates' numbers, in place of the chosen ones, and what it adds, in picoseconds."""

    added: int
    nodes: tuple[int, ...]
    candidates: tuple[int, ...]

    def apply(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment with this change."""
        changed = list(assignment)
        for node, candidate in zip(self.nodes, self.candidates, strict=True):
            changed[node] = candidate
        return tuple(changed)


def sum_times(problem: TimeProblem, assignment: Sequence[int]) -> int:
    """What the tables say of a plan, in picoseconds."""
    total = sum(int(times[c]) for times, c in zip(problem.node_times, assignment, strict=True))
    return total + sum(int(_look_up(table, {}, assignment)) for table in problem.tables)


def list_changes(problem: TimeProblem, assignment: Sequence[int]) -> list[Change]:
    """Every other candidate of every node, those first that the tables find least harmful."""
    around = _list_tables(problem)
    changes: list[Change] = []
    for v, times in enumerate(problem.node_times):
        added = times - times[assignment[v]]
        for table in around[v]:
            added = added + _look_up(table, {v: np.arange(len(times))}, assignment) - _look_up(table, {}, assignment)
        changes += [Change(int(more), (v,), (i,)) for i, more in enumerate(added) if i != assignment[v]]
    return sorted(changes)


def list_pair_changes(problem: TimeProblem, assignment: Sequence[int]) -> list[Change]:
    """Other candidates for both of two neighbouring nodes, those first that the tables find least harmful.

    Of every pair of neighbours, MAX_PAIR_CHANGES at most.
    """
    around = _list_tables(problem)
    pairs = {pair for table in problem.tables for pair in itertools.combinations(table.variables, 2)}
    changes: list[Change] = []
    for u, v in sorted(pairs):
        first, second = problem.node_times[u], problem.node_times[v]
        added = (first - first[assignment[u]])[:, None] + (second - second[assignment[v]])[None, :]
        chosen = {u: np.arange(len(first))[:, None], v: np.arange(len(second))[None, :]}
        for table in {id(table): table for table in (*around[u], *around[v])}.values():
            added = added + _look_up(table, chosen, assignment) - _look_up(table, {}, assignment)
        pair_changes = [
            Change(int(added.flat[n]), (u, v), (int(n) // len(second), int(n) % len(second)))
            for n in np.argsort(added, axis=None, kind="stable")[: MAX_PAIR_CHANGES + len(first) + len(second)]
        ]
        differ = [
            change
            for change in pair_changes
            if assignment[u] != change.candidates[0] and assignment[v] != change.candidates[1]
        ]
        changes += differ[:MAX_PAIR_CHANGES]
    return sorted(changes)


def improve_singly(problem: TimeProblem, assignment: Sequence[int]) -> tuple[int, ...]:
    """A plan that no other candidate of a single node makes faster, as the tables say: each in turn gets its best one,
    until all have it."""
    around, improved, changed = _list_tables(problem), list(assignment), True
    while changed:
        changed = False
        for v, times in enumerate(problem.node_times):
            takes = times
            for table in around[v]:
                takes = takes + _look_up(table, {v: np.arange(len(times))}, improved)
            best = int(takes.argmin())
            if takes[best] < takes[improved[v]]:
                improved[v], changed = best, True
    return tuple(improved)


def _list_tables(problem: TimeProblem) -> list[list[CostTable]]:
    """For every node the tables that it is a variable of."""
    around: list[list[CostTable]] = [[] for _ in problem.node_times]
    for table in problem.tables:
        for v in table.variables:
            around[v].append(table)
    return around


def _look_up(table: CostTable, chosen: Mapping[int, Array], assignment: Sequence[int]) -> Array:
    """The costs with these candidates (arrays that broadcast) for some nodes, and those of `assignment` for others."""
    at = [classes[chosen.get(v, assignment[v])] for v, classes in zip(table.variables, table.classes, strict=True)]
    costs: Array = table.costs[tuple(at)]
    return costs
