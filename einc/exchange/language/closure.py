"""The state of an exchange program, its closure, and the order in which its actions can fire (paper,
Section 5.2 and Definition 7).

A *goal* is an aggregate that actions form at a site; it is *ready* once disjoint aggregates that are present there
partition it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from einc.exchange.language.exact_cover import CoverBudget, find_cheapest_partition
from einc.exchange.language.program import Action, Aggregate, Program

Copy = tuple[Aggregate, int]
"""An aggregate at a site: one element of the paper's state."""


class Coverage(NamedTuple):
    """What is present of a goal: its parts, the atoms that no part holds, and whether parts overlap."""

    missing: frozenset[str]
    overlapping: bool
    parts: tuple[Aggregate, ...]


class _FormationGoal:
    """An aggregate to be formed at a site, with the parts of it that are present so far."""

    __slots__ = ("aggregate", "atoms", "missing", "overlapping", "parts", "ready", "site")

    def __init__(self, aggregate: Aggregate, site: int) -> None:
        self.aggregate, self.site = aggregate, site
        self.atoms = frozenset(aggregate)
        self.missing = set(aggregate)
        self.parts: list[Aggregate] = []
        self.overlapping = False
        self.ready = False


_NONE: tuple[_FormationGoal, ...] = ()


class State:
    """A growing set of copies, and the goals that are ready."""

    __slots__ = ("_budget", "_goals", "_held", "_watchers")

    def __init__(self, goals: Iterable[Copy]) -> None:
        self._held: set[Copy] = set()
        self._goals: dict[Copy, _FormationGoal] = {}
        self._watchers: dict[tuple[str, int], list[_FormationGoal]] = {}  # goals by an atom of theirs and their site
        self._budget = CoverBudget()
        for aggregate, site in goals:
            if (aggregate, site) not in self._goals:
                goal = self._goals[aggregate, site] = _FormationGoal(aggregate, site)
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
        parts = self._partition(self._goals[copy])
        assert parts is not None, "only a ready goal has a partition"
        return parts

    def coverage(self, aggregate: Aggregate, site: int) -> Coverage:
        """What is present at a site of any aggregate, goal or not."""
        goal = self._goals.get((aggregate, site))
        if goal is None:
            goal = _FormationGoal(aggregate, site)
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
        return find_cheapest_partition(aggregate, [(part, 1) for part in parts], self._budget) is not None

    def _partition(self, goal: _FormationGoal) -> tuple[Aggregate, ...] | None:
        if (goal.aggregate, goal.site) in self._held:
            return (goal.aggregate,)
        if not goal.overlapping:
            return tuple(sorted(goal.parts))
        return find_cheapest_partition(goal.aggregate, [(part, 1) for part in goal.parts], self._budget)


@dataclass(frozen=True, slots=True)
class Firing:
    """An action, and the copies at its source that it combines: itself alone where it is held whole."""

    action: Action
    parts: tuple[Aggregate, ...]


def compute_closure(program: Program) -> frozenset[Copy]:
    """S*(P): the least state that contains IN and is closed under firing enabled actions; waits do not count."""
    _, state = fire_actions(program, waits=False)
    return state.copies


def order_firings(program: Program) -> tuple[Firing, ...]:
    """The actions in an order in which the parts of each are present when it fires, waits respected.

    Actions fire in rounds: all that the state before a round enables, in the program's order, each with the fewest
    parts then present. Actions that can never fire are left out; a valid program has none.
    """
    return fire_actions(program, waits=True)[0]


def strip_waits(action: Action) -> Action:
    """The action without its waits, as waits name it."""
    return dataclasses.replace(action, after=()) if action.after else action


def index_waits(program: Program) -> tuple[list[int], dict[int, list[int]]]:
    """For every action the number of actions that it waits for, and for an action those that wait for it.

    Positions are those of the program's actions. A wait for an action that does not exist counts and never ends.
    """
    named: dict[Action, list[int]] = {}
    if any(action.after for action in program.actions):
        for position, action in enumerate(program.actions):
            named.setdefault(strip_waits(action), []).append(position)
    open_waits = [0] * len(program.actions)
    waiters: dict[int, list[int]] = {}
    for position, action in enumerate(program.actions):
        for awaited in dict.fromkeys(map(strip_waits, action.after)):
            matching = named.get(awaited, [])
            open_waits[position] += len(matching) or 1
            for before in matching:
                waiters.setdefault(before, []).append(position)
    return open_waits, waiters


def fire_actions(program: Program, waits: bool) -> tuple[tuple[Firing, ...], State]:
    """Fire every action that can be, round by round."""
    actions = program.actions
    state = State((action.aggregate, action.source) for action in actions if not action.reads)
    at_goal: dict[Copy, list[int]] = {}
    readers: dict[Copy, list[int]] = {}
    unread = [len(action.reads) for action in actions]
    for position, action in enumerate(actions):
        for copy in action.reads:
            readers.setdefault(copy, []).append(position)
        if not action.reads:
            at_goal.setdefault((action.aggregate, action.source), []).append(position)

    def is_ready(position: int) -> bool:
        action = actions[position]
        return not unread[position] if action.reads else state.is_ready(_get_goal(action))

    open_waits, waiters = index_waits(program) if waits else ([0] * len(actions), {})
    arrived: deque[Copy] = deque((holding.aggregate, site) for holding in program.holdings for site in holding.sites)
    order: list[Firing] = []
    freed: list[int] = []
    while arrived or freed:
        startable = [position for position in freed if is_ready(position)]
        for aggregate, site in arrived:
            for position in () if (aggregate, site) in state else readers.get((aggregate, site), ()):
                unread[position] -= 1
                startable += [position] if not unread[position] and not open_waits[position] else []
            for goal in state.add(aggregate, site):
                startable += [position for position in at_goal[goal] if not open_waits[position]]
        arrived.clear()
        freed = []
        for position in sorted(set(startable)):
            action = actions[position]
            parts = tuple(part for part, _ in action.reads) or state.partition(_get_goal(action))
            order.append(Firing(action, parts))
            arrived += [(action.aggregate, site) for site in (action.source, *action.destinations)]
            for waiter in waiters.get(position, ()):
                open_waits[waiter] -= 1
                if not open_waits[waiter]:
                    freed.append(waiter)
    return tuple(order), state


def _get_goal(action: Action) -> Copy:
    return action.aggregate, action.source
