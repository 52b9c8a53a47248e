"""The document of `einc reshard` as text for a terminal: a table of tensors, and the time of all together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from einc.report.tables import align_columns, describe_trust
from einc.resharding.totals import Document
from einc_runtime.text import format_count, format_memory

MAX_TENSOR_LINES = 40
"""Rows of the table, those with most bytes first; the document has all."""


def format_resharding(document: Document) -> str:
    """Tensors of equal layers are one row, with the figures of one of them."""
    groups = _group_alike([row for row in document["tensors"] if row["moved_bytes"]])
    groups.sort(key=lambda group: -len(group) * int(group[0]["moved_bytes"]))
    lines = []
    if groups:
        table = [["", "moves", "predicted", "naive", "bound", "ratio"]]
        table += [_format_row(group) for group in groups[:MAX_TENSOR_LINES]]
        lines = align_columns(table, right=range(1, 6))
        if len(groups) > MAX_TENSOR_LINES:
            lines.append(f"and {len(groups) - MAX_TENSOR_LINES} more; --json has all")
        lines.append("")
    kept = sum(not row["moved_bytes"] for row in document["tensors"])
    if kept:
        lines.append(f"{format_count(kept, 'tensor')} of {len(document['tensors'])} move nothing between sites")
    lines.append(_summarize(document))
    if document["plan"] is not None:
        lines.append(
            f"{document['plan']}: {format_memory(document['memory_bytes'])} on the fullest site, for both plans"
        )
    return "\n".join(lines)


def _summarize(document: Document) -> str:
    sites = format_count(len(document["devices"]), "site")
    if not document["moved_bytes"]:
        return f"nothing moves between the {sites} of {document['machine']}"
    ratio = "" if document["ratio"] is None else f", {document['ratio']:.2f} times that"
    return (
        f"{format_memory(document['moved_bytes'])} move between the {sites} of {document['machine']}\n"
        f"no way to move it takes less than {document['bound_ms']:.4g} ms: {document['bound_by']}\n"
        f"this one is predicted to take {document['predicted_ms']:.4g} ms{describe_trust(document)}{ratio}"
    )


def _format_row(group: Sequence[Document]) -> list[str]:
    first = group[0]
    name = first["name"] if len(group) == 1 else f"{first['name']} (x{len(group)})"
    times = [
        f"{first[key]:.4g} ms" if first[key] is not None else "-" for key in ("predicted_ms", "naive_ms", "bound_ms")
    ]
    ratio = "-" if first["ratio"] is None else f"{first['ratio']:.2f}"
    return [name, format_memory(first["moved_bytes"]), *times, ratio]


def _group_alike(rows: Sequence[Document]) -> list[list[Document]]:
    """Rows that differ in the numbers in their names alone, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Document]] = {}
    for row in rows:
        key = (re.sub(r"\d+", "#", row["name"]), *(row[name] for name in ("moved_bytes", "predicted_ms", "bound_ms")))
        groups.setdefault(key, []).append(row)
    return list(groups.values())
