"""What one model costs on several machines: one row each. The others are compared with the first."""

from __future__ import annotations

from collections.abc import Sequence

from einc.machines.model import Machine
from einc.plan_reading.timing import read_plan_machine, time_plan
from einc.predict.ranges import name_rates
from einc.report.tables import NOT_MEASURED, align_columns, format_range
from einc.report.times import describe_time, describe_unlisted_peaks
from einc_runtime.plan.schema import Bundle
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory


def describe_costs(bundle: Bundle, named: str) -> Document:
    """The row of a plan on the machine that the user has `named` so, apart from its ratio, which `add_ratios` puts in.

    `exchange_ms` is the part of the critical path in transfers and in combining, `compute_ms` the part in kernels.
    """
    machine = read_plan_machine(bundle)
    timing = time_plan(bundle, machine)
    times = describe_time(timing)
    critical = times["critical"] if times is not None else None
    return {
        "machine": bundle.machine,
        "named": named,
        "devices": len(bundle.devices),
        "schedule": bundle.schedule,
        "predicted_ms": bundle.predicted_ms,
        "predicted_range_ms": None if timing.range_ms is None else list(timing.range_ms),
        "rates": name_rates(machine),
        "compute_ms": None if critical is None else critical["compute_ms"],
        "exchange_ms": None if critical is None else critical["combine_ms"] + critical["transfer_ms"],
        "total_cost": bundle.total_cost,
        "memory_bytes": max(bundle.memory),
        "error": None,
        "note": describe_unlisted_peaks(bundle, machine),
    }


def describe_rates(machine: Machine) -> str:
    """One line: what was measured of a machine, if anything was."""
    if machine.measured:
        return f"measured: {machine.measured}"
    if name_rates(machine) == "peak":
        return f"kernels: {NOT_MEASURED}"
    return f"kernels: as measured on {', '.join(sorted({site.gpu_name for site in machine.sites}))}"


def describe_failure(machine: str, named: str, devices: int, message: str) -> Document:
    """The row of a machine that cannot run the model."""
    blank = ("schedule", "predicted_ms", "predicted_range_ms", "rates", "compute_ms", "exchange_ms", "total_cost",
             "memory_bytes")  # fmt: skip
    row = {"machine": machine, "named": named, "devices": devices}
    return {**row, **dict.fromkeys(blank), "error": message, "note": None}


def add_ratios(rows: Sequence[Document]) -> list[Document]:
    """The rows with `ratio`: their predicted time over that of the first, null where one of the two is missing or 0."""
    base = rows[0]["predicted_ms"]
    return [{**row, "ratio": row["predicted_ms"] / base if base and row["predicted_ms"] else None} for row in rows]


def format_table(rows: Sequence[Document]) -> list[str]:
    """The rows as lines of text."""
    lines = [["machine", "sites", "predicted ms", "range", "kernels", "exchange", "memory", "ratio"]]
    notes = []
    for row in rows:
        name = [row["named"], str(row["devices"])]
        if row["error"] is not None:
            lines.append([*name, *["-"] * 6])
            notes.append(f"{row['named']}, {format_count(row['devices'], 'site')}: {row['error']}")
            continue
        if row["note"] is not None:
            notes.append(row["note"])
        parts = (row[part] for part in ("predicted_ms", "compute_ms", "exchange_ms"))
        predicted, *times = ("-" if part is None else f"{part:.3f}" for part in parts)
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append([*name, predicted, _format_range(row), *times, format_memory(row["memory_bytes"]), ratio])
    return [*align_columns(lines, right=range(1, 8)), *dict.fromkeys(notes)]


def _format_range(row: Document) -> str:
    if row["predicted_range_ms"] is not None:
        return format_range(row["predicted_range_ms"])
    return NOT_MEASURED if row["rates"] == "peak" else "-"
