"""What lies in the memory of each site over time: every buffer from its first write to its last use."""

from __future__ import annotations

from typing import Any

from einc.predict.timeline import PlanTimeline
from einc.report.html.tasks import NS_PER_MS
from einc_runtime.plan.regions import buffer_bytes, find_output_buffers, find_users
from einc_runtime.plan.schema import Bundle, TransferTask

Columns = dict[str, Any]

WEIGHT, INPUT, STATE, OUTPUT, VALUE, RECEIVED = range(6)
"""What a buffer is for, as numbers: a value is computed at its site, and what is received comes from another one."""

_LASTING = {"weight": WEIGHT, "input": INPUT, "state": STATE}


def describe_memory(bundle: Bundle, times: PlanTimeline | None) -> Columns | None:
    """The buffers as columns: `site`, `offset` and `bytes` in its arena, `tensor`, `kind`, `first` and `last` in ns.

    What is loaded and states are there all the time, and outputs until the end, as the runtime keeps them. None for a
    plan that was not timed.
    """
    if times is None:
        return None
    readers, writers = find_users(bundle.tasks)
    kept = find_output_buffers(bundle)
    end = round(times.predicted_ms * NS_PER_MS)
    rows = []
    for number, buffer in enumerate(bundle.buffers):
        writes, uses = writers.get(number, []), [*readers.get(number, []), *writers.get(number, [])]
        loaded = buffer.role in _LASTING
        first = 0 if loaded or not writes else round(min(times.starts[t] for t in writes) * NS_PER_MS)
        last = end if loaded or number in kept or not uses else round(max(times.ends[t] for t in uses) * NS_PER_MS)
        kind = _number_kind(bundle, number, writes, number in kept)
        rows.append((kind, buffer.tensor, first, last, buffer_bytes(bundle, buffer), buffer.offset, buffer.site))
    rows.sort()  # so that equal values follow each other, which the page says once
    names = ("kind", "tensor", "first", "last", "bytes", "offset", "site")
    return {name: [row[n] for row in rows] for n, name in enumerate(names)}


def _number_kind(bundle: Bundle, number: int, writes: list[int], is_output: bool) -> int:
    role = bundle.buffers[number].role
    if role in _LASTING:
        return _LASTING[role]
    if is_output:
        return OUTPUT
    return RECEIVED if writes and isinstance(bundle.tasks[writes[0]], TransferTask) else VALUE
