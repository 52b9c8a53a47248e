"""The lines that matter of a large plan, for the end of what a terminal shows: where the time goes, what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from einc.options import FASTEST
from einc.report.selection import find_fastest_too_large
from einc.report.tables import format_cut
from einc_runtime.text import format_memory, shorten

Document = dict[str, Any]

MIN_OPERATORS = 40
"""Plans of fewer operators need no summary."""

MAX_KINDS = 3
"""Kinds of operators that are named, those with the most time first."""


def summarize_plan(document: Document, groups: Sequence[Sequence[Document]]) -> list[str]:
    """At most ten lines with their heading; none for a small plan, or one that was not timed.

    `groups` are the operators that differ in their names only.
    """
    if len(document["ops"]) < MIN_OPERATORS or document["time"] is None or not document["predicted_ms"]:
        return []
    lines = [f"in short: {_describe_parts(document)}", *_describe_kinds(document, groups), _describe_sites(document)]
    lines += [*_describe_links(document), _describe_memory(document), _suggest(document, groups)]
    return [*lines, "the rest: einc explain PLAN --html report.html shows all of it; --op NAME one operator"]


def _describe_parts(document: Document) -> str:
    predicted_ms, critical = document["predicted_ms"], document["time"]["critical"]
    named = (("kernels", "compute_ms"), ("combining", "combine_ms"), ("transfers", "transfer_ms"))
    parts = ", ".join(f"{name} {critical[field] / predicted_ms:.0%}" for name, field in named)
    alone = document["references"]["one_site_ms"]
    gain = (
        f"; one site alone would take {alone / predicted_ms:.2f} times as long"
        if alone and document["devices"] > 1
        else ""
    )
    return f"{predicted_ms:,.3f} ms, of which {parts}{gain}"


def _describe_kinds(document: Document, groups: Sequence[Sequence[Document]]) -> list[str]:
    rows = sorted(groups, key=lambda group: -_sum_critical(group))[:MAX_KINDS]
    return [
        f"  {_name(group)}, cut {format_cut(group[0])}: {_sum_critical(group):,.3f} ms on the critical path,"
        f" {_sum_critical(group) / document['predicted_ms']:.0%}"
        for group in rows
    ]


def _describe_sites(document: Document) -> str:
    busy = document["time"]["site_ms"]
    predicted_ms = document["predicted_ms"]
    least = min(range(len(busy)), key=lambda site: busy[site])
    mean = sum(busy) / len(busy)
    return f"  sites work {mean / predicted_ms:.0%} of the time; site {least} least, {busy[least] / predicted_ms:.0%}"


def _describe_links(document: Document) -> list[str]:
    links = document["time"]["links"]
    if not links:
        return ["  nothing crosses a link"]
    busiest = max(links, key=lambda link: (link["full_ms"], link["name"]))
    share = busiest["full_ms"] / document["predicted_ms"]
    return [f"  the fullest link, {shorten(busiest['name'], 40)}, would need {share:.0%} of the time at its full rate"]


def _describe_memory(document: Document) -> str:
    memory = document["memory_bytes"]
    site = max(range(len(memory)), key=lambda site: memory[site])
    weights = sum(row["site_bytes"][site] for row in document["weights"])
    copied = sum(row["replicated_bytes"][site] for row in document["weights"])
    parts = f"{format_memory(weights)} of it weights, {format_memory(copied)} of which other sites hold too"
    return f"  site {site} takes the most memory, {format_memory(memory[site])}: {parts}"


def _suggest(document: Document, groups: Sequence[Sequence[Document]]) -> str:
    """What to change first: a cut or a plan that is known to be better, else what costs most."""
    if document["selector"] != FASTEST:
        return "  to try: --selector fastest, which looks for the least predicted time"
    better = [group for group in groups if group[0]["next_fastest"] and group[0]["next_fastest"]["more_ms"] < 0]
    if better:
        group = min(better, key=lambda group: group[0]["next_fastest"]["more_ms"] * len(group))
        next_cut = group[0]["next_fastest"]
        saved = -next_cut["more_ms"] * len(group)
        return f"  to try: {_name(group)} cut {format_cut(next_cut)} (--pin) may save about {saved:,.3f} ms"
    larger = find_fastest_too_large(document)
    if larger is not None:
        memory = format_memory(larger["memory_bytes"])
        return f"  to try: more memory; with {memory} per site, a plan would take {larger['predicted_ms']:,.3f} ms"
    critical = document["time"]["critical"]
    if critical["transfer_ms"] + critical["combine_ms"] > critical["compute_ms"]:
        return "  to try: more memory per site, or fewer sites (--devices), so that less has to move"
    return "  to try: more sites (--devices) or a faster machine (--compare): kernels take most of the time"


def _name(group: Sequence[Document]) -> str:
    name = shorten(group[0]["name"], 40)
    return name if len(group) == 1 else f"{name} (x{len(group)})"


def _sum_critical(group: Sequence[Document]) -> float:
    return math.fsum(operation["time"]["critical_ms"] for operation in group)
