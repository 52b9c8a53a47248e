"""How far a predicted time may be off: the errors of the measured rates, along the tasks that decide the end.

What was fitted to a kind of kernels errs alike for all kernels of the kind, and independently for each kind. So errors
of one kind add up, and those of several add up as squares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from einc.machines.model import Machine
from einc.predict.breakdown import find_critical_chain
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.kernel_times import classify, find_error
from einc.predict.timeline import PlanTimeline

Range = tuple[float, float]
"""Between which times in ms four in five plans, or exchanges, end."""

Rates = Literal["measured", "fitted", "peak"]

MOVING = "moving"

MOVING_ERROR = 0.2
"""For tasks that go through memory or cross links: nothing was fitted to them alone, and measured collectives are
within this part of what their bytes at sustained rates and a latency say."""


def name_rates(machine: Machine) -> Rates:
    """Where the times of kernels come from: `measured` on this machine, `fitted` to measurements of its GPUs, or the
    `peak` rates of the machine file, or rates that data sheets say, of which nothing was measured."""
    if machine.measured:
        return "measured"
    is_fitted = machine.cores is None and all(site.gpu is not None and site.gpu.measured for site in machine.sites)
    return "fitted" if is_fitted else "peak"


def find_range(costs: Sequence[TaskCost], times: PlanTimeline, machine: Machine) -> Range | None:
    """The range of a plan's time; None where nothing was fitted to the GPUs."""
    if name_rates(machine) != "fitted":
        return None
    off: defaultdict[str, float] = defaultdict(float)
    for position in find_critical_chain(costs, times):
        kind, error = find_task_error(costs[position], machine)
        off[kind] += (times.ends[position] - times.starts[position]) * error
    deviation = math.hypot(*off.values())
    return max(0.0, times.predicted_ms - deviation), times.predicted_ms + deviation


def find_moving_range(predicted_ms: float | None, machine: Machine) -> Range | None:
    """The range of the time of an exchange, or of a plan without kernels."""
    if predicted_ms is None or name_rates(machine) != "fitted":
        return None
    return (1 - MOVING_ERROR) * predicted_ms, (1 + MOVING_ERROR) * predicted_ms


def find_task_error(cost: TaskCost, machine: Machine) -> tuple[str, float]:
    """The kind of tasks that a task errs with, and within which part of their predicted time four in five are."""
    gpu = machine.sites[cost.site].gpu
    if cost.kind is TaskKind.KERNEL and cost.work is not None and gpu is not None:
        return classify(cost.work, gpu), find_error(cost.work, cost.precision, gpu)
    return MOVING, MOVING_ERROR


def find_difference_error(
    kernels: tuple[TaskCost, TaskCost], kernel_ms: tuple[float, float], added_ms: float, machine: Machine
) -> float | None:
    """Within which time in ms the difference of two plans is known, of which the second takes `added_ms` more.

    They differ in one kernel alone, and in what moves for it; all else errs alike in both and cancels. A kernel of
    another shape errs apart from the first, as every shape has an error of its own that the fit leaves. What moves errs
    alike, so that only the difference counts. None where nothing was fitted to the GPUs.
    """
    if name_rates(machine) != "fitted":
        return None
    if kernels[0].work == kernels[1].work:
        return MOVING_ERROR * abs(added_ms)
    moving_ms = added_ms - (kernel_ms[1] - kernel_ms[0])
    off = [took * find_task_error(cost, machine)[1] for cost, took in zip(kernels, kernel_ms, strict=True)]
    return math.hypot(*off, MOVING_ERROR * moving_ms)
