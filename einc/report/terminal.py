"""`einc explain` for people: the document of `report.document` as text for a terminal.

Operators that were cut, placed and costed alike, as those of repeated blocks are, are shown once, so that a model of a
hundred operators stays readable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from einc.machines.picture import ranges
from einc.report import timetable
from einc.report.grid import picture
from einc.report.layout import columns
from einc_runtime.text import counted, shorten, sized

Document = dict[str, Any]
Emphasis = Callable[[str], str]

MOST_SECTIONS = 16
"""More kinds of operators than this are listed in the table, and only the costliest have a section of their own."""

MOST_INPUTS = 12
"""How many inputs are listed."""
MOST_WEIGHTS = 8
"""How many kinds of weights that are held more than once are listed."""


def overview(document: Document, strong: Emphasis = str) -> str:
    """The whole plan: totals, a table of all operators, and a section for each kind of them."""
    groups = _groups(document["ops"])
    lines = [strong(_heading(document)), *_totals(document), ""]
    times = _times(document, groups, strong)
    lines += [*_table(groups, strong), *(["", *times] if times else [])]
    by_cost = sorted(range(len(groups)), key=lambda g: (-_cost(groups[g][0]) * len(groups[g]), g))
    shown = sorted(by_cost[:MOST_SECTIONS])
    for g in shown:
        lines += ["", *_section(groups[g], document["devices"], strong)]
    if len(shown) < len(groups):
        left = len(groups) - len(shown)
        lines += ["", f"{left} cheaper kinds of operators have no section here; --op NAME shows any operator."]
    lines += ["", *_inputs(document["inputs"], strong), *_weights(document["weights"], strong)]
    lines += _outputs(document, strong)
    return "\n".join(lines) + "\n"


def detail(document: Document, strong: Emphasis = str) -> str:
    """One operator to the last block; `document` has no other."""
    (operation,) = document["ops"]
    lines = [strong(_heading(document)), "", *_section([operation], document["devices"], strong, whole=True), ""]
    for spec in operation["specs"]:
        reads, writes = (
            ", ".join(f"{name}{_box(block)}" for name, block in zip(operation[side], spec[side], strict=True))
            for side in ("inputs", "outputs")
        )
        lines.append(f"  site {spec['site']}: {reads} -> {writes}")
    for candidate in operation.get("candidates") or ():
        cost = candidate["cost"]
        lines.append(
            f"  could be {_cut(candidate['intervals'])}: join {cost['join']:,}, aggregation {cost['aggregation']:,}"
        )
    if operation["exchange"] is not None:
        lines += ["", "  its exchange program:"]
        lines += [f"    {line}" for line in operation["exchange"]["program"].rstrip().splitlines()]
    return "\n".join(lines) + "\n"


def comparison(document: Document, other: Document, names: tuple[str, str], strong: Emphasis = str) -> str:
    """Two plans side by side: totals, and the operators that differ."""
    first, second = names
    lines = [strong(f"A = {first}: {_heading(document)}"), strong(f"B = {second}: {_heading(other)}"), ""]
    rows = [["", "A", "B", "B - A"]]
    totals = [
        ("total cost", document["total_cost"], other["total_cost"]),
        *((part, _sum(document, part), _sum(other, part)) for part in ("repartition", "join", "aggregation")),
        ("bytes moved", _bytes_moved(document), _bytes_moved(other)),
        ("most bytes on a site", max(document["memory_bytes"]), max(other["memory_bytes"])),
    ]
    rows += [[name, f"{a:,}", f"{b:,}", f"{b - a:+,}"] for name, a, b in totals]
    a_ms, b_ms = document["predicted_ms"], other["predicted_ms"]
    if a_ms is not None and b_ms is not None:
        rows.append(["predicted ms", f"{a_ms:,.3f}", f"{b_ms:,.3f}", f"{b_ms - a_ms:+,.3f}"])
    lines += [*columns(rows), ""]
    here = {operation["name"]: operation for operation in document["ops"]}
    there = {operation["name"]: operation for operation in other["ops"]}
    differing = [["operator", "cut in A", "cut in B", "cost A", "cost B"]]
    for name in [*here, *(name for name in there if name not in here)]:
        a, b = here.get(name), there.get(name)
        if a is None or b is None or a["intervals"] != b["intervals"] or _cost(a) != _cost(b):
            differing.append([name, *(_cut(x["intervals"]) if x else "-" for x in (a, b)),
                              *(f"{_cost(x):,}" if x else "-" for x in (a, b))])  # fmt: skip
    lines += columns(differing, right=(3, 4)) if len(differing) > 1 else ["every operator is cut alike"]
    return "\n".join(lines) + "\n"


def _heading(document: Document) -> str:
    return (
        f"{document['model']} on {counted(document['devices'], 'site')} of {document['machine']}"
        f" (selector {document['selector']}, schedule {document['schedule']})"
    )


def _totals(document: Document) -> list[str]:
    proof = "no plan costs less" if document["exact"] else "not proved least"
    parts = ", ".join(f"{part} {_sum(document, part):,}" for part in ("repartition", "join", "aggregation"))
    memory = document["memory_bytes"]
    return [
        f"cost {document['total_cost']:,} elements ({proof}; the cut heuristic finds {document['cut_cost']:,})",
        f"     {parts}",
        f"moved {sized(_bytes_moved(document))}; memory per site {_span(memory)}",
        timetable.summary(document),
        *_exchanges(document),
        *([] if document["note"] is None else [document["note"]]),
    ]


def _exchanges(document: Document) -> list[str]:
    """How near all exchanges together come to what bounds them."""
    found = [part["exchange"] for part in (*document["ops"], *document["outputs"]) if part["exchange"] is not None]
    if not found or not all(map(_timed, found)):
        return []
    taken, naive, bound = (sum(one[field] for one in found) for field in ("completion_ms", "naive_ms", "bound_ms"))
    text = f"exchanges {taken:,.3f} ms, {_gap(taken, bound)}"
    return [text + (f"; naive {naive:,.3f} ms" if naive != taken else "")]


def _timed(exchange: Document) -> bool:
    """Whether all is known that an exchange is compared by; not where its program is too long to be read."""
    return all(exchange[field] is not None for field in ("completion_ms", "naive_ms", "bound_ms"))


def _gap(taken: float, bound: float) -> str:
    return f"{taken / bound:.2f} times the bound" if bound else "the bound is 0"


def _groups(operations: Sequence[Document]) -> list[list[Document]]:
    """Operators that differ in nothing but their names, in the order of their first."""
    groups: dict[str, list[Document]] = {}
    for operation in operations:
        alike = {
            "op": operation["op"],
            "intervals": operation["intervals"],
            "specs": operation["specs"],
            "cost": operation["cost"],
            "moves": operation["moves"],
        }
        groups.setdefault(json.dumps(alike), []).append(operation)
    return list(groups.values())


def _table(groups: Sequence[Sequence[Document]], strong: Emphasis) -> list[str]:
    rows = [["operator", "", "cut", "repartition", "join", "aggregation", "moved"]]
    for group in groups:
        first = group[0]
        name = first["name"] if len(group) == 1 else f"{first['name']} (x{len(group)})"
        cost = first["cost"]
        rows.append(
            [
                name,
                shorten(first["op"], 28),
                _cut(first["intervals"]),
                *(f"{cost[part]:,}" for part in ("repartition", "join", "aggregation")),
                sized(first["moves"]["bytes"]) if first["moves"]["bytes"] else "-",
            ]
        )
    lines = columns(rows, right=(3, 4, 5, 6))
    return [strong(lines[0]), *lines[1:]]


def _times(document: Document, groups: Sequence[Sequence[Document]], strong: Emphasis) -> list[str]:
    rows = timetable.time_rows(document, groups)
    if not rows:
        return []
    table = columns(rows, right=(1, 2, 3, 4, 5, 6))
    links = timetable.link_lines(document)
    return [strong(table[0]), *table[1:], *(["", strong(links[0]), *links[1:]] if links else [])]


def _section(group: Sequence[Document], sites: int, strong: Emphasis, whole: bool = False) -> list[str]:
    """What was decided for the first of a group of like operators."""
    operation = group[0]
    title = f"{', '.join(operation['outputs'])} = {operation['op']}({', '.join(operation['inputs'])})"
    lines = [strong(title) + (f"   {operation['source']}" if operation["source"] else "")]
    if len(group) > 1:
        names = [other["name"] for other in group[1:]]
        listed = ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, ... {names[-1]}"
        lines.append(f"  and {len(names)} like it: {listed}")
    lines += [f"    {line}" for line in picture(operation, whole=whole)] or ["    not cut"]
    used = len(operation["specs"])
    idle = operation["idle_sites"]
    if idle:
        lines.append(f"  {used} of {sites} sites work; idle: {ranges(idle)}")
    cost = operation["cost"]
    together = f"  combined by {operation['aggregate']}" if cost["aggregation"] else ""
    lines.append(
        f"  cost {_cost(operation):,} = repartition {cost['repartition']:,} + join {cost['join']:,}"
        f" + aggregation {cost['aggregation']:,}{together}"
    )
    lines.append(f"  {_movement(operation)}")
    lines.append(f"  {timetable.own_time(operation)}")
    lines.append(f"  next best: {_alternative(operation)}")
    return lines


def _movement(operation: Document) -> str:
    exchange = operation["exchange"]
    text = _moved(operation) if operation["moves"]["transfers"] else "moves nothing between sites"
    if exchange is not None and _timed(exchange):
        text += f", {exchange['completion_ms']:.3f} ms"
        if exchange["naive_ms"] != exchange["completion_ms"]:
            text += f" (naive {exchange['naive_ms']:.3f} ms)"
        text += f"\n  no program takes less than {exchange['bound_ms']:.3f} ms: {shorten(exchange['bound_by'], 70)}"
    return text


def _moved(part: Document) -> str:
    moves = part["moves"]
    if not moves["transfers"]:
        return "moves nothing"
    return f"moves {sized(moves['bytes'])} in {counted(moves['transfers'], 'transfer')}"


def _alternative(operation: Document) -> str:
    other = operation["next_best"]
    if other is None:
        return "there is no other cut"
    more = other["more"]
    now = _cost(operation)
    if more == 0:
        return f"{_cut(other['intervals'])} costs as much"
    share = f" ({more / now:+.0%} of this operator's cost)" if now else ""
    return f"{_cut(other['intervals'])}, the plan then costs {abs(more):,} {'more' if more > 0 else 'less'}{share}"


def _inputs(rows: Sequence[Document], strong: Emphasis) -> list[str]:
    """What a run has to be given."""
    if not rows:
        return []
    left = [f"  and {len(rows) - MOST_INPUTS} more"] if len(rows) > MOST_INPUTS else []
    return [strong("inputs"), *(f"  {row['name']}: {_type(row)}" for row in rows[:MOST_INPUTS]), *left, ""]


def _type(row: Document) -> str:
    dims = ", ".join(f"{name}={extent}" for name, extent in zip(row["dims"], row["shape"], strict=True))
    return f"{row['dtype']}[{dims}]"


def _outputs(document: Document, strong: Emphasis) -> list[str]:
    lines = [strong("outputs")]
    for output in document["outputs"]:
        blocks, home = counted(len(output["blocks"]), "block"), set(output["sites"])
        where = f"site{'s' if len(home) > 1 else ''} {ranges(home)}"
        lines.append(f"  {output['name']}: {_type(output)}, {blocks} at {where}; {_moved(output)}")
    return lines


def _weights(rows: Sequence[Document], strong: Emphasis) -> list[str]:
    """How many bytes of weights the sites hold, and which weights cost the most bytes by being held more than once."""
    if not rows:
        return []
    here, also = ([sum(row[field][site] for row in rows) for site in range(len(rows[0][field]))]
                  for field in ("site_bytes", "replicated_bytes"))  # fmt: skip
    whole = f"  {sized(sum(row['bytes'] for row in rows))} in {len(rows)} tensors"
    lines = [strong("weights"), f"{whole}; {_span(here)} on each site, of which other sites hold {_span(also)} too"]
    alike: dict[tuple[float, int], list[Document]] = {}
    for row in rows:
        if row["copies"] > 1:
            alike.setdefault((row["copies"], row["bytes"]), []).append(row)
    extra = sorted(alike.items(), key=lambda item: -(item[0][0] - 1) * item[0][1] * len(item[1]))
    for (copies, count), group in extra[:MOST_WEIGHTS]:
        more = f" and {len(group) - 1} of its size" if len(group) > 1 else ""
        lines.append(f"  {copies:g} copies of {group[0]['name']}{more}, {sized(count)} each")
    if len(extra) > MOST_WEIGHTS:
        left = sum(len(group) for _, group in extra[MOST_WEIGHTS:])
        lines.append(f"  and more copies than one of {left} smaller ones")
    return [*lines, ""]


def _span(counts: Sequence[int]) -> str:
    low, high = sized(min(counts)), sized(max(counts))
    return low if low == high else f"{low} to {high}"


def _cut(intervals: dict[str, list[list[int]]]) -> str:
    """`i/2 k/4`: the cut indices with their numbers of intervals."""
    return " ".join(f"{name}/{len(parts)}" for name, parts in intervals.items() if len(parts) > 1) or "whole"


def _cost(operation: Document) -> int:
    cost: dict[str, int] = operation["cost"]
    return cost["repartition"] + cost["join"] + cost["aggregation"]


def _sum(document: Document, part: str) -> int:
    return sum(operation["cost"][part] for operation in document["ops"])


def _bytes_moved(document: Document) -> int:
    return sum(part["moves"]["bytes"] for part in (*document["ops"], *document["outputs"]))


def _box(block: list[list[int]]) -> str:
    return "[" + ", ".join(f"{lower}:{upper}" for lower, upper in zip(*block, strict=True)) + "]"
