"""Timelines, predicted and measured, and the file format of both (Chrome's trace events).

A timeline becomes a file in two steps:

    runs = [TaskRun(task, start_ms, end_ms, worker), ...]  # one per task of the bundle; fences may be left out
    text = format_trace(make_task_events(bundle, runs), "measured", bundle.model)

`make_task_events` draws tasks: kernels, aggregations and copies on the track `compute` of their site, and a transfer on
`out` of its source and on `in` of its destination, with an arrow between the two. A run that names a worker appears a
second time, on the track of that worker in the process `workers`. A caller can add events of its own (replays,
streams): a `TraceEvent` is a bar on any track of any site.

In the file, every site is a process, and every track is one or more threads: events that overlap on a track, as
transfers do, are distributed to `out`, `out 2`, ... so that no two bars of a thread overlap. The processes of a
measured timeline and of a predicted one have other numbers and names, sorted by site, so that Perfetto shows both in
one view.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from einc_runtime.plan.schema import (
    ITEMSIZE,
    AggregateTask,
    AnyTask,
    Bundle,
    CopyTask,
    FenceTask,
    KernelTask,
    TransferTask,
)

TraceSource = Literal["predicted", "measured"]
Argument = int | float | str
Json = dict[str, Any]

WORKERS = -1
"""The site number of the process that shows an executor's workers."""

_TRACKS = ("compute", "out", "in")
"""The order of a site's tracks; others follow by name."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """When a task of a bundle ran, in milliseconds from the start of the execution, and on which worker, if any."""

    task: int
    start_ms: float
    end_ms: float
    worker: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One measured execution: its runs sorted by their start, and its whole duration."""

    runs: tuple[TaskRun, ...]
    completion_ms: float
    backend: str


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A bar on a track of a site, or of the `WORKERS`. Two events of one `flow` are joined by an arrow, in order.

    `kind` groups events (Perfetto filters by it); `args` are shown when the bar is selected.
    """

    site: int
    track: str
    name: str
    start_ms: float
    end_ms: float
    args: Mapping[str, Argument] = field(default_factory=dict)
    kind: str = "kernel"
    flow: int | None = None


def task_kind(task: AnyTask) -> str:
    """kernel, transfer, aggregate, copy or fence."""
    for kind, name in ((KernelTask, "kernel"), (TransferTask, "transfer"), (AggregateTask, "aggregate")):
        if isinstance(task, kind):
            return name
    return "copy" if isinstance(task, CopyTask) else "fence"


def make_task_events(bundle: Bundle, runs: Iterable[TaskRun]) -> Iterator[TraceEvent]:
    """The events of a bundle's tasks. Fences do nothing and have no events."""
    for run in runs:
        task = bundle.tasks[run.task]
        if isinstance(task, FenceTask):
            continue
        kind, start, end = task_kind(task), run.start_ms, run.end_ms
        args: dict[str, Argument] = {"task": run.task, "serves": task.serves}
        region = task.read if isinstance(task, TransferTask) else task.writes[0]
        tensor = bundle.tensors[bundle.buffers[region.buffer].tensor]
        atom = f"{tensor.name}{region.block}"
        if isinstance(task, TransferTask):
            target = bundle.buffers[task.write.buffer].site
            args |= {"from": task.site, "to": target, "bytes": region.block.size * ITEMSIZE[tensor.dtype]}
            name = f"{atom} to {target}"
            yield TraceEvent(task.site, "out", name, start, end, args, kind, run.task)
            yield TraceEvent(target, "in", f"{atom} from {task.site}", start, end, args, kind, run.task)
        else:
            name = atom if isinstance(task, KernelTask) else f"{kind} {atom}"
            if isinstance(task, KernelTask):
                args["kernel"] = bundle.operations[task.operation].kernel
            yield TraceEvent(task.site, "compute", name, start, end, args, kind)
        if run.worker is not None:
            yield TraceEvent(WORKERS, f"worker {run.worker}", name, start, end, args, kind)


def format_trace(events: Iterable[TraceEvent], source: TraceSource, title: str) -> str:
    """The text of a trace file; equal events give equal bytes. Times are microseconds, to the nanosecond."""
    drawn = list(events)
    tracks: dict[tuple[int, str], list[int]] = {}
    flows: dict[int, list[int]] = {}
    for number, event in enumerate(drawn):
        tracks.setdefault((event.site, event.track), []).append(number)
        if event.flow is not None:
            flows.setdefault(event.flow, []).append(number)
    records: list[Json] = []
    threads: dict[int, int] = {}  # of each process
    places: dict[int, Json] = {}  # of events that an arrow joins
    for site, track in sorted(tracks, key=_sort_key):
        process = 10 * (site + 1) + (1 if source == "predicted" else 2)
        if process not in threads:
            threads[process] = 0
            name = "workers" if site == WORKERS else f"site {site}"
            records += _name_records("process", process, 0, f"{name} ({source}: {title})", process)
        for lane_number, lane in enumerate(_distribute(drawn, tracks[site, track]), 1):
            threads[process] += 1
            thread = threads[process]
            records += _name_records(
                "thread", process, thread, track if lane_number == 1 else f"{track} {lane_number}", thread
            )
            for number in lane:
                event = drawn[number]
                start = _nanoseconds(event.start_ms)
                position: Json = {"pid": process, "tid": thread, "ts": start / 1000}
                duration = (_nanoseconds(event.end_ms) - start) / 1000
                records.append(
                    {
                        "name": event.name,
                        "cat": event.kind,
                        "ph": "X",
                        **position,
                        "dur": duration,
                        "args": {**event.args},
                    }
                )
                if event.flow is not None:
                    places[number] = position
    for flow, ends in sorted(flows.items()):
        if len(ends) == 2:
            arrow: Json = {"name": "moves", "cat": "flow", "id": f"{source} {flow}"}
            records.append({**arrow, "ph": "s", **places[ends[0]]})
            records.append({**arrow, "ph": "f", "bp": "e", **places[ends[1]]})
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def _sort_key(key: tuple[int, str]) -> tuple[int, int, int, str]:
    """The sort key of a track: by site, in the order of `_TRACKS`, then by name with numbers as numbers."""
    site, track = key
    return (site, _TRACKS.index(track) if track in _TRACKS else len(_TRACKS), len(track), track)


def _distribute(events: Sequence[TraceEvent], numbers: Iterable[int]) -> list[list[int]]:
    """Distributes events to as few lanes as keep overlapping ones apart; each goes to the first lane that is free."""
    lanes: list[list[int]] = []
    busy: list[tuple[int, int]] = []  # end of the last event, lane
    free: list[int] = []
    spans = [(_nanoseconds(events[n].start_ms), _nanoseconds(events[n].end_ms), n) for n in numbers]
    for start, end, number in sorted(spans):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(lanes)
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(number)
        heapq.heappush(busy, (end, lane))
    return lanes


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


def _name_records(kind: str, process: int, thread: int, name: str, position: int) -> list[Json]:
    where: Json = {"ph": "M", "pid": process, "tid": thread}
    return [
        {"name": f"{kind}_name", **where, "args": {"name": name}},
        {"name": f"{kind}_sort_index", **where, "args": {"sort_index": position}},
    ]
