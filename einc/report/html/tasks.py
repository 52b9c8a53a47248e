"""The tasks of a plan in time, as columns: who does what when, what each waits for, and why sites are idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einc.machines.model import Machine
from einc.plan_reading.timing import Timing, make_labeller
from einc.predict.timeline import PlanTimeline
from einc_runtime.plan.regions import region_bytes
from einc_runtime.plan.schema import AnyTask, Bundle, FenceTask, KernelTask, TransferTask

Columns = dict[str, Any]

NS_PER_MS = 1e6  # the page counts in whole nanoseconds

KERNEL, COMBINE, TRANSFER = range(3)
"""The kinds of tasks that are drawn, as numbers; `combine` is an aggregation or a copy."""


def describe_tasks(bundle: Bundle, timing: Timing) -> Columns | None:
    """All tasks but fences, in the order of their starts. None for a plan that was not timed.

    `start` has the differences from task to task and `length` the durations, both in nanoseconds. `label` is a position
    in `labels`, which are `[name, whether it is an output]`, and `tensor` one in the plan. `cause` says how many tasks
    earlier in this order the last one stands that the task had to wait for, and is 0 where it waited for none. `target`
    is the site that a transfer leads to, -1 for all others. `critical` lists the tasks that decide the end, and `error`
    has the percents by which each task's time may be off, rounded, or is null where nothing was fitted to the GPUs.
    """
    times = timing.times
    if times is None:
        return None
    order = sort_by_start(bundle.tasks, times)
    position = {task: at for at, task in enumerate(order)}
    causes = _find_causes(bundle.tasks, times)
    label_of = make_labeller(bundle)
    labels: dict[tuple[str, bool], int] = {}
    columns: Columns = {name: [] for name in ("start", "length", "kind", "site", "target", "label", "tensor", "bytes",
                                              "cause")}  # fmt: skip
    before = 0
    for at, task_number in enumerate(order):
        task = bundle.tasks[task_number]
        start, end = (round(time * NS_PER_MS) for time in (times.starts[task_number], times.ends[task_number]))
        assert not isinstance(task, FenceTask)
        region = task.read if isinstance(task, TransferTask) else task.writes[0]
        cause = causes[task_number]
        row = (
            start - before,
            end - start,
            _number_kind(task),
            task.site,
            bundle.buffers[task.write.buffer].site if isinstance(task, TransferTask) else -1,
            labels.setdefault(label_of(task), len(labels)),
            bundle.buffers[region.buffer].tensor,
            region_bytes(bundle, region),
            at - position[cause] if cause is not None and position[cause] < at else 0,
        )
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)
        before = start
    return columns | {
        "labels": [list(label) for label in labels],
        "error": None if timing.errors is None else [round(100 * timing.errors[task]) for task in order],
        "critical": [position[task] for task in timing.critical if task in position],
        "end": round(times.predicted_ms * NS_PER_MS),
    }


def sort_by_start(tasks: Sequence[AnyTask], times: PlanTimeline) -> list[int]:
    """The positions of all tasks but fences, by their start, their end and then their position."""
    drawn = [number for number, task in enumerate(tasks) if not isinstance(task, FenceTask)]
    return sorted(drawn, key=lambda number: (times.starts[number], times.ends[number], number))


def describe_idle_time(bundle: Bundle, timing: Timing, machine: Machine) -> list[dict[str, float]] | None:
    """For every site the milliseconds of its kernels, of combining, and of idle time by what it was waiting for.

    `waits_transfer_ms` is the idle time before a task whose last dependency was a transfer, `waits_site_ms` that before
    a task that waited for other work, and `end_ms` that after the last task. The five add up to the predicted time.
    None for a plan that was not timed, and where sites share cores, whose tasks no site runs by itself.
    """
    times = timing.times
    if times is None or machine.cores is not None:
        return None
    causes = _find_causes(bundle.tasks, times)
    rows = [dict.fromkeys(("kernel_ms", "combine_ms", "waits_transfer_ms", "waits_site_ms", "end_ms"), 0.0)
            for _ in machine.sites]  # fmt: skip
    reached, weights = [0.0] * len(rows), timing.weights
    for number in sort_by_start(bundle.tasks, times):
        task = bundle.tasks[number]
        if isinstance(task, TransferTask):
            continue
        row, start, end = rows[task.site], times.starts[number], times.ends[number]
        cause = causes[number]
        waited = cause is not None and isinstance(bundle.tasks[cause], TransferTask)
        idle_ms, busy_ms = start - reached[task.site], end - start
        row["waits_transfer_ms" if waited else "waits_site_ms"] += weights[number] * idle_ms
        row["kernel_ms" if isinstance(task, KernelTask) else "combine_ms"] += weights[number] * busy_ms
        reached[task.site] = end
    for row, last in zip(rows, reached, strict=True):
        row["end_ms"] = times.predicted_ms - last
    return rows


def _find_causes(tasks: Sequence[AnyTask], times: PlanTimeline) -> list[int | None]:
    """For every task the one among those that it waits for that ended last, seen through fences."""
    causes: list[int | None] = []
    for task in tasks:
        before = [causes[number] if isinstance(tasks[number], FenceTask) else number for number in task.after]
        known = [number for number in before if number is not None]
        causes.append(max(known, key=lambda number: (times.ends[number], number)) if known else None)
    return causes


def _number_kind(task: AnyTask) -> int:
    return KERNEL if isinstance(task, KernelTask) else TRANSFER if isinstance(task, TransferTask) else COMBINE
