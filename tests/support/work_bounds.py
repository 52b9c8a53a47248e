"""Two times that no schedule of tasks can beat."""

from __future__ import annotations

from collections.abc import Sequence

from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine
from einc.predict.costs import TaskCost, TaskKind, compute_occupied_ms


def critical_path_ms(works: Sequence[TaskCost], machine: Machine) -> float:
    """The longest chain of dependencies, every transfer alone on its way: no schedule is faster."""
    routes = machine.routes
    ends: list[float] = []
    for work in works:
        length = 0.0
        if work.kind is TaskKind.TRANSFER:
            slowest = min(machine.resources[r].gbs for r in routes[work.site, work.target])
            length = machine.transfer_latency_us * MS_PER_US + work.size / (slowest * BYTES_PER_MS)
        elif work.kind is not TaskKind.FENCE:
            length = compute_occupied_ms(work, machine.sites[work.site], machine.kernel_latency_us)
        ends.append(max((ends[before] for before in work.after), default=0.0) + length)
    return max(ends, default=0.0)


def capacity_bound_ms(works: Sequence[TaskCost], machine: Machine) -> float:
    """What the busiest site or resource has to do, without a pause: no schedule is faster."""
    routes = machine.routes
    sites = [0.0] * len(machine.sites)
    resources = [0.0] * len(machine.resources)
    for work in works:
        if work.kind is TaskKind.TRANSFER:
            for resource in routes[work.site, work.target]:
                resources[resource] += work.size / (machine.resources[resource].gbs * BYTES_PER_MS)
        elif work.kind is not TaskKind.FENCE:
            sites[work.site] += compute_occupied_ms(work, machine.sites[work.site], machine.kernel_latency_us)
    return max([*sites, *resources], default=0.0)
