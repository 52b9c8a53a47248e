"""Tables for a terminal: columns, and where the predicted time of a plan goes."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from einc_runtime.strict_json import Document
from einc_runtime.text import format_memory

MAX_TABLE_ROWS = 12
MAX_LISTED_ITEMS = 6
"""Operators and resources that are listed, those with the most time first."""

_TIME_PARTS = ("compute_ms", "combine_ms", "waiting_ms", "exchange_ms", "critical_ms")


def align_columns(rows: Sequence[Sequence[str]], right: Container[int] = (1, 2, 3)) -> list[str]:
    """Rows as lines with their cells in columns; those in `right` are aligned on the right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell:>{width}}" if c in right else f"{cell:<{width}}"
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def summarize_time(document: Document) -> str:
    """One line: what the critical path consists of."""
    if document["time"] is None:
        known = document["predicted_ms"]
        told = "" if known is None else f"; predicted {known:.3f} ms{describe_trust(document)} when it was made"
        return f"too large to be timed here{told}"
    critical = document["time"]["critical"]
    named = (("kernels", "compute_ms"), ("combining and copying", "combine_ms"), ("transfers", "transfer_ms"))
    parts = ", ".join(f"{name} {critical[part]:.3f}" for name, part in named)
    return f"along the critical path, in ms: {parts}"


def format_ms(ms: float) -> str:
    """A time in three digits, as `0.188 ms` or `12.5 ms`; of a second and more in whole milliseconds."""
    digits = 0 if ms <= 0 else max(0, 2 - math.floor(math.log10(ms)))
    return f"{ms:,.{digits}f} ms"


def format_roughly(ms: float) -> str:
    """A time with two or three digits."""
    digits = 0 if ms <= 0 else max(0, 1 - math.floor(math.log10(ms)))
    return f"{ms:,.{digits}f}"


NOT_MEASURED = "not measured"
"""What is said beside times for which nothing was measured of the GPUs, or of this computer."""


def format_range(span: Sequence[float]) -> str:
    """`0.12 to 0.17`."""
    return " to ".join(map(format_roughly, span))


def describe_trust(document: Document, name: str = "predicted") -> str:
    """What is said right after a time: its range, or that nothing was measured; nothing on a calibrated machine."""
    span = document[f"{name}_range_ms"]
    if span is not None:
        return f", {format_range(span)}"
    return f", {NOT_MEASURED}" if document["rates"] == "peak" else ""


def describe_operator_time(operation: Document) -> str:
    """One line: when an operator runs, and the parts of its time."""
    time = operation["time"]
    if time is None:
        return "too large a plan to say when it runs"
    parts = ", ".join(f"{part.removesuffix('_ms')} {time[part]:.3f}" for part in _TIME_PARTS if round(time[part], 3))
    return f"from {time['start_ms']:.3f} to {time['end_ms']:.3f} ms{f': {parts}' if parts else ''}"


def tabulate_times(document: Document, groups: Sequence[Sequence[Document]]) -> list[list[str]]:
    """The table of operators with its heading, empty if the plan was not timed; a group's operators are added up."""
    if document["time"] is None:
        return []
    rows: list[tuple[str, list[float]]] = []
    for group in groups:
        name = group[0]["name"] if len(group) == 1 else f"{group[0]['name']} (x{len(group)})"
        rows.append((name, [sum(operation["time"][part] for operation in group) for part in _TIME_PARTS]))
    for output in document["outputs"]:
        times = [output["time"][part] for part in _TIME_PARTS]
        if any(times):
            rows.append((f"output {output['name']}", times))
    rows.sort(key=lambda row: (-row[1][-1], -sum(row[1][:3])))
    predicted = document["predicted_ms"] or 1.0
    listed, omitted = rows[:MAX_TABLE_ROWS], rows[MAX_TABLE_ROWS:]
    if omitted:
        listed.append(
            (f"{len(omitted)} more", [sum(column) for column in zip(*(times for _, times in omitted), strict=True)])
        )
    table = [["time in ms", "compute", "combine", "waiting", "exchange", "critical", ""]]
    for name, times in listed:
        table.append([name, *(f"{time:.3f}" if time else "-" for time in times), f"{times[-1] / predicted:.0%}"])
    table.append(["idle at the end", "-", "-", f"{document['time']['tail_ms']:.3f}", "-", "-", ""])
    return table


def describe_links(document: Document) -> list[str]:
    """The resources that would take longest for their traffic at full rate; those that carry the same are one row."""
    if document["time"] is None:
        return []
    links = sorted(document["time"]["links"], key=lambda link: (-link["full_ms"], link["name"]))
    if not links:
        return []
    predicted = document["predicted_ms"] or 1.0
    names_by_traffic: dict[tuple[int, float, float], list[str]] = {}
    for link in links:
        names_by_traffic.setdefault((link["bytes"], link["full_ms"], link["busy_ms"]), []).append(link["name"])
    lines = [
        f"  {names[0] if len(names) == 1 else f'{names[0]} (x{len(names)})'}: {format_memory(size)}, {full:.3f} ms at"
        f" full rate ({full / predicted:.0%} of the time), in use for {busy:.3f} ms"
        for (size, full, busy), names in list(names_by_traffic.items())[:MAX_LISTED_ITEMS]
    ]
    return ["busiest links", *lines]


def format_baselines(rows: Sequence[Document]) -> list[str]:
    """A line for every well-known plan that the plan was compared with."""
    table = []
    for row in rows:
        known = row["predicted_ms"] is not None
        cells = [f"{row['predicted_ms']:,.3f} ms", format_memory(row["memory_bytes"])] if known else ["-", ""]
        remarks = [*(["chosen"] if row["chosen"] else []), *([row["note"]] if row["note"] else [])]
        table.append([f"  baseline {row['name']}", *cells, "; ".join(remarks)])
    return align_columns(table, right=(1, 2)) if table else []


def format_cut(part: Document) -> str:
    """`i/2 k/4`: the cut indices with their numbers of intervals; `i/2 (4 sites each)` if sites compute the same."""
    cut = " ".join(f"{name}/{len(parts)}" for name, parts in part["intervals"].items() if len(parts) > 1) or "whole"
    replicas = part.get("replicas", 1)
    return cut if replicas == 1 else f"{cut} ({replicas} sites each)"


def count_bytes_moved(document: Document) -> int:
    """The bytes that all transfers of a plan move."""
    return sum(part["moves"]["bytes"] for part in (*document["ops"], *document["outputs"]))
