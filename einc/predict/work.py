"""A task in numbers: all that its time depends on. `physical` and `report` make them of device programs and plans."""

from __future__ import annotations

import enum
from typing import NamedTuple

from einc.machines.model import BYTES_PER_MS, MS_PER_US, Site


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
