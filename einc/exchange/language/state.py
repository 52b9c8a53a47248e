"""The state of an exchange program: which aggregates are at which sites, and what can be formed of them (paper,
Section 5.2 and Definition 7).

The checker and the simulator share it. A *goal* is an aggregate that actions form at a site; it is *ready* once
disjoint aggregates that are present there partition it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from einc.exchange.language.exact_cover import Budget, cheapest_partition
from einc.exchange.language.program import Aggregate

Copy = tuple[Aggregate, int]
"""An aggregate at a site: one element of the paper's state."""


class Coverage(NamedTuple):
    """What is present towards a goal: the atoms that no part holds, and whether parts overlap."""

    missing: frozenset[str]
    overlapping: bool
    parts: tuple[Aggregate, ...]


class _Goal:
    """An aggregate wanted at a site, with the parts of it that are present, kept up to date as copies arrive."""

    __slots__ = ("aggregate", "atoms", "missing", "overlapping", "parts", "ready", "site")

    def __init__(self, aggregate: Aggregate, site: int) -> None:
        self.aggregate, self.site = aggregate, site
        self.atoms = frozenset(aggregate)
        self.missing = set(aggregate)
        self.parts: list[Aggregate] = []
        self.overlapping = False
        self.ready = False


_NONE: list[_Goal] = []


class State:
    """A growing set of copies, and the goals that it makes ready."""

    __slots__ = ("_budget", "_goals", "_held", "_watchers")

    def __init__(self, goals: Iterable[Copy]) -> None:
        self._held: set[Copy] = set()
        self._goals: dict[Copy, _Goal] = {}
        self._watchers: dict[tuple[str, int], list[_Goal]] = {}  # goals by an atom of theirs and their site
        self._budget = Budget()
        for aggregate, site in goals:
            if (aggregate, site) not in self._goals:
                goal = self._goals[aggregate, site] = _Goal(aggregate, site)
                for atom in aggregate:
                    self._watchers.setdefault((atom, site), []).append(goal)

    def __contains__(self, copy: Copy) -> bool:
        return copy in self._held

    @property
    def copies(self) -> frozenset[Copy]:
        return frozenset(self._held)

    def add(self, aggregate: Aggregate, site: int) -> list[Copy]:
        """Make a copy present; returns the goals that it makes ready, in the order in which they were stated."""
        if (aggregate, site) in self._held:
            return []
        self._held.add((aggregate, site))
        ready = []
        watchers = min((self._watchers.get((atom, site), _NONE) for atom in aggregate), key=len)
        self._budget.spend(len(watchers))
        for goal in watchers:
            if len(aggregate) == 1 or goal.atoms.issuperset(aggregate):
                before = len(goal.missing)
                goal.missing.difference_update(aggregate)
                goal.overlapping |= before - len(goal.missing) != len(aggregate)
                goal.parts.append(aggregate)
                if not goal.ready and not goal.missing and self._partition(goal) is not None:
                    goal.ready = True
                    ready.append((goal.aggregate, site))
        return ready

    def is_ready(self, copy: Copy) -> bool:
        return self._goals[copy].ready

    def partition(self, copy: Copy) -> tuple[Aggregate, ...]:
        """The fewest disjoint copies that make up a ready goal, in ascending order: itself where it is held whole."""
        found = self._partition(self._goals[copy])
        assert found is not None, "only a ready goal has a partition"
        return found

    def coverage(self, aggregate: Aggregate, site: int) -> Coverage:
        """What is present at a site towards any aggregate, goal or not."""
        goal = self._goals.get((aggregate, site))
        if goal is None:
            goal = _Goal(aggregate, site)
            for held, where in sorted(self._held):
                if where == site and goal.atoms.issuperset(held):
                    goal.overlapping |= not goal.missing.issuperset(held)
                    goal.missing.difference_update(held)
                    goal.parts.append(held)
        return Coverage(frozenset(goal.missing), goal.overlapping, tuple(sorted(goal.parts)))

    def can_form(self, aggregate: Aggregate, site: int) -> bool:
        """Whether disjoint copies at the site partition the aggregate."""
        missing, overlapping, parts = self.coverage(aggregate, site)
        if missing or not overlapping:
            return not missing
        return cheapest_partition(aggregate, [(part, 1) for part in parts], self._budget) is not None

    def _partition(self, goal: _Goal) -> tuple[Aggregate, ...] | None:
        if (goal.aggregate, goal.site) in self._held:
            return (goal.aggregate,)
        if not goal.overlapping:
            return tuple(sorted(goal.parts))
        return cheapest_partition(goal.aggregate, [(part, 1) for part in goal.parts], self._budget)
