"""The machine of a plan file, its predicted timeline on it, where the time goes, and what limits the plan."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from einc.errors import MachineError
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Site
from einc.predict.breakdown import TimeBreakdown, break_down, find_critical_chain
from einc.predict.cores import RunTasks, list_run_tasks
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.ranges import Range, find_range, find_task_error
from einc.predict.repeated import measure_periods, predict_whole
from einc.predict.timeline import PlanTimeline, TimedRun, TooLarge, time_tasks
from einc_runtime.plan.repetition import weigh_tasks
from einc_runtime.plan.schema import AnyTask, Bundle, FenceTask, KernelTask, TransferTask

Label = tuple[str, bool]
"""The name that a task serves, and whether it brings home an output rather than inputs of an operator."""


MAX_EFFORT = 20_000_000
"""The effort of the simulation, up to a minute; a model of 32 layers on 72 sites takes less.

A plan of unknown origin could take years.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """The simulated times of a plan, and where they go. A plan that is too large has only the time that it states.

    `times` are those of the plan's own tasks, and `critical` the positions of those that decide the end, in their
    order. `breakdown` says where the time goes, by labels. `range_ms`, and `errors`, the part of its time by which each
    of the plan's tasks may be off, are None where nothing was fitted to the GPUs.

    Of a plan that says a layer once, `predicted_ms`, `breakdown` and `range_ms` are those of the whole, in which each
    copy of the layer adds `periods_ms`, by sections of operations; all else is that of the tasks that it says. `run`
    has the tasks that run, and `weights` say how many of the whole plan each of them stands for.
    """

    run: RunTasks
    predicted_ms: float | None
    times: PlanTimeline | None
    critical: tuple[int, ...]
    breakdown: TimeBreakdown[Label] | None
    range_ms: Range | None = None
    errors: tuple[float, ...] | None = None
    weights: Sequence[int] = ()
    periods_ms: Sequence[float] = ()


def read_plan_machine(bundle: Bundle) -> Machine:
    """The machine of a plan's sites."""
    return _parse_kept(bundle.machine_file)


@functools.lru_cache(maxsize=4)
def _parse_kept(text: str) -> Machine:
    """The machine of a text; kept, as every part of a report asks for it, and it keeps its routes."""
    from einc.machines.load import parse_machine

    return parse_machine(text, connected=False)


def time_plan(bundle: Bundle, machine: Machine) -> Timing:
    """The timeline of a plan on the machine of its sites. Raises MachineError where they do not fit."""
    if len(machine.sites) != len(bundle.devices):
        raise MachineError(
            f"the plan is for {len(bundle.devices)} sites, and the machine in it has {len(machine.sites)}"
        )
    tasks = list_run_tasks(bundle, machine)
    try:
        times = time_tasks(tasks.costs, machine, MAX_EFFORT)
    except TooLarge:
        known = bundle.predicted_ms if machine == read_plan_machine(bundle) else None
        return Timing(tasks, known, None, (), None)
    label = make_labeller(bundle)
    served = [label(bundle.tasks[origin]) for origin in tasks.origins]
    folded = times if machine.cores is None else fold_times(tasks.origins, times, bundle)
    chain = tuple(dict.fromkeys(tasks.origins[position] for position in find_critical_chain(tasks.costs, times)))
    weights_of_said = weigh_tasks(bundle, bundle.repetition)
    weights = [weights_of_said[origin] for origin in tasks.origins]
    parts = break_down(tasks.costs, served, times, machine, weights)
    timed = TimedRun(tasks, times)
    predicted_ms = predict_whole(bundle, timed)
    span = find_range(tasks.costs, times, machine)
    if span is not None and bundle.repetition is not None:
        span = (span[0] * predicted_ms / times.predicted_ms, span[1] * predicted_ms / times.predicted_ms)
    errors = None if span is None else tuple(find_task_error(cost, machine)[1] for cost in tasks.costs)
    periods_ms = measure_periods(bundle, timed)
    return Timing(tasks, predicted_ms, folded, chain, parts, span, errors, weights, periods_ms)


def fold_times(origins: Sequence[int], times: PlanTimeline, bundle: Bundle) -> PlanTimeline:
    """The times of the plan's own tasks from those of the tasks that were run instead.

    A task that was cut lasts from the start of its first part to the end of its last one. A task that was left out
    takes no time, after those that it waits for.
    """
    spans: dict[int, tuple[float, float]] = {}
    for origin, start, end in zip(origins, times.starts, times.ends, strict=True):
        first, last = spans.get(origin, (start, end))
        spans[origin] = min(first, start), max(last, end)
    for position, task in enumerate(bundle.tasks):
        if position not in spans:
            end = max((spans[before][1] for before in task.after), default=0.0)
            spans[position] = end, end
    ordered = [spans[position] for position in range(len(bundle.tasks))]
    return PlanTimeline(times.predicted_ms, tuple(start for start, _ in ordered), tuple(end for _, end in ordered))


def make_labeller(bundle: Bundle) -> Callable[[AnyTask], Label]:
    """A function that gives the label of a task.

    An operator bears the name of its first output. It never reads what it makes: a task that serves it and moves or
    combines that brings an output home, with what aggregates together with it.
    """
    makers = {t: operation.name for operation in bundle.operations for t in operation.outputs}
    saved = {bundle.tensors[output.tensor].name: makers.get(output.tensor) for output in bundle.outputs}

    def label(task: AnyTask) -> Label:
        if isinstance(task, KernelTask | FenceTask) or task.serves not in saved:
            return task.serves, False
        region = task.read if isinstance(task, TransferTask) else task.writes[0]
        return task.serves, saved[task.serves] == makers.get(bundle.buffers[region.buffer].tensor)

    return label


Limit = Literal["computing", "memory", "exchanges", "launches"]
"""What most of the critical path of a plan is spent on: operations, reading and writing the memory of a site, moving
and combining what sites have for one another, or launching kernels that take no longer than their launch."""


def find_limit(timing: Timing, machine: Machine) -> tuple[Limit, float] | tuple[None, None]:
    """What takes most of the critical path, and which part of it; None for a plan that was not timed."""
    if timing.times is None or not timing.critical:
        return None, None
    spent: dict[Limit, float] = dict.fromkeys(get_args(Limit), 0.0)
    for position in timing.critical:
        cost = timing.run.costs[position]
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
    every = list(zip(timing.run.costs, timing.weights, strict=True))
    kernels = [(cost, weight) for cost, weight in every if cost.kind is TaskKind.KERNEL]
    in_memory = [(cost, weight) for cost, weight in every if cost.kind in (TaskKind.KERNEL, TaskKind.COMBINE)]
    computing = math.fsum(weight * _count_peak_ms(cost, machine.sites[cost.site]) for cost, weight in kernels)
    reading = math.fsum(weight * _count_reading_ms(cost, machine.sites[cost.site]) for cost, weight in in_memory)
    return computing / available, reading / available


def _count_peak_ms(cost: TaskCost, site: Site) -> float:
    return cost.flops / site.peak(cost.precision) * 1e3


def _count_reading_ms(cost: TaskCost, site: Site) -> float:
    return cost.size / (site.hbm_gbs * BYTES_PER_MS)
