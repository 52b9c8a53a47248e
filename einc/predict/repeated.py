"""How long a layer takes in a long row of equal ones."""

from __future__ import annotations

from typing import Protocol

from einc.predict.timeline import TimedRun
from einc_runtime.plan.record import Repetition
from einc_runtime.plan.regions import ExecutablePlan
from einc_runtime.plan.repetition import find_copied
from einc_runtime.plan.schema import KernelTask


class RepeatingPlan(ExecutablePlan, Protocol):
    """A plan that may say a layer once for all of its copies."""

    @property
    def repetition(self) -> Repetition | None: ...


def predict_whole(plan: RepeatingPlan, timed: TimedRun) -> float:
    """What the whole plan takes, in ms: what is said of it, and a period for every copy of the layer."""
    said_ms, repetition = timed.timeline.predicted_ms, plan.repetition
    if repetition is None:
        return said_ms
    return said_ms + len(repetition.copies) * sum(measure_periods(plan, timed))


def measure_periods(plan: RepeatingPlan, timed: TimedRun) -> list[float]:
    """For each section of operations, how long one of its layers takes, in ms.

    Of several sections, one may run beside another, as updates do beside gradients. Then its layers may even end in
    another order, and each is taken to add what its kernels keep a site busy for, at most.
    """
    if plan.repetition is None:
        return []
    copied = [find_copied(section, plan.repetition.head) for section in plan.repetition.operations]
    periods = [measure_period(plan, timed, layer.before, layer.count) for layer in copied]
    if len(copied) == 1:
        return periods
    busy = [measure_busy(plan, timed, range(layer.first, layer.end)) for layer in copied]
    return [max(pair) for pair in zip(periods, busy, strict=True)]


def measure_busy(plan: ExecutablePlan, timed: TimedRun, operations: range) -> float:
    """How long kernels of these operations keep the site busy that has most of them, in ms."""
    busy = [0.0] * len(plan.memory)
    times = zip(timed.run.origins, timed.timeline.starts, timed.timeline.ends, strict=True)
    for origin, start, end in times:
        task = plan.tasks[origin]
        if isinstance(task, KernelTask) and task.operation in operations:
            busy[task.site] += end - start
    return max(busy)


def measure_period(plan: ExecutablePlan, timed: TimedRun, first: int, count: int) -> float:
    """How long it takes, in ms, from the ends of the kernels of a layer to those of the next one, on average over its
    operations, `count` from `first` on; the next layer's follow them.

    Once layers overlap as they do in the middle of a long row, one ends in every such period.
    """
    ends: dict[int, float] = {}
    for origin, end in zip(timed.run.origins, timed.timeline.ends, strict=True):
        task = plan.tasks[origin]
        if isinstance(task, KernelTask):
            ends[task.operation] = max(end, ends.get(task.operation, 0.0))
    layer = range(first, first + count)
    periods = [ends[n + count] - ends[n] for n in layer if n in ends and n + count in ends]
    return sum(periods) / max(1, len(periods))
