"""One run of a body whose aggregates and actions have become numbers, for the fast simulator."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from einc.exchange.language.exact_cover import Budget, cheapest_partition
from einc.exchange.language.program import Action, Aggregate
from einc.exchange.language.state import Copy
from einc.exchange.simulation.fluid import Fluid
from einc.exchange.simulation.simulator import TOGETHER, Event


class Numbered(NamedTuple):
    """An aggregate as numbers: `base` + site identifies a copy, `spots` + site an atom at a site."""

    name: Aggregate
    mask: int
    base: int
    spots: tuple[int, ...]
    size: int


Plain = tuple[Aggregate, int, tuple[int, ...]]


class Step(NamedTuple):
    """An action as numbers: `flows` are (lane, destination)."""

    aggregate: Numbered
    source: int
    flows: tuple[tuple[int, int], ...]
    name: Plain
    waits: tuple[Plain, ...]


class _Goal:
    """An aggregate wanted at a site, and the parts of it that are there."""

    __slots__ = ("aggregate", "copy", "missing", "overlapping", "parts", "ready", "steps")

    def __init__(self, aggregate: Numbered, copy: int) -> None:
        self.aggregate, self.copy = aggregate, copy
        self.missing = aggregate.mask
        self.overlapping = self.ready = False
        self.parts: list[Aggregate] = []
        self.steps: list[int] = []


class Run:
    """One run: jobs are (step, destination), with the destination -1 for an aggregation."""

    __slots__ = (
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
        "start",
        "startable",
        "steps",
        "transfer_latency",
        "unfinished",
        "waiters",
        "wanted",
        "watchers",
    )

    def __init__(self, steps: list[Step], fluid: Fluid, transfer_latency: float, kernel_latency: float) -> None:
        self.steps, self.fluid = steps, fluid
        self.transfer_latency, self.kernel_latency = transfer_latency, kernel_latency
        self.hbm: Sequence[float] = ()
        self.wanted: set[int] = set()
        self.now = 0.0
        self.held: set[int] = set()
        self.placed: list[tuple[Numbered, int]] = []
        self.budget = Budget()
        self.startable: list[int] = []
        self.departures: list[tuple[float, int]] = []
        count = self.unfinished = len(steps)
        self.start = [0.0] * count
        self.formed = [0.0] * count
        self.end = [0.0] * count
        self.parts: list[tuple[Aggregate, ...]] = [()] * count
        self.arrivals: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        self.open_flows = [len(step.flows) for step in steps]
        self.open_waits = [0] * count
        self.waiters: dict[int, list[int]] = {}
        self._await()
        self.goals: list[_Goal] = []  # by step
        self.watchers: dict[int, list[_Goal]] = {}  # by atom and site
        known: dict[int, _Goal] = {}
        for number, (aggregate, source, _, _, _) in enumerate(steps):
            copy = aggregate.base + source
            goal = known.get(copy)
            if goal is None:
                goal = known[copy] = _Goal(aggregate, copy)
                for spot in aggregate.spots:
                    self.watchers.setdefault(spot + source, []).append(goal)
            goal.steps.append(number)
            self.goals.append(goal)

    def _await(self) -> None:
        if not any(step.waits for step in self.steps):
            return
        named: dict[Plain, list[int]] = {}
        for number, step in enumerate(self.steps):
            named.setdefault(step.name, []).append(number)
        for number, step in enumerate(self.steps):
            for wait in step.waits:
                found = named.get(wait, ())
                self.open_waits[number] += len(found) or 1  # what is not there is waited for for ever
                for before in found:
                    self.waiters.setdefault(before, []).append(number)

    @property
    def complete(self) -> bool:
        """Whether every action has ended and every requirement is met."""
        return not self.unfinished and self.wanted <= self.held

    @property
    def copies(self) -> frozenset[Copy]:
        return frozenset((aggregate.name, site) for aggregate, site in self.placed)

    def event(self, number: int, action: Action) -> Event:
        arrivals = tuple(sorted(self.arrivals[number]))
        return Event(action, self.start[number], self.parts[number], self.formed[number], arrivals, self.end[number])

    def run(self, limit: float) -> None:
        """To the end, or to the first event after `limit`, where actions are left unfinished."""
        fluid, departures, steps = self.fluid, self.departures, self.steps
        self.begin()
        while True:
            now = fluid.upcoming()
            if departures and (now is None or departures[0][0] < now):
                now = departures[0][0]
            if now is None or now > limit:
                return
            self.now = now
            slack = TOGETHER * now
            ended = fluid.leave(now, slack)
            while departures and departures[0][0] - now <= slack:
                self.depart(heapq.heappop(departures)[1])
            for _, (number, site) in ended:
                step = steps[number]
                if site < 0:
                    self.place(step.aggregate, step.source)
                    self.send(number)
                else:
                    self.arrivals[number].append((site, now))
                    self.place(step.aggregate, site)
                    self.open_flows[number] -= 1
                    if not self.open_flows[number]:
                        self.finish(number)
            self.begin()

    def begin(self) -> None:
        """Start all that can start at this instant; then settle the rates."""
        while self.startable:
            batch, self.startable = sorted(self.startable), []
            for number in batch:
                self.begin_step(number)
        self.fluid.balance(self.now)

    def begin_step(self, number: int) -> None:
        goal, step = self.goals[number], self.steps[number]
        self.start[number] = self.now
        if goal.copy in self.held:
            self.parts[number] = (step.aggregate.name,)
            self.send(number)
            return
        parts = self.parts[number] = self.partition(goal) or ()
        traffic = (len(parts) + 1) * step.aggregate.size + self.kernel_latency * self.hbm[step.source]
        self.fluid.join(step.source, traffic, (number, -1), self.now)

    def send(self, number: int) -> None:
        self.formed[number] = self.now
        if not self.open_flows[number]:
            self.finish(number)
        elif self.transfer_latency:
            heapq.heappush(self.departures, (self.now + self.transfer_latency, number))
        else:
            self.depart(number)

    def depart(self, number: int) -> None:
        step = self.steps[number]
        size = step.aggregate.size
        for lane, site in step.flows:
            self.fluid.join(lane, size, (number, site), self.now)

    def finish(self, number: int) -> None:
        self.end[number] = self.now
        self.unfinished -= 1
        for waiter in self.waiters.get(number, ()):
            self.open_waits[waiter] -= 1
            if not self.open_waits[waiter] and self.goals[waiter].ready:
                self.startable.append(waiter)

    def place(self, aggregate: Numbered, site: int) -> None:
        """Make a copy present, and note the actions that it enables."""
        copy = aggregate.base + site
        if copy in self.held:
            return
        self.held.add(copy)
        self.placed.append((aggregate, site))
        watchers = self.watchers
        goals: list[_Goal] | None = None
        for spot in aggregate.spots:
            found = watchers.get(spot + site)
            if found is None:
                return
            if goals is None or len(found) < len(goals):
                goals = found
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
                    self.startable += [number for number in goal.steps if not self.open_waits[number]]

    def partition(self, goal: _Goal) -> tuple[Aggregate, ...] | None:
        """The fewest disjoint parts that make up a goal that is not held whole."""
        if not goal.overlapping:
            return tuple(sorted(goal.parts))
        return cheapest_partition(goal.aggregate.name, [(part, 1) for part in goal.parts], self.budget)
