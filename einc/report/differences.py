"""What changed from one plan to another, for reviews: cuts, sites, moves, exchanges, time and memory."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from einc.machines.picture import format_ranges
from einc.report.contract_text import BASE_UNITS, QUANTITIES
from einc.report.contracts import format_figure, measure
from einc.report.document import explain
from einc.report.tables import align_columns, describe_trust, format_cut
from einc_runtime.plan.schema import Bundle
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory, shorten

ALWAYS = ("predicted_ms", "comm_bytes", "memory")
"""Quantities that are shown even where both plans have the same."""

MAX_DIFFERENCE_ROWS = 60
"""Rows of a table that are shown; the document has all."""

_PLAN_FACTS = (
    "model", "machine", "devices", "sites", "selector", "schedule", "input_placement", "reproducible", "memory_limit",
)  # fmt: skip
_YES_NO = {False: "no", True: "yes"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_TIMES_ALONE = ["time"]


def compare_plans(first: Bundle, second: Bundle, *, ideal: bool = False) -> Document:
    """What is not the same in two plans, as one document; `equal` says that nothing is.

    Operators, outputs, inputs and weights are matched by their names; those that changed alike, and whose names differ
    in numbers alone, are one entry. The version of einc that made a plan and the lines of the model that operators come
    from do not count. `ideal` leaves out the machines' latencies.
    """
    a, b = explain(first, ideal=ideal, with_alternatives=False), explain(second, ideal=ideal, with_alternatives=False)
    first_figures, second_figures = measure(a), measure(b)
    quantities = [
        {"quantity": name, "unit": BASE_UNITS[kind] or None, "a": first_figures[name], "b": second_figures[name]}
        for name, (kind, _) in QUANTITIES.items()
    ]
    header = [{"name": name, "a": a[name], "b": b[name]} for name in _PLAN_FACTS if a[name] != b[name]]
    if not header and first.machine_file != second.machine_file:
        header.append({"name": "machine_file", "a": None, "b": None})
    document: Document = {
        "equal": False,
        "a": _describe_plan(first, a),
        "b": _describe_plan(second, b),
        "header": header,
        "quantities": quantities,
        "operators": _compare_parts(a["ops"], b["ops"], _describe_operator),
        "outputs": _compare_parts(a["outputs"], b["outputs"], _describe_output),
        "tensors": _compare_parts([*a["inputs"], *a["weights"]], [*b["inputs"], *b["weights"]], _describe_tensor),
    }
    listed = any(document[part] for part in ("header", "operators", "outputs", "tensors"))
    listed = listed or any(row["a"] != row["b"] for row in quantities)
    same = _strip(first) == _strip(second)
    return {**document, "equal": same and not listed, "tasks_alone": not same and not listed}


def _describe_plan(bundle: Bundle, document: Document) -> Document:
    told = (*_PLAN_FACTS, "predicted_range_ms", "rates")
    return {"producer": bundle.producer, **{name: document[name] for name in told}}


def _strip(bundle: Bundle) -> Bundle:
    """A plan without what does not count as a change."""
    operations = tuple(msgspec.structs.replace(operation, source=None) for operation in bundle.operations)
    return msgspec.structs.replace(bundle, producer="", operations=operations)


def _describe_operator(row: Document) -> Document:
    exchange = row["exchange"]
    return {
        "op": row["op"],
        "inputs": row["inputs"],
        "outputs": row["outputs"],
        "cut": format_cut(row),
        "intervals": row["intervals"],
        "sites": [spec["site"] for spec in row["specs"]],
        "blocks": [[spec["inputs"], spec["outputs"]] for spec in row["specs"]],
        "moves": row["moves"],
        "exchange": None if exchange is None else exchange["program"],
        "exchange_ms": None if exchange is None else exchange["completion_ms"],
        "pin": row["pin"],
        "cost": row["cost"],
        "time": row["time"],
    }


def _describe_output(row: Document) -> Document:
    exchange = row["exchange"]
    return {
        **_describe_type(row),
        "sites": row["sites"],
        "blocks": row["blocks"],
        "moves": row["moves"],
        "exchange": None if exchange is None else exchange["program"],
        "exchange_ms": None if exchange is None else exchange["completion_ms"],
        "time": row["time"],
    }


def _describe_tensor(row: Document) -> Document:
    where = {name: row[name] for name in ("blocks", "sites", "stored", "copies", "site_bytes") if name in row}
    return _describe_type(row) | where


def _describe_type(row: Document) -> Document:
    return {"dims": row["dims"], "shape": row["shape"], "dtype": row["dtype"]}


def _compare_parts(
    first: Sequence[Document], second: Sequence[Document], describe: Callable[[Document], Document]
) -> list[Document]:
    """An entry for every part that is not the same, those that changed alike in one."""
    first_parts, second_parts = ({row["name"]: describe(row) for row in rows} for rows in (first, second))
    groups: dict[str, Document] = {}
    for name in [*first_parts, *(name for name in second_parts if name not in first_parts)]:
        a, b = first_parts.get(name), second_parts.get(name)
        fields = [] if a is None or b is None else _list_changes(a, b)
        if a == b:
            continue
        change = "added" if a is None else "removed" if b is None else "changed"
        group_key = [_generalize(name), change, fields, _summarize(a), _summarize(b)]
        entry = {"change": change, "names": [], "fields": fields, "a": a, "b": b}
        groups.setdefault(json.dumps(group_key), entry)["names"].append(name)
    return list(groups.values())


def _list_changes(a: Document, b: Document) -> list[str]:
    """The fields that differ; blocks only where nothing else says so."""
    fields = [field for field in a if field not in ("intervals", "blocks") and a[field] != b.get(field)]
    if "cut" in fields or not any(a.get(field) != b.get(field) for field in ("intervals", "blocks")):
        return fields
    return [*fields, "blocks"]


def _summarize(part: Document | None) -> Document | None:
    """What parts of one entry have in common."""
    if part is None:
        return None
    shared = ("op", "cut", "sites", "moves", "cost", "pin", "shape", "dtype", "copies")
    return {name: part[name] for name in shared if name in part}


def _generalize(name: str) -> str:
    """`layer.*.up` for `layer.3.up`."""
    return re.sub(r"(?<![^\W\d_])\d+", "*", name)


def name_entry(entry: Document) -> str:
    """The name of an entry for people: `layer.*.up (x31)`."""
    names = entry["names"]
    return str(names[0]) if len(names) == 1 else f"{_generalize(names[0])} (x{len(names)})"


Style = Callable[[str, str], str]
"""A text in the style of `added`, `removed`, `changed` or `heading`."""


def format_differences(document: Document, names: tuple[str, str], style: Style = lambda text, _: text) -> str:
    """The document as text: what the plans are, their figures, and tables of what changed."""
    if document["equal"]:
        return f"{names[0]} and {names[1]} are the same plan\n"
    lines = [style(f"{mark} = {name}: {_format_heading(document[mark.lower()])}", "heading")
             for mark, name in zip("AB", names, strict=True)]  # fmt: skip
    if document["a"]["producer"] != document["b"]["producer"]:
        lines.append(f"made by {document['a']['producer']} and {document['b']['producer']}")
    lines += [_format_header(row) for row in document["header"]]
    lines += ["", *_format_quantities(document)]
    lines += _format_operators(document["operators"], style)
    for part, noun in (("outputs", "output"), ("tensors", "input or weight")):
        if document[part]:
            lines += ["", style(f"{noun}: {_count_changes(document[part])}", "heading")]
            lines += _limit([style(_format_part(entry), entry["change"]) for entry in document[part]])
    if document["tasks_alone"]:
        lines += ["", "all of this is the same; tasks, buffers or their order are not"]
    return "\n".join(lines) + "\n"


def _format_heading(plan: Document) -> str:
    return (
        f"{plan['model']} on {format_count(plan['devices'], 'site')} of {plan['machine']}"
        f" (selector {plan['selector']}, schedule {plan['schedule']})"
    )


def _format_header(row: Document) -> str:
    if row["name"] == "machine_file":
        return "the descriptions of the machines differ"
    a, b = (_YES_NO[value] if isinstance(value, bool) else shorten(str(value), 60) for value in (row["a"], row["b"]))
    return f"{row['name']}: {a} -> {b}"


def _format_quantities(document: Document) -> list[str]:
    table = [["", "A", "B", "B - A"]]
    for row in document["quantities"]:
        name, a, b = row["quantity"], row["a"], row["b"]
        if a == b and name not in ALWAYS:
            continue
        change = ""
        if a is not None and b is not None and a != b:
            change = f"{'+' if b > a else '-'}{format_figure(name, abs(b - a)).split(' (')[0]}"
            change += f" ({(b - a) / a:+.1%})" if a else ""
        shown = [format_figure(name, value).split(" (")[0] for value in (a, b)]
        if name == "predicted_ms":
            shown = [text + describe_trust(document[side]) for text, side in zip(shown, "ab", strict=True)]
        table.append([name, *shown, change or ("the same" if a == b else "")])
    return align_columns(table)


def _count_changes(entries: Sequence[Document]) -> str:
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[entry["change"]] += len(entry["names"])
    return ", ".join(f"{counts[change]:,} {change}" for change in _SIGNS if counts[change])


def _format_operators(entries: Sequence[Document], style: Style) -> list[str]:
    """A row for each entry, the longest on the critical path first; those that differ in time alone are counted."""
    shown = [entry for entry in entries if entry["fields"] != _TIMES_ALONE]
    timed = sum(len(entry["names"]) for entry in entries) - sum(len(entry["names"]) for entry in shown)
    timed_only = [f"{format_count(timed, 'operator')} differ{'s' if timed == 1 else ''} in time alone"] if timed else []
    if not shown:
        return ["", *timed_only] if timed_only else []
    shown = sorted(shown, key=lambda entry: -max(_get_time(entry["a"]), _get_time(entry["b"])) * len(entry["names"]))
    rows = [["", "operator", "cut in A", "cut in B", "moved A", "moved B", "ms A", "ms B", "changed"]]
    for entry in shown:
        sides = (entry["a"], entry["b"])
        rows.append(
            [
                _SIGNS[entry["change"]],
                name_entry(entry),
                *("-" if side is None else side["cut"] for side in sides),
                *("-" if side is None else format_memory(side["moves"]["bytes"]) for side in sides),
                *("-" if side is None else f"{_get_time(side):.3f}" for side in sides),
                _format_fields(entry),
            ]
        )
    table = align_columns(rows, right=(4, 5, 6, 7))
    styled = [style(line, entry["change"]) for line, entry in zip(table[1:], shown, strict=True)]
    return ["", style(f"operators: {_count_changes(shown)}", "heading"), table[0], *_limit(styled), *timed_only]


def _format_fields(entry: Document) -> str:
    """What changed besides what the columns show."""
    a, b = entry["a"], entry["b"]
    words = []
    for field in entry["fields"]:
        if field in ("op", "pin"):
            words.append(f"{field} {shorten(str(a[field]), 30)} -> {shorten(str(b[field]), 30)}")
        elif field == "sites" and "cut" not in entry["fields"]:
            words.append(f"sites {format_ranges(set(a[field]))} -> {format_ranges(set(b[field]))}"
                         if set(a[field]) != set(b[field]) else "sites in another order")  # fmt: skip
        elif field in ("inputs", "outputs", "exchange", "blocks"):
            words.append(field)
    return ", ".join(words)


def _get_time(part: Mapping[str, Any] | None) -> float:
    return 0.0 if part is None or part["time"] is None else float(part["time"]["critical_ms"])


def _format_part(entry: Document) -> str:
    shown = entry["b"] or entry["a"]
    extents = ", ".join(f"{dim}={extent}" for dim, extent in zip(shown["dims"], shown["shape"], strict=True))
    text = f"{_SIGNS[entry['change']]} {name_entry(entry)}: {shown['dtype']}[{extents}]"
    return text + (f", changed: {', '.join(entry['fields'])}" if entry["fields"] else "")


def _limit(lines: list[str]) -> list[str]:
    omitted = len(lines) - MAX_DIFFERENCE_ROWS
    return lines[:MAX_DIFFERENCE_ROWS] + ([f"and {omitted} more; --json has all"] if omitted > 0 else [])
