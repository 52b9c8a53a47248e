"""The simulation of a whole plan: when each task starts and ends on a machine.

The model is the fluid, event-driven one of exchange programs (`einc.exchange.simulation`), extended to kernels. A site
runs its kernels, aggregations and copies one at a time: of those that are ready, the one that comes first in the
program. Transfers overlap with them and share links max-min fairly. The latency of a kernel occupies its site; the
latency of a transfer comes before its flow. Tasks wait for their dependencies and for nothing else. Where sites share
processor cores, no link is crossed, and `cores` says when each task runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from einc.errors import MachineError
from einc.exchange.simulation.fluid import SAME_INSTANT, Fluid, find_private_capacities
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Site
from einc.predict.alike import NO_LANE, TaskLanes, merge_alike
from einc.predict.cores import RunTasks, list_run_tasks, schedule_on_cores
from einc.predict.costs import TaskCost, TaskKind, compute_occupied_ms, count_cached
from einc_runtime.plan.regions import ExecutablePlan


class TooLarge(MachineError):
    """Simulating the tasks would take more effort than was allowed."""


@dataclass(frozen=True, slots=True)
class PlanTimeline:
    """Milliseconds from the beginning, by position of the task. A transfer starts with its latency.

    `cores` has the core that ran each task, on a machine whose sites share cores.
    """

    predicted_ms: float
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    cores: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What is run of a plan, and when."""

    run: RunTasks
    timeline: PlanTimeline


def predict(plan: ExecutablePlan, machine: Machine, effort: float = math.inf) -> TimedRun:
    """What a machine runs of a device program or a plan file for its sites, and when by prediction.

    `effort` and errors are those of `time_tasks`.
    """
    run = list_run_tasks(plan, machine)
    return TimedRun(run, time_tasks(run.costs, machine, effort))


def time_tasks(costs: Sequence[TaskCost], machine: Machine, effort: float = math.inf) -> PlanTimeline:
    """Simulates the tasks; `machine.ideal()` leaves the latencies out.

    `effort` is the number of transfers that may be looked at, counting those under way at every event; about 500,000
    take a second. Raises MachineError where two sites are not connected, and TooLarge.
    """
    if machine.cores is not None:
        schedule = schedule_on_cores(costs, machine)
        return PlanTimeline(max(schedule.ends, default=0.0), schedule.starts, schedule.ends, schedule.cores)
    lanes = find_lanes(costs, machine)
    merged = merge_alike(costs, lanes, machine)
    if merged is None:
        run = _Simulation(costs, machine, lanes)
        run.run(effort)
        return PlanTimeline(max(run.ends, default=0.0), tuple(run.starts), tuple(run.ends))
    run = _Simulation(merged.costs, machine, merged.lanes)
    run.run(effort)
    starts, ends = (tuple([times[c] for c in merged.classes]) for times in (run.starts, run.ends))
    return PlanTimeline(max(run.ends, default=0.0), starts, ends)


class _Simulation:
    """One simulation. `run` goes from one instant to the next, ends tasks, and `begin` starts those that can start."""

    def __init__(self, costs: Sequence[TaskCost], machine: Machine, lanes: TaskLanes) -> None:
        self.costs = costs
        self.now = 0.0
        self.starts = [0.0] * len(costs)
        self.ends = [0.0] * len(costs)
        self.open = [len(cost.after) for cost in costs]
        self.followers: list[list[int]] = [[] for _ in costs]
        for position, cost in enumerate(costs):
            for before in cost.after:
                self.followers[before].append(position)
        self.lanes = lanes.of_tasks
        self.fluid = Fluid(lanes.capacity, lanes.routes, find_private_capacities(lanes.capacity, lanes.routes))
        self.transfer_latency = machine.transfer_latency_us * MS_PER_US
        self.machine = machine
        self.waiting: list[list[int]] = [[] for _ in machine.sites]  # by site: heap of tasks that could run
        self.idle = [True] * len(machine.sites)
        self.free: set[int] = set()  # idle sites that may have something to run
        self.moving = 0  # flows under way
        self.later: list[tuple[float, int]] = []  # heap of ends of runs, and of latencies of transfers
        self.ready = [position for position, count in enumerate(self.open) if not count]

    def run(self, effort: float) -> None:
        self.begin()
        while (now := self.next()) is not None:
            self.now = now
            effort -= 1 + self.moving
            if effort < 0:
                raise TooLarge("the plan has too many transfers at once to be timed")
            # What ends within rounding errors ends at one instant, or rounding would decide which follower is first.
            slack = SAME_INSTANT * now
            ended = [position for _, (position, _) in self.fluid.leave(now, slack)]
            self.moving -= len(ended)
            while self.later and self.later[0][0] - now <= slack:
                position = heapq.heappop(self.later)[1]
                cost = self.costs[position]
                if cost.kind is TaskKind.TRANSFER:
                    self.join(position, cost)
                else:
                    self.idle[cost.site] = True
                    self.free.add(cost.site)
                    ended.append(position)
            self.end(ended)
            self.begin()

    def next(self) -> float | None:
        """The next instant at which something ends."""
        now = self.fluid.upcoming()
        if self.later and (now is None or self.later[0][0] < now):
            return self.later[0][0]
        return now

    def end(self, ended: list[int]) -> None:
        """Ends tasks at this instant, and notes the tasks that waited for nothing else."""
        for position in ended:
            self.ends[position] = self.now
            for follower in self.followers[position]:
                self.open[follower] -= 1
                if not self.open[follower]:
                    self.ready.append(follower)

    def begin(self) -> None:
        """Starts the tasks that can start at this instant, then sets the rates of the flows."""
        while self.ready:
            batch, self.ready = self.ready, []
            for position in batch:
                cost = self.costs[position]
                if cost.kind is TaskKind.FENCE:
                    self.starts[position] = self.now
                    self.end([position])
                elif cost.kind is TaskKind.TRANSFER:
                    self.starts[position] = self.now
                    self.send(position, cost)
                else:
                    heapq.heappush(self.waiting[cost.site], position)
                    if self.idle[cost.site]:
                        self.free.add(cost.site)
        for site in self.free:
            if self.waiting[site]:
                position = heapq.heappop(self.waiting[site])
                self.starts[position] = self.now
                self.idle[site] = False
                heapq.heappush(self.later, (self.now + self.occupy(position, self.machine.sites[site]), position))
        self.free.clear()
        self.fluid.balance(self.now)

    def occupy(self, position: int, site: Site) -> float:
        """How long a task that starts now occupies its site."""
        cost, latency = self.costs[position], self.machine.kernel_latency_us
        early = cost.early
        cached = 0 if early is None else count_cached(early, self.now - self.ends[early.after], site, latency)
        return compute_occupied_ms(cost, site, latency, cached)

    def send(self, position: int, cost: TaskCost) -> None:
        latency = self.transfer_latency if cost.latency_ms is None else cost.latency_ms
        if latency:
            heapq.heappush(self.later, (self.now + latency, position))
        else:
            self.join(position, cost)

    def join(self, position: int, cost: TaskCost) -> None:
        self.moving += 1
        self.fluid.join(self.lanes[position], cost.size, (position, 0), self.now)


def find_lanes(costs: Sequence[TaskCost], machine: Machine) -> TaskLanes:
    """The resources that the transfers of each pair of sites cross."""
    routes = machine.routes
    pairs = sorted({(cost.site, cost.target) for cost in costs if cost.kind is TaskKind.TRANSFER})
    for source, target in pairs:
        if (source, target) not in routes:
            raise MachineError(f"no resource of {machine.name} connects site {source} with site {target}")
    used = tuple(dict.fromkeys(routes[pair] for pair in pairs))
    number = {route: lane for lane, route in enumerate(used)}
    lane_of = {pair: number[routes[pair]] for pair in pairs}
    of_tasks = [lane_of[cost.site, cost.target] if cost.kind is TaskKind.TRANSFER else NO_LANE for cost in costs]
    return TaskLanes(of_tasks, used, [resource.gbs * BYTES_PER_MS for resource in machine.resources])
