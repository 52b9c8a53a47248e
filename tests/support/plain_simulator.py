"""The plain simulator: the rules of `docs/exchange-programs.md` written down as directly as possible.

The simulator of the product is held against it. Between two events every aggregation and every flow proceeds at a
constant rate: aggregations share the HBM bandwidth of their site equally, flows are max-min fair over the resources
that they cross.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from einc.errors import ProgramError
from einc.exchange.language.checker import check, find_static_faults
from einc.exchange.language.closure import Copy, State, index_waits
from einc.exchange.language.program import (
    Action,
    Aggregate,
    Program,
    collect_atom_sizes,
    list_targets,
)
from einc.exchange.simulation.body_run import ActionEvent, Timeline
from einc.exchange.simulation.fluid import SAME_INSTANT
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine

Route = tuple[int, ...]
"""The positions of the resources that a flow crosses. Flows of one route always have the same rate."""


class FairNetwork:
    """Max-min fair rates by progressive filling: all rates rise together; those that cross a full resource stop.

    Resources of fixed capacity and the flows that cross them; rates are in the unit of the capacities.
    """

    __slots__ = ("_capacity", "_load", "_users")

    def __init__(self, capacity: Sequence[float]) -> None:
        self._capacity = capacity
        self._load: dict[int, int] = {}  # flows, by resource that any flow crosses
        self._users: dict[int, dict[Route, int]] = {}  # flows by route, for every such resource

    def add(self, route: Route, count: int) -> None:
        """Let `count` more flows (fewer, where negative) take a route of at least one resource."""
        for resource in route:
            users = self._users.setdefault(resource, {})
            users[route] = users.get(route, 0) + count
            self._load[resource] = self._load.get(resource, 0) + count
            if not users[route]:
                del users[route]
            if not users:
                del self._users[resource], self._load[resource]

    def rates(self) -> dict[Route, float]:
        """The rate of each single flow of every route that has flows."""
        rates: dict[Route, float] = {}
        load = self._load.copy()  # of flows whose rate still rises
        left = {resource: self._capacity[resource] for resource in load}
        queue = [(left[resource] / flows, resource) for resource, flows in load.items()]
        heapq.heapify(queue)
        level = 0.0
        while queue:
            share, resource = queue[0]
            flows = load[resource]
            if not flows:
                heapq.heappop(queue)
            elif (now := left[resource] / flows) > share:
                heapq.heapreplace(queue, (now, resource))  # flows have stopped elsewhere since: it fills later
            else:
                heapq.heappop(queue)
                level = max(level, now)
                for route, count in self._users[resource].items():
                    if route not in rates:
                        rates[route] = level
                        taken = level * count
                        for crossed in route:
                            load[crossed] -= count
                            left[crossed] -= taken
        return rates


def simulate_plainly(program: Program, machine: Machine) -> Timeline:
    """Run a ground program; `machine.ideal()` leaves the latencies out.

    Raises ProgramError, with the reason in words, for a program that is not valid on the machine.
    """
    for fault in find_static_faults(program, machine):
        raise ProgramError(fault.message)
    simulation = PlainSimulation(program, machine)
    simulation.run()
    met = all(
        (requirement.aggregate, site) in simulation.state
        for requirement in program.requirements
        for site in list_targets(program, requirement)
    )
    if not met or any(record.end is None for record in simulation.records):
        faults = check(program, machine).faults
        raise ProgramError(
            faults[0].message, hint=f"and {len(faults) - 1} more faults: check lists them" if len(faults) > 1 else None
        )
    events = tuple(record.event() for record in simulation.records)
    return Timeline(max((event.end for event in events), default=0.0), events, simulation.state.copies)


class _Record:
    """The event of one action in the making."""

    __slots__ = ("action", "arrivals", "end", "formed", "parts", "start")

    def __init__(self, action: Action) -> None:
        self.action = action
        self.parts: tuple[Aggregate, ...] = ()
        self.start = self.formed = 0.0
        self.arrivals: dict[int, float] = {}
        self.end: float | None = None

    def event(self) -> ActionEvent:
        assert self.end is not None
        arrivals = tuple(sorted(self.arrivals.items()))
        return ActionEvent(self.action, self.start, self.parts, self.formed, arrivals, self.end)


_Job = tuple[int, int]
"""The position of an action and a site: that of its aggregation, or the destination of one of its flows."""


class _Lane:
    """Jobs that always have the same rate: the aggregations of a site, or the flows of a route.

    A job ends when `served`, the bytes that each job of the lane has been given up to `since`, reaches its mark. `next`
    is when the first one ends, if the rate stays.
    """

    __slots__ = ("marks", "next", "rate", "served", "since")

    def __init__(self, now: float) -> None:
        self.rate = 0.0  # bytes per ms of each job
        self.served = 0.0
        self.since = now
        self.next = float("inf")
        self.marks: list[tuple[float, _Job]] = []

    def settle(self, now: float) -> None:
        self.served += self.rate * (now - self.since)
        self.since = now

    def add(self, size: float, job: _Job, now: float) -> None:
        """A job of `size` bytes joins; the rate has to be set anew."""
        self.settle(now)
        heapq.heappush(self.marks, (self.served + size, job))

    def set_rate(self, rate: float, now: float) -> None:
        self.settle(now)
        self.rate = rate
        self.next = now + max(0.0, self.marks[0][0] - self.served) / rate

    def leave(self, now: float, slack: float) -> list[_Job]:
        """The first job is due and leaves, as do those that end within `slack` ms; the rate has to be set anew."""
        self.settle(now)
        done = [heapq.heappop(self.marks)[1]]
        while self.marks and (self.marks[0][0] - self.served) / self.rate <= slack:
            done.append(heapq.heappop(self.marks)[1])
        return done


class PlainSimulation:
    """One run. `advance` moves to the next instant and applies its ends; `begin` starts what can then start."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.now = 0.0
        self.records = [_Record(action) for action in program.actions]
        self.state = State((action.aggregate, action.source) for action in program.actions if not action.reads)
        self.startable: list[int] = []
        self.at_goal: dict[Copy, list[int]] = {}
        for position, action in enumerate(program.actions):
            if not action.reads:
                self.at_goal.setdefault((action.aggregate, action.source), []).append(position)
        self.open_waits, self.waiters = index_waits(program)
        self.sizes = collect_atom_sizes(program)
        self.routes = machine.routes
        self.hbm = [site.sustained_gbs * BYTES_PER_MS for site in machine.sites]
        self.kernel_latency = machine.kernel_latency_us * MS_PER_US
        self.transfer_latency = machine.transfer_latency_us * MS_PER_US
        self.aggregations: dict[int, _Lane] = {}  # by site; lanes without jobs are dropped
        self.flows: dict[Route, _Lane] = {}
        self.changed = False  # whether jobs came or went since rates were set
        self.network = FairNetwork([resource.gbs * BYTES_PER_MS for resource in machine.resources])
        self.departures: list[tuple[float, int]] = []  # when an action's latency is over and its flows begin

    def run(self) -> None:
        for holding in self.program.holdings:
            for site in holding.sites:
                self.place(holding.aggregate, site)
        self.begin()
        while self.aggregations or self.flows or self.departures:
            self.advance()
            self.begin()

    def advance(self) -> None:
        """Go to the next instant at which something ends, and apply all ends of that instant."""
        lanes = [*self.aggregations.values(), *self.flows.values()]
        self.now = min([lane.next for lane in lanes] + [time for time, _ in self.departures[:1]])
        slack = SAME_INSTANT * self.now
        formed = self.leave(self.aggregations, slack)
        landed = self.leave(self.flows, slack)
        for position, site in landed:
            self.network.add(self.route(position, site), -1)
        while self.departures and self.departures[0][0] - self.now <= slack:
            self.depart(heapq.heappop(self.departures)[1])
        for position, site in formed:
            self.place(self.records[position].action.aggregate, site)
            self.send(position)
        for position, site in landed:
            record = self.records[position]
            action = record.action
            sites = (action.source,) if action.reads else action.destinations if action.multicast else (site,)
            for arrived in sites:
                record.arrivals[arrived] = self.now
                self.place(action.aggregate, arrived)
            if len(record.arrivals) == (1 if action.reads else len(action.destinations)):
                self.end(position)

    def leave(self, lanes: dict[Any, _Lane], slack: float) -> list[_Job]:
        """The jobs that end at this instant leave their lanes, empty lanes are dropped."""
        done = []
        for key in [key for key, lane in lanes.items() if lane.next - self.now <= slack]:
            done += lanes[key].leave(self.now, slack)
            if not lanes[key].marks:
                del lanes[key]
        self.changed |= bool(done)
        return done

    def begin(self) -> None:
        """Start all actions that can start, until no more can at this instant; then settle the rates."""
        while self.startable:
            batch, self.startable = sorted(self.startable), []
            for position in batch:
                self.start(position)
        if self.changed:
            for site, lane in self.aggregations.items():
                lane.set_rate(self.hbm[site] / len(lane.marks), self.now)
            for route, rate in self.network.rates().items():
                self.flows[route].set_rate(rate, self.now)
            self.changed = False

    def place(self, aggregate: Aggregate, site: int) -> None:
        """Make a copy present, and note the actions that it enables."""
        new = (aggregate, site) not in self.state
        for goal in self.state.add(aggregate, site):
            self.startable += [position for position in self.at_goal[goal] if not self.open_waits[position]]
        for position, action in enumerate(self.program.actions if new else ()):
            if (aggregate, site) in action.reads and self.is_ready(position) and not self.open_waits[position]:
                self.startable.append(position)

    def is_ready(self, position: int) -> bool:
        action = self.records[position].action
        if action.reads:
            return all(copy in self.state for copy in action.reads)
        return self.state.is_ready((action.aggregate, action.source))

    def start(self, position: int) -> None:
        record = self.records[position]
        aggregate, source = record.action.aggregate, record.action.source
        record.start = self.now
        if record.action.reads:
            record.parts = tuple(part for part, _ in record.action.reads)
            self.send(position)
            return
        record.parts = self.state.partition((aggregate, source))
        if len(record.parts) == 1:
            self.send(position)
            return
        # A kernel's latency occupies its site: it weighs as much as the bytes that HBM could move in that time.
        traffic = (len(record.parts) + 1) * self.sizes[aggregate[0]]
        lane = self.aggregations.setdefault(source, _Lane(self.now))
        lane.add(traffic + self.kernel_latency * self.hbm[source], (position, source), self.now)
        self.changed = True

    def send(self, position: int) -> None:
        """The aggregate is whole at the source: its transfers begin, after their latency, or the action ends."""
        record = self.records[position]
        record.formed = self.now
        if not record.action.destinations and not record.action.reads:
            self.end(position)
        elif self.transfer_latency:
            heapq.heappush(self.departures, (self.now + self.transfer_latency, position))
        else:
            self.depart(position)

    def depart(self, position: int) -> None:
        """All flows of an action begin."""
        action = self.records[position].action
        size = self.sizes[action.aggregate[0]]
        sites = action.destinations
        if action.reads or action.multicast:  # one flow, whatever it is called
            sites = (action.destinations or (action.source,))[:1]
        for site in sites:
            route = self.route(position, site)
            self.network.add(route, 1)
            self.flows.setdefault(route, _Lane(self.now)).add(size, (position, site), self.now)
        self.changed = True

    def route(self, position: int, site: int) -> Route:
        action = self.records[position].action
        if action.multicast:
            crossed = {k for end in action.destinations for k in self.routes[action.source, end]}
        elif action.reads:
            crossed = {k for _, start in action.reads for k in self.leave_by(start) | self.enter_by(action.source)}
        else:
            return self.routes[action.source, site]
        return tuple(sorted(crossed))

    def leave_by(self, site: int) -> set[int]:
        """What all transfers from a site cross: its port to the switch."""
        return set.intersection(*(set(route) for (source, _), route in self.routes.items() if source == site))

    def enter_by(self, site: int) -> set[int]:
        return set.intersection(*(set(route) for (_, end), route in self.routes.items() if end == site))

    def end(self, position: int) -> None:
        self.records[position].end = self.now
        for waiter in self.waiters.get(position, ()):
            self.open_waits[waiter] -= 1
            if not self.open_waits[waiter] and self.is_ready(waiter):
                self.startable.append(waiter)
