"""The time of a plan by the rules of ranks over MPI, which differ from those of plans in three ways:

- A message leaves when its data are there, and waits at its receiver until its place there is free. In a plan, a
  transfer starts when its place is free, too. Orders of transfers that have nothing to do with data are not kept.
- Messages of one pair of ranks go one after the other, on one connection. In a plan, they share their links.
- Of the kernels that are ready, a rank runs the one first after which the longest chain of tasks comes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from einc.machines.model import Machine, Pair
from einc.predict.cores import list_run_tasks
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.timeline import _Simulation, find_lanes
from einc_runtime.execution.ranks.cpu_part import measure_chains
from einc_runtime.execution.rewrites.dependencies import find_dependencies
from einc_runtime.plan.regions import writes_of
from einc_runtime.plan.schema import Bundle, Region, TransferTask


def predict_ranks_ms(bundle: Bundle, machine: Machine) -> float:
    """Milliseconds of a plan whose sites are ranks over MPI, on the machine of these sites."""
    costs = list_run_tasks(bundle, machine).costs
    run = _RanksSimulation(_sort(_release_early(bundle, costs), measure_chains(bundle)), machine)
    run.run(math.inf)
    return max(run.ends, default=0.0)


def _release_early(bundle: Bundle, costs: Sequence[TaskCost]) -> list[TaskCost]:
    """The tasks, each transfer after its data alone. What its place has to wait for is waited for by its readers."""
    waits = find_dependencies(bundle, list(bundle.tasks))
    writers: dict[int, list[tuple[int, Region]]] = {}
    places: dict[int, set[int]] = {}  # by transfer: what its place at the receiver waits for
    released = []
    for number, (task, cost) in enumerate(zip(bundle.tasks, costs, strict=True)):
        if isinstance(task, TransferTask):
            places[number] = set(waits[number])
            after = {one for one, region in writers.get(task.read.buffer, ()) if _meet(region, task.read)}
        else:
            after = set(waits[number])
        released.append(cost._replace(after=tuple(sorted(after.union(*(places.get(one, ()) for one in after))))))
        for region in writes_of(task):
            writers.setdefault(region.buffer, []).append((number, region))
    return released


def _meet(one: Region, other: Region) -> bool:
    spans = zip(one.block.lower, one.block.upper, other.block.lower, other.block.upper, strict=True)
    return all(max(low, lower) < min(up, upper) for low, up, lower, upper in spans)


def _sort(costs: Sequence[TaskCost], urgency: Sequence[float]) -> list[TaskCost]:
    """The tasks, the most urgent ones first: of those that are ready, a site runs the first one."""
    order = sorted(range(len(costs)), key=lambda number: (-urgency[number], number))
    places = {number: place for place, number in enumerate(order)}
    return [costs[number]._replace(after=tuple(places[one] for one in costs[number].after)) for number in order]


class _RanksSimulation(_Simulation):
    """One simulation, in which the transfers of a pair go one after the other."""

    def __init__(self, costs: Sequence[TaskCost], machine: Machine) -> None:
        super().__init__(costs, machine, find_lanes(costs, machine))
        self.queues: dict[Pair, deque[int]] = {}

    def join(self, position: int, cost: TaskCost) -> None:
        queue = self.queues.setdefault((cost.site, cost.target), deque())
        queue.append(position)
        if len(queue) == 1:
            super().join(position, cost)

    def end(self, ended: list[int]) -> None:
        super().end(ended)
        for position in ended:
            cost = self.costs[position]
            if cost.kind is TaskKind.TRANSFER:
                queue = self.queues[cost.site, cost.target]
                queue.popleft()
                if queue:
                    super().join(queue[0], self.costs[queue[0]])
