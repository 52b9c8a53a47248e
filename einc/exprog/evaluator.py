"""The fast simulator: many bodies for one preamble on one machine (paper, Section 5.4: candidates are costed).

`simulator.py` is the definition; this one gives the same times. What the preamble and the machine fix is worked out
once; aggregates become numbers and bit masks, and an action is translated when it is first seen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from einc.errors import ProgramError
from einc.exprog.checker import check
from einc.exprog.cover import Budget, cheapest_partition
from einc.exprog.fluid import Fluid, alone, others_of
from einc.exprog.program import Action, Aggregate, Program, targets_of
from einc.exprog.simulator import TOGETHER, Event, Timeline
from einc.exprog.sizes import atom_sizes
from einc.exprog.state import Copy
from einc.machines.model import Machine

_BYTES_PER_MS = 1e6  # of one GB/s
_MS_PER_US = 1e-3


class _Aggregate(NamedTuple):
    """An aggregate as numbers: `base` + site identifies a copy, `spots` + site an atom at a site."""

    name: Aggregate
    mask: int
    base: int
    spots: tuple[int, ...]
    size: int


_Plain = tuple[Aggregate, int, tuple[int, ...]]


class _Step(NamedTuple):
    """An action as numbers: `flows` are (lane, destination)."""

    aggregate: _Aggregate
    source: int
    flows: tuple[tuple[int, int], ...]
    name: _Plain
    waits: tuple[_Plain, ...]


class Evaluator:
    """Times bodies for one preamble; the actions of the program that is given do not matter."""

    def __init__(self, preamble: Program, machine: Machine) -> None:
        """Raises ProgramError where IN contradicts itself or a site does not exist."""
        self._preamble = preamble
        self._machine = machine
        self._width = len(machine.sites)
        self._sites = frozenset(range(self._width) if preamble.gpus is None else preamble.gpus)
        self._sizes = atom_sizes(preamble)
        self._numbers = {atom: number for number, atom in enumerate(self._sizes)}
        self._aggregates: dict[Aggregate, _Aggregate | None] = {}
        self._steps: dict[Action, _Step | None] = {}
        # The first resources and lanes are the HBM of the sites.
        self._capacity = [site.hbm_gbs * _BYTES_PER_MS for site in machine.sites]
        self._capacity += [resource.gbs * _BYTES_PER_MS for resource in machine.resources]
        routes: dict[tuple[int, ...], int] = {(site,): site for site in range(self._width)}
        self._lanes: dict[tuple[int, int], int] = {}
        for pair, crossed in machine.routes.items():
            route = tuple(self._width + resource for resource in crossed)
            self._lanes[pair] = routes.setdefault(route, len(routes))
        self._routes = tuple(routes)
        self._alone = alone(self._capacity, routes)
        self._others = others_of(len(self._capacity), routes)
        self._transfer_latency = machine.transfer_latency_us * _MS_PER_US
        self._kernel_latency = machine.kernel_latency_us * _MS_PER_US
        faults = check(_bare(preamble), machine).faults
        if faults:
            raise ProgramError(faults[0].message)
        self._holdings = [
            (self._known(holding.aggregate), site) for holding in preamble.holdings for site in holding.sites
        ]
        wanted = [
            (self._aggregate(requirement.aggregate), site)
            for requirement in preamble.requirements
            for site in targets_of(preamble, requirement)
        ]
        self._possible = all(aggregate is not None for aggregate, _ in wanted)
        self._wanted = {aggregate.base + site for aggregate, site in wanted if aggregate is not None}

    @property
    def preamble(self) -> Program:
        """The program that was given: its actions do not matter."""
        return self._preamble

    def completion(self, actions: Sequence[Action], limit: float = math.inf) -> float:
        """The completion time in ms of a body of distinct actions.

        Infinite where the program is not valid on the machine, and where it takes longer than `limit` (which then is
        found out early).
        """
        run = self._run(actions, limit)
        return run.now if run is not None and run.complete else math.inf

    def timeline(self, actions: Sequence[Action]) -> Timeline:
        """What `simulate` gives for the preamble with this body; raises ProgramError as it does."""
        run = self._run(actions, math.inf)
        if run is None or not run.complete:
            preamble = self._preamble
            program = Program(
                preamble.gpus, preamble.partitions, preamble.holdings, preamble.requirements, tuple(actions)
            )
            faults = check(program, self._machine).faults
            more = f"and {len(faults) - 1} more faults: check lists them" if len(faults) > 1 else None
            raise ProgramError(faults[0].message, hint=more)
        return Timeline(run.now, tuple(run.event(number, action) for number, action in enumerate(actions)), run.copies)

    def _run(self, actions: Iterable[Action], limit: float) -> _Run | None:
        """None where an action cannot be of any valid program, or a requirement of no program."""
        if not self._possible:
            return None
        known = self._steps
        steps = []
        for action in actions:
            if action not in known:
                known[action] = self._step(action)
            step = known[action]
            if step is None:
                return None
            steps.append(step)
        run = _Run(
            steps,
            Fluid(self._capacity, self._routes, self._alone, self._others),
            self._transfer_latency,
            self._kernel_latency,
        )
        run.hbm = self._capacity
        run.wanted = self._wanted
        for aggregate, site in self._holdings:
            run.place(aggregate, site)
        run.run(limit)
        return run

    def _step(self, action: Action) -> _Step | None:
        aggregate = self._aggregate(action.aggregate)
        source, lanes = action.source, self._lanes
        sites = (source, *action.destinations)
        if aggregate is None or not self._sites.issuperset(sites):
            return None
        if any((source, site) not in lanes for site in action.destinations):
            return None
        flows = tuple((lanes[source, site], site) for site in action.destinations)
        waits = tuple(dict.fromkeys((wait.aggregate, wait.source, wait.destinations) for wait in action.after))
        return _Step(aggregate, source, flows, (action.aggregate, source, action.destinations), waits)

    def _aggregate(self, name: Aggregate) -> _Aggregate | None:
        """None where IN does not have its atoms, or gives them different sizes."""
        if name not in self._aggregates:
            found = None
            if len({self._sizes.get(atom) for atom in name}) == 1 and name[0] in self._sizes:
                numbers = [self._numbers[atom] for atom in name]
                mask = sum(1 << number for number in numbers)
                base = len(self._aggregates) * self._width
                found = _Aggregate(
                    name, mask, base, tuple(number * self._width for number in numbers), self._sizes[name[0]]
                )
            self._aggregates[name] = found
        return self._aggregates[name]

    def _known(self, name: Aggregate) -> _Aggregate:
        aggregate = self._aggregate(name)
        assert aggregate is not None, "sizes have been checked"
        return aggregate


def _bare(preamble: Program) -> Program:
    """The preamble with nothing required, to check its declarations alone."""
    return Program(preamble.gpus, preamble.partitions, preamble.holdings, (), ())


class _Goal:
    """An aggregate wanted at a site, and the parts of it that are there."""

    __slots__ = ("aggregate", "copy", "missing", "overlapping", "parts", "ready", "steps")

    def __init__(self, aggregate: _Aggregate, copy: int) -> None:
        self.aggregate, self.copy = aggregate, copy
        self.missing = aggregate.mask
        self.overlapping = self.ready = False
        self.parts: list[Aggregate] = []
        self.steps: list[int] = []


class _Run:
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

    def __init__(self, steps: list[_Step], fluid: Fluid, transfer_latency: float, kernel_latency: float) -> None:
        self.steps, self.fluid = steps, fluid
        self.transfer_latency, self.kernel_latency = transfer_latency, kernel_latency
        self.hbm: Sequence[float] = ()
        self.wanted: set[int] = set()
        self.now = 0.0
        self.held: set[int] = set()
        self.placed: list[tuple[_Aggregate, int]] = []
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
        named: dict[_Plain, list[int]] = {}
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

    def place(self, aggregate: _Aggregate, site: int) -> None:
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
