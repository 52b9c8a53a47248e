"""One run of a body, whose aggregates and actions have become numbers, and what a run gives: a timeline."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from einc.exchange.language.closure import Copy
from einc.exchange.language.exact_cover import CoverBudget, find_cheapest_partition
from einc.exchange.language.program import Action, Aggregate
from einc.exchange.simulation.fluid import SAME_INSTANT, Fluid


@dataclass(frozen=True, slots=True)
class ActionEvent:
    """What happened to one action; times in milliseconds from the beginning.

    `parts` are the copies that it combined: the aggregate itself where the source held it whole. `formed` is when the
    aggregation ended (the start, where nothing was combined), `arrivals` when each destination had the aggregate.
    """

    action: Action
    start: float
    parts: tuple[Aggregate, ...]
    formed: float
    arrivals: tuple[tuple[int, float], ...]
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A whole run: one event per action, in the program's order, and every copy that exists at the end."""

    completion_ms: float
    events: tuple[ActionEvent, ...]
    copies: frozenset[Copy]


class NumberedAggregate(NamedTuple):
    """An aggregate as numbers: `base` + site identifies a copy, `spots` + site an atom at a site."""

    name: Aggregate
    mask: int
    base: int
    spots: tuple[int, ...]
    size: int


ActionName = tuple[Aggregate, int, tuple[int, ...], bool, tuple[Copy, ...]]
"""An action without its waits, as other actions name it in theirs."""


def name_action(action: Action) -> ActionName:
    return action.aggregate, action.source, action.destinations, action.multicast, action.reads


class NumberedAction(NamedTuple):
    """An action as numbers: `flows` are (lane, destination). What a switch copies or adds is one flow, which arrives at
    all sites of `together`; `reads` are the copies that it adds."""

    aggregate: NumberedAggregate
    source: int
    flows: tuple[tuple[int, int], ...]
    name: ActionName
    waits: tuple[ActionName, ...]
    together: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()


class _NumberedGoal:
    """An aggregate that actions form at a site, and the parts of it that are there."""

    __slots__ = ("actions", "aggregate", "copy", "missing", "overlapping", "parts", "ready")

    def __init__(self, aggregate: NumberedAggregate, copy: int) -> None:
        self.aggregate, self.copy = aggregate, copy
        self.missing = aggregate.mask
        self.overlapping = self.ready = False
        self.parts: list[Aggregate] = []
        self.actions: list[int] = []


class BodyRun:
    """One run: a job is (number of the action, destination), with the destination -1 for an aggregation."""

    __slots__ = (
        "actions",
        "arrivals",
        "budget",
        "departures",
        "end",
        "fluid",
        "formed",
        "goals",
        "hbm",
        "held",
        "kernel_latency",
        "now",
        "open_flows",
        "open_waits",
        "parts",
        "placed",
        "readers",
        "required",
        "start",
        "startable",
        "transfer_latency",
        "unfinished",
        "unread",
        "waiters",
        "watchers",
    )

    def __init__(
        self, actions: list[NumberedAction], fluid: Fluid, transfer_latency: float, kernel_latency: float
    ) -> None:
        self.actions, self.fluid = actions, fluid
        self.transfer_latency, self.kernel_latency = transfer_latency, kernel_latency
        self.hbm: Sequence[float] = ()
        self.required: set[int] = set()
        self.now = 0.0
        self.held: set[int] = set()
        self.placed: list[tuple[NumberedAggregate, int]] = []
        self.budget = CoverBudget()
        self.startable: list[int] = []
        self.departures: list[tuple[float, int]] = []
        count = self.unfinished = len(actions)
        self.start = [0.0] * count
        self.formed = [0.0] * count
        self.end = [0.0] * count
        self.parts: list[tuple[Aggregate, ...]] = [()] * count
        self.arrivals: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        self.open_flows = [len(action.flows) for action in actions]
        self.open_waits = [0] * count
        self.waiters: dict[int, list[int]] = {}
        self._index_waits()
        self.goals: list[_NumberedGoal] = []  # by action
        self.watchers: dict[int, list[_NumberedGoal]] = {}  # by atom and site
        known: dict[int, _NumberedGoal] = {}
        self.unread = [len(action.reads) for action in actions]
        self.readers: dict[int, list[int]] = {}  # by copy: the actions whose switch adds it
        for number, action in enumerate(actions):
            aggregate, source = action.aggregate, action.source
            copy = aggregate.base + source
            if action.reads:
                self.goals.append(_NumberedGoal(aggregate, copy))
                for read in action.reads:
                    self.readers.setdefault(read, []).append(number)
                continue
            goal = known.get(copy)
            if goal is None:
                goal = known[copy] = _NumberedGoal(aggregate, copy)
                for spot in aggregate.spots:
                    self.watchers.setdefault(spot + source, []).append(goal)
            goal.actions.append(number)
            self.goals.append(goal)

    def _index_waits(self) -> None:
        if not any(action.waits for action in self.actions):
            return
        named: dict[ActionName, list[int]] = {}
        for number, action in enumerate(self.actions):
            named.setdefault(action.name, []).append(number)
        for number, action in enumerate(self.actions):
            for wait in action.waits:
                awaited = named.get(wait, ())
                self.open_waits[number] += len(awaited) or 1  # a wait for an action that does not exist never ends
                for before in awaited:
                    self.waiters.setdefault(before, []).append(number)

    @property
    def complete(self) -> bool:
        """Whether every action has ended and every requirement is met."""
        return not self.unfinished and self.required <= self.held

    @property
    def copies(self) -> frozenset[Copy]:
        return frozenset((aggregate.name, site) for aggregate, site in self.placed)

    def describe_action(self, number: int, action: Action) -> ActionEvent:
        arrivals = tuple(sorted(self.arrivals[number]))
        parts = tuple(part for part, _ in action.reads) or self.parts[number]
        return ActionEvent(action, self.start[number], parts, self.formed[number], arrivals, self.end[number])

    def run(self, limit: float) -> None:
        """Run to the end, or to the first event after `limit`: then actions are left unfinished."""
        fluid, departures, actions = self.fluid, self.departures, self.actions
        self.begin()
        while True:
            now = fluid.upcoming()
            if departures and (now is None or departures[0][0] < now):
                now = departures[0][0]
            if now is None or now > limit:
                return
            self.now = now
            slack = SAME_INSTANT * now
            ended = fluid.leave(now, slack)
            while departures and departures[0][0] - now <= slack:
                self.depart(heapq.heappop(departures)[1])
            for _, (number, site) in ended:
                action = actions[number]
                if site < 0:
                    self.place(action.aggregate, action.source)
                    self.send(number)
                else:
                    for arrived in action.together or (site,):
                        self.arrivals[number].append((arrived, now))
                        self.place(action.aggregate, arrived)
                    self.open_flows[number] -= 1
                    if not self.open_flows[number]:
                        self.finish(number)
            self.begin()

    def begin(self) -> None:
        """Start every action that can start at this instant, then set the rates."""
        while self.startable:
            batch, self.startable = sorted(self.startable), []
            for number in batch:
                self.begin_action(number)
        self.fluid.balance(self.now)

    def begin_action(self, number: int) -> None:
        goal, action = self.goals[number], self.actions[number]
        self.start[number] = self.now
        if action.reads:
            self.send(number)
            return
        if goal.copy in self.held:
            self.parts[number] = (action.aggregate.name,)
            self.send(number)
            return
        parts = self.parts[number] = self.partition(goal) or ()
        traffic = (len(parts) + 1) * action.aggregate.size + self.kernel_latency * self.hbm[action.source]
        self.fluid.join(action.source, traffic, (number, -1), self.now)

    def send(self, number: int) -> None:
        self.formed[number] = self.now
        if not self.open_flows[number]:
            self.finish(number)
        elif self.transfer_latency:
            heapq.heappush(self.departures, (self.now + self.transfer_latency, number))
        else:
            self.depart(number)

    def depart(self, number: int) -> None:
        action = self.actions[number]
        size = action.aggregate.size
        for lane, site in action.flows:
            self.fluid.join(lane, size, (number, site), self.now)

    def finish(self, number: int) -> None:
        self.end[number] = self.now
        self.unfinished -= 1
        for waiter in self.waiters.get(number, ()):
            self.open_waits[waiter] -= 1
            if not self.open_waits[waiter] and self.goals[waiter].ready:
                self.startable.append(waiter)

    def place(self, aggregate: NumberedAggregate, site: int) -> None:
        """Make a copy present, and note the actions that it enables."""
        copy = aggregate.base + site
        if copy in self.held:
            return
        self.held.add(copy)
        self.placed.append((aggregate, site))
        for number in self.readers.get(copy, ()):
            self.unread[number] -= 1
            if not self.unread[number]:
                self.goals[number].ready = True
                self.startable += [] if self.open_waits[number] else [number]
        watchers = self.watchers
        goals: list[_NumberedGoal] | None = None
        for spot in aggregate.spots:
            watching = watchers.get(spot + site)
            if watching is None:
                return
            if goals is None or len(watching) < len(goals):
                goals = watching
        mask = aggregate.mask
        if not goals:
            return
        self.budget.spend(len(goals))
        for goal in goals:
            if goal.aggregate.mask & mask == mask:
                if goal.missing & mask != mask:
                    goal.overlapping = True
                goal.missing &= ~mask
                goal.parts.append(aggregate.name)
                if not goal.ready and not goal.missing and (copy == goal.copy or self.partition(goal) is not None):
                    goal.ready = True
                    self.startable += [number for number in goal.actions if not self.open_waits[number]]

    def partition(self, goal: _NumberedGoal) -> tuple[Aggregate, ...] | None:
        """The fewest disjoint parts that make up a goal; the site does not hold it whole."""
        if not goal.overlapping:
            return tuple(sorted(goal.parts))
        return find_cheapest_partition(goal.aggregate.name, [(part, 1) for part in goal.parts], self.budget)
