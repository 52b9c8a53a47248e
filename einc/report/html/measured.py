"""A trace that `einc run --trace` wrote, read again to lay it over the predicted timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einc.predict.timeline import PlanTimeline
from einc.report.html.tasks import sort_by_start
from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import Bundle, FenceTask
from einc_runtime.strict_json import describe_json, parse_json

MAX_US = 1e15
"""A time that is longer, thirty years, is refused."""


def describe_trace(data: bytes, bundle: Bundle, times: PlanTimeline | None, where: str) -> dict[str, Any] | None:
    """When tasks ran: `start` and `length` in ns for every task of `describe_tasks`, -1 for those that are not there.

    `end` is when the last one ended. None for a plan that was not timed. Raises PlanFault for what is no trace of this
    plan.
    """
    if times is None:
        return None
    spans = _read_spans(data, bundle, where)
    columns: dict[str, Any] = {"start": [], "length": []}
    for task in sort_by_start(bundle.tasks, times):
        start, length = spans.get(task, (-1, -1))
        columns["start"].append(start)
        columns["length"].append(length)
    return columns | {"end": max(start + length for start, length in spans.values())}


def _read_spans(data: bytes, bundle: Bundle, where: str) -> Mapping[int, tuple[int, int]]:
    """Start and duration in ns by task; a transfer that is there for both of its sites is the same."""
    try:
        document = parse_json(data)
    except ValueError as error:
        raise PlanFault(f"this is no trace: {error}", where=where) from None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise PlanFault("this is no trace: it has no list `traceEvents`", where=where)
    spans: dict[int, tuple[int, int]] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("args"), dict):
            continue
        task = event["args"].get("task")
        if type(task) is not int:
            continue
        if not 0 <= task < len(bundle.tasks) or isinstance(bundle.tasks[task], FenceTask):
            raise PlanFault(f"this trace is of another plan: this one has no task {describe_json(task)}", where=where)
        if event["args"].get("serves") != bundle.tasks[task].serves:
            raise PlanFault(f"this trace is of another plan: its task {task} serves another operator", where=where)
        start, length = event.get("ts"), event.get("dur")
        if not _is_time(start) or not _is_time(length):
            raise PlanFault(f"this is no trace: task {task} has no time", where=where)
        assert start is not None
        assert length is not None
        spans.setdefault(task, (round(start * 1e3), round(length * 1e3)))  # from microseconds
    if not spans:
        raise PlanFault("this trace has no tasks of a plan", where=where)
    return spans


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_US  # type: ignore[operator]
