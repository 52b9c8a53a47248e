"""The three lines that `einc explain` begins with: how long a plan takes, what limits it, and what to try."""

from __future__ import annotations

import json
from collections.abc import Sequence

from einc.options import FASTEST
from einc.report.selection import find_fastest_too_large
from einc.report.tables import describe_trust, format_ms
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory


def summarize_plan(document: Document) -> list[str]:
    """Time, limit and advice, a line each; one line for a plan that was not timed."""
    heading = f"{document['model']} on {format_count(document['devices'], 'site')} of {document['machine']}"
    if document["time"] is None or not document["predicted_ms"]:
        return [heading]
    return [f"{heading}: {_describe_time(document)}", _describe_limit(document), _suggest(document)]


def _describe_time(document: Document) -> str:
    predicted_ms, alone = document["predicted_ms"], document["references"]["one_site_ms"]
    gain = f"; {alone / predicted_ms:.3g} times as fast as one" if alone and document["devices"] > 1 else ""
    return f"{format_ms(predicted_ms)}{describe_trust(document)}{gain}"


def _describe_limit(document: Document) -> str:
    """`limited by computing, 87% of the time, at 76% of the peak; exchanges 9%; 123 MiB per site`."""
    predicted_ms, critical, limit = document["predicted_ms"], document["time"]["critical"], document["limit"]
    exchanges = (critical["combine_ms"] + critical["transfer_ms"]) / predicted_ms
    parts = []
    if limit is not None:
        peaks = {"computing": "peak_flops_part", "memory": "peak_memory_part"}
        reached = f" ({limit[peaks[limit['by']]]:.0%} of the peak)" if limit["by"] in peaks else ""
        parts = [f"limited by {limit['by']}, {limit['part']:.0%} of the time{reached}"]
    if limit is None or limit["by"] != "exchanges":
        parts.append(f"exchanges {exchanges:.0%}")
    return "; ".join([*parts, f"{format_memory(max(document['memory_bytes']))} per site"])


def _suggest(document: Document) -> str:
    """What to change first: a cut or a plan that is known to be better, else what costs most."""
    if document["selector"] != FASTEST:
        return "to try: --selector fastest, which looks for the least predicted time"
    faster = document["faster_cut"]
    if faster is not None:
        first, *more = faster["ops"]
        repeats = f", and so for {len(more)} like it" if more else ""
        took = format_ms(faster["predicted_ms"])
        return f"to try: --pin '{first}={faster['cut']}'{repeats}: this plan would take {took} or less"
    larger = find_fastest_too_large(document)
    if larger is not None:
        memory = format_memory(larger["memory_bytes"])
        return f"to try: more memory; with {memory} per site, a plan would take {format_ms(larger['predicted_ms'])}"
    alone = document["references"]["one_site_ms"]
    if alone and alone < document["predicted_ms"]:
        return f"to try: one site (--devices 1), which would take {format_ms(alone)} if its memory is enough"
    limit, critical = document["limit"], document["time"]["critical"]
    if limit is not None and limit["by"] == "launches":
        return "to try: more work in one run, such as a larger batch: launches of small kernels take most of the time"
    if critical["transfer_ms"] + critical["combine_ms"] > critical["compute_ms"]:
        return "to try: more memory per site, or fewer sites (--devices), so that less has to move"
    return "to try: more sites (--devices) or a faster machine (compile --compare): kernels take most of the time"


def group_alike(operations: Sequence[Document]) -> list[list[Document]]:
    """Groups of operators that differ in their names only, in the order of their first operators."""
    fields = ("op", "intervals", "specs", "pin", "cost", "moves")
    texts: dict[tuple[int, ...], str] = {}  # by the identities of fields, which equal layers have in common
    groups: dict[str, list[Document]] = {}
    for operation in operations:
        key = tuple([id(operation[field]) for field in fields])
        if key not in texts:
            texts[key] = json.dumps([operation[field] for field in fields])
        groups.setdefault(texts[key], []).append(operation)
    return list(groups.values())
