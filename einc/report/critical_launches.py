"""Each launch and exchange that a plan's time consists of: what takes it, and what remains to the roofline."""

from __future__ import annotations

import math
import re

from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine
from einc.plan_reading.timing import Timing
from einc.predict.costs import TaskCost, TaskKind, compute_occupied_ms, count_cached
from einc.report.launches import name_task
from einc.report.tables import align_columns
from einc_runtime.plan.repetition import weigh_tasks
from einc_runtime.plan.schema import Bundle, TransferTask
from einc_runtime.strict_json import Document
from einc_runtime.text import format_memory

_LAUNCH_COLUMNS = (
    "critical path",
    "times",
    "us each",
    "ms",
    "at the peaks",
    "latency",
    "below peaks",
    "read ahead",
    "bytes",
)

_LAUNCH_PARTS = ("peak_ms", "launch_ms", "below_peak_ms", "ahead_ms")


def describe_critical_launches(bundle: Bundle, machine: Machine, timing: Timing) -> list[Document] | None:
    """What the critical path of a plan consists of, in order: `{"name", "kind", "times", "ms", "bytes", "flops",
    "peak_ms", "launch_ms", "below_peak_ms", "ahead_ms", "ahead_bytes"}`, each `times` where the plan says a layer once.
    Together they take the predicted time, but for what layers that are said differ from those that are not.

    `peak_ms` is what memory and computing take at the peaks of the machine file, whichever is longer, and of a transfer
    its bytes; `launch_ms` the latency; `below_peak_ms` what else it takes. `ahead_ms`, which is not positive, is what
    bytes save that were read while the site waited. None where sites are parts of a CPU, and of plans that are too
    large to be timed.
    """
    if not machine.joins_launches or timing.times is None:
        return None
    run, times = timing.run, timing.times
    members = {launch.tasks[0]: launch.tasks for launch in run.launches}
    gathered = {gather for peer_sum in run.peer_sums for gather in peer_sum.gathers}
    rows: list[Document] = []
    weights = weigh_tasks(bundle, bundle.repetition)
    for number in timing.critical:
        cost, ms = run.costs[number], times.ends[number] - times.starts[number]
        if cost.kind is TaskKind.FENCE:
            continue
        task = bundle.tasks[number]
        if isinstance(task, TransferTask):
            tensor = bundle.tensors[bundle.buffers[task.read.buffer].tensor].name
            name = f"transfer of {tensor}" if cost.latency_ms is None else f"peers' {tensor}, where it lies"
            name = f"{tensor}, written to peers" if number in gathered else name
            parts = _split_transfer(cost, ms, machine)
        else:
            name = " + ".join(name_task(bundle, member) for member in members.get(number, (number,)))
            waited = 0.0 if cost.early is None else times.starts[number] - times.ends[cost.early.after]
            parts = _split_kernel(cost, ms, waited, machine)
        kind = cost.kind.value
        row = {"name": name, "kind": kind, "times": weights[number], "ms": ms, "bytes": cost.size, "flops": cost.flops}
        rows.append({**row, **parts})
    return rows


def _split_transfer(cost: TaskCost, ms: float, machine: Machine) -> Document:
    latency = min(ms, machine.transfer_latency_us * MS_PER_US if cost.latency_ms is None else cost.latency_ms)
    return {"peak_ms": ms - latency, "launch_ms": latency, "below_peak_ms": 0.0, "ahead_ms": 0.0, "ahead_bytes": 0}


def _split_kernel(cost: TaskCost, ms: float, waited_ms: float, machine: Machine) -> Document:
    site, latency_us = machine.sites[cost.site], machine.kernel_latency_us
    cached = 0 if cost.early is None else count_cached(cost.early, waited_ms, site, latency_us)
    alone = compute_occupied_ms(cost, site, latency_us) if cached else ms
    computing = cost.flops / site.peak(cost.precision) * 1e3 if cost.flops else 0.0
    peak = min(alone, max(computing, cost.size / (site.hbm_gbs * BYTES_PER_MS)))
    launch = min(alone - peak, latency_us * MS_PER_US)
    return {
        "peak_ms": peak,
        "launch_ms": launch,
        "below_peak_ms": alone - peak - launch,
        "ahead_ms": ms - alone,
        "ahead_bytes": cached,
    }


def format_critical_launches(rows: list[Document] | None) -> str:
    """A table of what takes the time; what is equal in all layers is one row."""
    if rows is None:
        return "nothing is launched: the sites are parts of a CPU, or the plan is too large to be timed"
    groups: dict[str, list[Document]] = {}
    for row in rows:
        groups.setdefault(re.sub(r"\d+", "#", row["name"]), []).append(row)
    table: list[tuple[str, ...]] = [_LAUNCH_COLUMNS]
    for group in sorted(groups.values(), key=lambda group: -_add_up(group, "ms")):
        table.append(_format_row(group[0]["name"], group))
    table.append(_format_row("all", rows))
    return "\n".join(align_columns(table, right=range(1, len(table[0]))))


def _format_row(name: str, group: list[Document]) -> tuple[str, ...]:
    ms, times = _add_up(group, "ms"), sum(row["times"] for row in group)
    parts = (_add_up(group, part) for part in _LAUNCH_PARTS)
    moved = format_memory(int(_add_up(group, "bytes")))
    return name, str(times), f"{1e3 * ms / times:.2f}", f"{ms:.3f}", *(f"{part:.3f}" for part in parts), moved


def _add_up(rows: list[Document], field: str) -> float:
    """A field of rows, over all layers that they stand for."""
    return math.fsum(row["times"] * row[field] for row in rows)
