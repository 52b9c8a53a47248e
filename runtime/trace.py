"""A measured timeline: when which worker ran which task, and the file that Chrome's and Perfetto's viewers read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One task's run. `kind` is kernel, transfer, aggregate or copy; `serves` the operation or output it serves.

    Times are in milliseconds from the start of the execution.
    """

    task: int
    kind: str
    serves: str
    site: int
    worker: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one execution, by start, and its whole duration."""

    events: tuple[Event, ...]
    completion_ms: float
    backend: str

    def busy_ms(self) -> dict[int, float]:
        """How long each worker ran tasks."""
        totals: dict[int, float] = {}
        for event in self.events:
            totals[event.worker] = totals.get(event.worker, 0.0) + event.end_ms - event.start_ms
        return dict(sorted(totals.items()))


def chrome_json(trace: Trace, process: str = "einc") -> str:
    """The trace in Chrome's event format: a process of sites and one of workers, times in microseconds."""
    by_site, by_worker = 1, 2
    records: list[dict[str, object]] = [
        _named("process_name", by_site, 0, f"{process}: sites"),
        _named("process_name", by_worker, 0, f"{process}: workers ({trace.backend})"),
    ]
    records += [_named("thread_name", by_site, s, f"site {s}") for s in _distinct(e.site for e in trace.events)]
    records += [_named("thread_name", by_worker, w, f"worker {w}") for w in _distinct(e.worker for e in trace.events)]
    for event in trace.events:
        for group, lane in ((by_site, event.site), (by_worker, event.worker)):
            records.append(
                {
                    "name": event.serves if event.kind == "kernel" else f"{event.kind} for {event.serves}",
                    "cat": event.kind,
                    "ph": "X",
                    "pid": group,
                    "tid": lane,
                    "ts": round(event.start_ms * 1e3, 3),
                    "dur": round((event.end_ms - event.start_ms) * 1e3, 3),
                    "args": {"task": event.task, "site": event.site, "worker": event.worker},
                }
            )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": records}, indent=None, separators=(",", ":"))


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _distinct(numbers: Iterable[int]) -> list[int]:
    return sorted(set(numbers))
