"""The first section of the page: what a plan takes, against what, and how sure that is. It is there without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einc.machines.picture import format_ranges
from einc.report.choices import format_choices
from einc.report.contracts import measure
from einc.report.division import format_rate, name_shape
from einc.report.known_steps import format_parallelism
from einc.report.selection import group_contenders, summarize_selection
from einc.report.step_parts import format_step
from einc.report.tables import NOT_MEASURED, format_ms, format_range, summarize_time
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory, shorten

MAX_CONTENDERS = 12  # rows of a table that fits on a screen
MAX_MEMORIES = 12  # the same for arenas, of which equal ones are one row


def describe_answer(document: Document, sites: Sequence[int], measured_ms: float | None = None) -> Document:
    """What the template shows. `sites` has the memory of every site of the machine, in bytes."""
    quantities = measure(document)
    predicted = document["predicted_ms"]
    return {
        "predicted": _format_ms(predicted),
        "trust": describe_trust_apart(document),
        "bars": _list_bars(document, quantities, measured_ms),
        "facts": _list_facts(document, quantities),
        "memory": _list_memory(document, sites),
        "found": _list_reasons(document, quantities),
        "contenders": _list_contenders(document),
        "stages": _list_stages(document["division"]),
        "shapes": _list_shapes(document["division"]),
        "points": [
            {
                "memory": format_memory(point["memory_bytes"]),
                "time": _format_ms(point["predicted_ms"]),
                "fits": point["fits"],
                "share": _percent(point["predicted_ms"], max(p["predicted_ms"] for p in document["memory_points"])),
            }
            for point in document["memory_points"]
        ],
    }


def list_program_facts(exchange: Document) -> list[tuple[str, str, str]]:
    """Tiles about one exchange program."""
    taken, naive, bound = (exchange[name] for name in ("completion_ms", "naive_ms", "bound_ms"))
    trust = describe_trust_apart(exchange, "completion")
    facts = [("simulated time", _format_ms(taken), trust or "from the beginning to the last arrival")]
    facts.append(("naive program", _format_ms(naive), f"{naive / taken:,.2f}\u00d7 this one" if taken else ""))
    proof = f"this one takes {taken / bound:,.2f}\u00d7 as long" if bound else ""
    return [*facts, ("every program at least", _format_ms(bound), proof)]


def describe_trust_apart(document: Document, name: str = "predicted") -> str:
    """What stands below a time in large figures: `0.12 to 0.17 ms`, or that nothing was measured."""
    span = document[f"{name}_range_ms"]
    if span is not None:
        return f"{format_range(span)} ms"
    return NOT_MEASURED if document["rates"] == "peak" else ""


_SOURCES = {
    "measured": "times are predicted by a simulation, at rates that were measured of this machine",
    "fitted": "times are predicted by a simulation, with kernels as they were measured on such GPUs: four in five plans"
    " like this one end within the range",
    "peak": f"times are predicted by a simulation, at rates of the machine file that were {NOT_MEASURED}",
}
"""How far times can be believed, by where those of kernels come from."""


def _list_bars(document: Document, quantities: Mapping[str, Any], measured_ms: float | None) -> list[Document]:
    """The plan's time and those that it is compared with; a time that is not known has the reason."""
    predicted, references = document["predicted_ms"], document["references"]
    paper = next((row for row in document["contenders"] if row["name"] == "paper"), None)
    single = next((row for row in (*document["baselines"], *document["contenders"]) if row["name"] == "single"), None)
    alone = references["one_site_ms"]
    if single is not None and single["predicted_ms"] is not None:
        alone = single["predicted_ms"]
    rows: list[tuple[str, float | None, float | None, str]] = [("this plan, predicted", predicted, None, "")]
    if measured_ms is not None:
        rows.append(("this plan, measured", measured_ms, None, "from the trace"))
    if document["devices"] > 1:
        rows.append(("one site alone", alone, None, "if its memory were enough"))
    if paper is not None:
        least = paper["promised_ms"]
        note = "" if least is None else "with naive exchanges; the light part is what synthesized ones promise"
        note = "the same plan" if paper["chosen"] else note
        rows.append(("the paper's selector", paper["predicted_ms"], least, note))
    rows.append(("these cuts, naive exchanges", references["naive_ms"], None, ""))
    if quantities["bound_ms"]:
        rows.append(("all exchanges, one after the other", quantities["exchange_ms"], None, "much of it can overlap"))
        rows.append(("the bound of these exchanges", quantities["bound_ms"], None, "no programs can go below, proved"))
    most = max((time for _, time, _, _ in rows if time is not None), default=0.0) or 1.0
    return [
        {
            "name": name,
            "time": _format_ms(time),
            "share": _percent(time, most),
            "least": _percent(least, most) if least is not None else None,
            "ratio": f"{time / predicted:,.2f}\u00d7" if time is not None and predicted and position else "",
            "note": note if time is not None else "not known",
            "own": position == 0,
        }
        for position, (name, time, least, note) in enumerate(rows)
    ]


def _list_facts(document: Document, quantities: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Tiles: a name, a figure, and what is said of it."""
    memory, moved = document["memory_bytes"], quantities["comm_bytes"]
    facts = []
    alone = document["references"]["one_site_ms"]
    if alone is not None and document["predicted_ms"] and document["devices"] > 1:
        gain = alone / document["predicted_ms"]
        facts.append(("against one site", f"{gain:,.2f}\u00d7", f"with {document['devices']} sites"))
    facts += _list_division_facts(document["division"])
    facts.append(("fullest site", format_memory(max(memory)), f"least {format_memory(min(memory))}"))
    facts.append(("moved between sites", format_memory(moved), format_count(quantities["transfers"], "transfer")))
    if quantities["bound_ratio"] is not None and quantities["bound_ms"]:
        facts.append(("exchanges", f"{quantities['bound_ratio']:,.2f}\u00d7", "of what is proved necessary"))
    return facts


def _list_division_facts(division: Document | None) -> list[tuple[str, str, str]]:
    """Tiles about a plan with stages, micro-batches or replicas."""
    if division is None or not division["stages"] or division["bubble"] is None:
        return []
    return [
        ("bubble", f"{division['bubble']:.0%}", "of the time, sites compute nothing"),
        ("runs a second", format_rate(division["runs_per_second"]), name_shape(division, len(division["stages"]))),
    ]


def _list_stages(division: Document | None) -> list[Document]:
    """The stages, each with the part of the time in which its sites compute."""
    return [
        {
            "name": f"stage {number}, from {shorten(stage['first'], 30)}",
            "share": _percent(stage["busy_part"], 1.0),
            "busy": "" if stage["busy_part"] is None else f"{stage['busy_part']:.0%}",
            "sites": f"sites {' and '.join(format_ranges(group) for group in stage['sites'])}",
        }
        for number, stage in enumerate(() if division is None else division["stages"], 1)
    ]


def _list_shapes(division: Document | None) -> list[Document]:
    """The numbers of stages, micro-batches and replicas that were considered, the fastest first."""
    shapes = [] if division is None else division["shapes"][:MAX_CONTENDERS]
    most = max((shape["predicted_ms"] for shape in shapes), default=0.0)
    return [
        {
            "name": name_shape(shape, shape["stages"]),
            "time": _format_ms(shape["predicted_ms"]),
            "share": _percent(shape["predicted_ms"], most),
            "remark": "chosen" if shape["chosen"] else "" if shape["built"] else "estimated",
            "chosen": shape["chosen"],
        }
        for shape in shapes
    ]


def _list_memory(document: Document, sites: Sequence[int]) -> list[Document]:
    """The arenas, equal ones together, beside what a site has; the largest first, and MAX_MEMORIES of them."""
    groups: dict[tuple[int, int], list[int]] = {}
    for site, (used, available) in enumerate(zip(document["memory_bytes"], sites, strict=True)):
        groups.setdefault((used, available), []).append(site)
    most = max(document["memory_bytes"], default=0) or 1
    rows = sorted(groups.items(), key=lambda item: (-item[0][0], item[1]))[:MAX_MEMORIES]
    return [
        {
            "site": f"site{'s' if len(numbers) > 1 else ''} {format_ranges(numbers)}",
            "bytes": format_memory(used),
            "share": _percent(used, most),
            "of": f"{used / available:.1%} of {format_memory(available)}" if available else "",
        }
        for (used, available), numbers in rows
    ]


def _list_reasons(document: Document, quantities: Mapping[str, Any]) -> list[str]:
    """How the plan was found, and how sure its figures are, in sentences."""
    choices = format_choices(document)
    lines = [*format_parallelism(document["parallelism"]), *format_step(document["step"])]
    lines += summarize_selection(document)
    lines += [f"{choices[0]} {', '.join(line.strip() for line in choices[1:])}"] if choices else []
    if document["exact"]:
        lines.append("it is proved that no plan costs less by the paper's cost")
    if document["time"] is not None:
        lines.append(summarize_time(document))
    if quantities["bound_ms"]:
        lines.append("each exchange has a proved lower bound; the section on exchanges says what proves it")
    lines.append(_SOURCES[document["rates"]])
    if document["selector"] == "fastest":
        lines.append("the time tables are minimized exactly, but do not see what overlaps: that no plan at all is"
                     " faster is not proved")  # fmt: skip
    said = [line[0].upper() + line[1:] + "." for line in lines if line]
    return [*said, *(f"Note: {document[field]}." for field in ("note", "unknown") if document[field] is not None)]


def _list_contenders(document: Document) -> list[Document]:
    groups, missing = group_contenders(document)
    most = max((group.high_ms for group in groups), default=0.0)
    rows = [
        {
            "name": group.names,
            "time": _format_ms(group.high_ms),
            "share": _percent(group.high_ms, most),
            "least": _percent(group.low_ms, most) if group.low_ms < group.high_ms else None,
            "memory": format_memory(group.memory),
            "remark": group.remark,
            "chosen": group.remark == "chosen",
        }
        for group in groups[:MAX_CONTENDERS]
    ]
    none = {"time": "", "share": 0.0, "least": None, "memory": "", "chosen": False}
    return rows + [{"name": name, "remark": shorten(reason, 80), **none} for name, reason in missing[:MAX_CONTENDERS]]


def _format_ms(time: float | None) -> str:
    return "" if time is None else format_ms(time)


def _percent(value: float | None, most: float) -> float:
    """For the width of a bar."""
    return 0.0 if value is None or not most else round(100 * value / most, 2)
