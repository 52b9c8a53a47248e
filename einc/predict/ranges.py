"""How far a predicted time may be off: the errors of the measured rates, along the tasks that decide the end.

What was fitted to a kind of kernels errs alike for all kernels of the kind, and independently for each kind. So errors
of one kind add up, and those of several add up as squares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from einc.machines.model import Machine
from einc.predict.breakdown import find_critical_chain
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.kernel_times import classify, find_error
from einc.predict.timeline import PlanTimeline

MOVING_ERROR = 0.2
"""For tasks that go through memory or cross links: nothing was fitted to them alone, and measured collectives are
within this part of what their bytes at sustained rates and a latency say."""


def find_range(costs: Sequence[TaskCost], times: PlanTimeline, machine: Machine) -> tuple[float, float] | None:
    """Between which times in ms four in five plans like this one end; None where the GPUs were not measured."""
    if machine.cores is not None or any(site.gpu is None for site in machine.sites):
        return None
    off: defaultdict[str, float] = defaultdict(float)
    for position in find_critical_chain(costs, times):
        cost = costs[position]
        length = times.ends[position] - times.starts[position]
        gpu = machine.sites[cost.site].gpu
        if cost.kind is TaskKind.KERNEL and cost.work is not None and gpu is not None:
            off[classify(cost.work, gpu)] += length * find_error(cost.work, cost.precision, gpu)
        else:
            off["moving"] += length * MOVING_ERROR
    deviation = math.hypot(*off.values())
    return max(0.0, times.predicted_ms - deviation), times.predicted_ms + deviation
