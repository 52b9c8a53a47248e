"""A task in numbers: all that its time depends on. `physical` and `report` make them of device programs and plans."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from einc.machines.model import Machine, Site

BYTES_PER_MS = 1e6  # of one GB/s
MS_PER_US = 1e-3


class Kind(enum.Enum):
    """RUN occupies its site; COMBINE too, and is part of an exchange; MOVE crosses links; FENCE takes no time."""

    RUN = "run"
    COMBINE = "combine"
    MOVE = "move"
    FENCE = "fence"


class Work(NamedTuple):
    """One task. `size` is the bytes that it moves: through the memory of its site, or to the site `target`.

    `flops` are its floating point operations, of the precision that the machine file calls `precision`. `after` lists
    positions of tasks, all smaller than its own, that must have ended.
    """

    kind: Kind
    site: int
    after: tuple[int, ...] = ()
    size: int = 0
    flops: int = 0
    precision: str = "f32"
    target: int = -1


def occupied_ms(work: Work, site: Site, kernel_latency_us: float) -> float:
    """How long a RUN or COMBINE occupies its site: its latency, and the longer of computing and of moving its bytes."""
    moving = work.size / (site.hbm_gbs * BYTES_PER_MS)
    computing = work.flops / site.peak(work.precision) * 1e3 if work.flops else 0.0
    return kernel_latency_us * MS_PER_US + max(moving, computing)


def critical_path_ms(works: Sequence[Work], machine: Machine) -> float:
    """The longest chain of dependencies, every transfer alone on its way: no schedule is faster."""
    routes = machine.routes()
    ends: list[float] = []
    for work in works:
        length = 0.0
        if work.kind is Kind.MOVE:
            slowest = min(machine.resources[r].gbs for r in routes[work.site, work.target])
            length = machine.transfer_latency_us * MS_PER_US + work.size / (slowest * BYTES_PER_MS)
        elif work.kind is not Kind.FENCE:
            length = occupied_ms(work, machine.sites[work.site], machine.kernel_latency_us)
        ends.append(max((ends[before] for before in work.after), default=0.0) + length)
    return max(ends, default=0.0)


def capacity_bound_ms(works: Sequence[Work], machine: Machine) -> float:
    """What the busiest site or resource has to do, without a pause: no schedule is faster."""
    routes = machine.routes()
    sites = [0.0] * len(machine.sites)
    resources = [0.0] * len(machine.resources)
    for work in works:
        if work.kind is Kind.MOVE:
            for resource in routes[work.site, work.target]:
                resources[resource] += work.size / (machine.resources[resource].gbs * BYTES_PER_MS)
        elif work.kind is not Kind.FENCE:
            sites[work.site] += occupied_ms(work, machine.sites[work.site], machine.kernel_latency_us)
    return max([*sites, *resources], default=0.0)
