"""What limits a plan: computing, the memory of its sites, exchanges between them, or launches of small kernels."""

from __future__ import annotations

import math
from typing import Literal, get_args

from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Site
from einc.plan_reading.timing import Timing
from einc.predict.costs import TaskCost, TaskKind

Limit = Literal["computing", "memory", "exchanges", "launches"]
"""What most of the critical path of a plan is spent on: operations, reading and writing the memory of a site, moving
and combining what sites have for one another, or launching kernels that take no longer than their launch."""


def find_limit(timing: Timing, machine: Machine) -> tuple[Limit, float] | tuple[None, None]:
    """What takes most of the critical path, and which part of it; None for a plan that was not timed."""
    if timing.times is None or not timing.critical:
        return None, None
    spent: dict[Limit, float] = dict.fromkeys(get_args(Limit), 0.0)
    for position in timing.critical:
        cost = timing.costs[position]
        if cost.kind is not TaskKind.FENCE:
            taken_ms = timing.times.ends[position] - timing.times.starts[position]
            spent[_find_task_limit(cost, taken_ms, machine)] += taken_ms * timing.weights[position]
    total = sum(spent.values())
    limit = max(spent, key=lambda name: spent[name])
    return (limit, spent[limit] / total) if total > 0 else (None, None)


def _find_task_limit(cost: TaskCost, taken_ms: float, machine: Machine) -> Limit:
    """A kernel is limited by its launch if that is half of its time, else by what takes longer at the peaks of its
    site: its operations or its bytes."""
    if cost.kind is not TaskKind.KERNEL:
        return "exchanges"
    if 2 * machine.kernel_latency_us * MS_PER_US >= taken_ms:
        return "launches"
    site = machine.sites[cost.site]
    return "computing" if _count_peak_ms(cost, site) > _count_reading_ms(cost, site) else "memory"


def find_peak_parts(timing: Timing, machine: Machine) -> tuple[float, float]:
    """Which parts of the peak rates of all sites a plan reaches from its beginning to its end: operations of kernels,
    and bytes that tasks read and write in the memory of their sites."""
    available = (timing.predicted_ms or 0.0) * len(machine.sites)
    if not available:
        return 0.0, 0.0
    every = list(zip(timing.costs, timing.weights, strict=True))
    kernels = [(cost, weight) for cost, weight in every if cost.kind is TaskKind.KERNEL]
    in_memory = [(cost, weight) for cost, weight in every if cost.kind in (TaskKind.KERNEL, TaskKind.COMBINE)]
    computing = math.fsum(weight * _count_peak_ms(cost, machine.sites[cost.site]) for cost, weight in kernels)
    reading = math.fsum(weight * _count_reading_ms(cost, machine.sites[cost.site]) for cost, weight in in_memory)
    return computing / available, reading / available


def _count_peak_ms(cost: TaskCost, site: Site) -> float:
    return cost.flops / site.peak(cost.precision) * 1e3


def _count_reading_ms(cost: TaskCost, site: Site) -> float:
    return cost.size / (site.hbm_gbs * BYTES_PER_MS)
