"""The predicted timeline of a plan file, and where its time goes, as parts of the document of `einc explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from einc.errors import MachineError
from einc.machines.model import Machine
from einc.predict.breakdown import LabelTime, TimeBreakdown, break_down, find_critical_chain
from einc.predict.cores import list_run_tasks
from einc.predict.ranges import Range, find_range, find_task_error, name_rates
from einc.predict.timeline import PlanTimeline, TooLarge, time_tasks
from einc_runtime.plan.schema import AnyTask, Bundle, FenceTask, KernelTask, TransferTask

Document = dict[str, Any]
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
    order. `range_ms`, and `errors`, the part of its time by which each of the plan's tasks may be off, are None where
    nothing was fitted to the GPUs.
    """

    predicted_ms: float | None
    times: PlanTimeline | None
    critical: tuple[int, ...]
    _breakdown: TimeBreakdown[Label] | None
    range_ms: Range | None = None
    errors: tuple[float, ...] | None = None

    def operator(self, name: str) -> Document | None:
        return None if self._breakdown is None else _describe_label(self._breakdown.labels.get((name, False)))

    def output(self, name: str) -> Document | None:
        return None if self._breakdown is None else _describe_label(self._breakdown.labels.get((name, True)))

    def document(self) -> Document | None:
        """The plan as a whole; resources that nothing crosses are left out."""
        if self._breakdown is None:
            return None
        kernels, combining, transfers = self._breakdown.critical
        return {
            "critical": {"compute_ms": kernels, "combine_ms": combining, "transfer_ms": transfers},
            "tail_ms": self._breakdown.tail,
            "site_ms": list(self._breakdown.sites),
            "links": [
                {"name": link.name, "bytes": link.carried, "busy_ms": link.busy, "full_ms": link.full}
                for link in self._breakdown.links
                if link.carried
            ],
        }


def read_plan_machine(bundle: Bundle) -> Machine:
    """The machine of a plan's sites."""
    from einc.machines.load import parse_machine

    return parse_machine(bundle.machine_file, connected=False)


def describe_prediction(bundle: Bundle) -> Document:
    """The range of a plan's predicted time, and where the times of its kernels come from, as `explain` says it."""
    machine = read_plan_machine(bundle)
    rates = name_rates(machine)
    span = time_plan(bundle, machine).range_ms if rates == "fitted" else None
    return {"predicted_range_ms": None if span is None else list(span), "rates": rates}


def describe_unlisted_peaks(bundle: Bundle, machine: Machine) -> str | None:
    """A note on element types that the plan computes in and the machine file has no peak for, if any."""
    used = {operation.precision for operation in bundle.operations if any(f.flops for f in operation.functions)}
    listed = set.intersection(*({name for name, _ in site.flops} for site in machine.sites))
    if "f16" in listed:
        used -= {"i8"}  # timed as f16
    if not used - listed:
        return None
    rest = "as f32" if "f32" in listed else "as if computing took no time, its bytes alone"
    return f"{machine.name} lists no FLOP/s for {' and '.join(sorted(used - listed))}: timed {rest}"


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
        return Timing(known, None, (), None)
    label = make_labeller(bundle)
    served = [label(bundle.tasks[origin]) for origin in tasks.origins]
    whole = times if machine.cores is None else fold_times(tasks.origins, times, bundle)
    chain = tuple(dict.fromkeys(tasks.origins[position] for position in find_critical_chain(tasks.costs, times)))
    parts = break_down(tasks.costs, served, times, machine)
    span = find_range(tasks.costs, times, machine)
    errors = None if span is None else tuple(find_task_error(cost, machine)[1] for cost in tasks.costs)
    return Timing(times.predicted_ms, whole, chain, parts, span, errors)


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


def _describe_label(time: LabelTime | None) -> Document:
    own = LabelTime(start=0.0) if time is None else time
    return {
        "start_ms": own.start,
        "end_ms": own.end,
        "compute_ms": own.compute,
        "combine_ms": own.combine,
        "waiting_ms": own.waiting,
        "exchange_ms": own.exchange,
        "critical_ms": own.critical,
    }
