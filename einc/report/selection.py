"""Why a plan was chosen, as text: what it was compared with, and what less memory would cost in time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from einc.options import FASTEST
from einc.report.tables import align_columns, describe_trust, format_ms
from einc_runtime.strict_json import Document
from einc_runtime.text import format_memory

Emphasis = Callable[[str], str]

REASON_WIDTH = 78
"""Characters of the lines that say why there is no such plan."""

MAX_NAMES = 3
"""Names that are shown of equal plans."""

SAME_TIME = 0.001
"""Times that differ by a smaller part are the same to a reader, who sees three digits."""

_PLAN_NAMES = {
    "time": ("time tables", "the optimum of the time tables"),
    "time, synthesized": (
        "time tables (synthesized)",
        "the optimum of the time tables for synthesized exchanges",
    ),
    "time, together": ("time tables, together", "the optimum of the time tables, where idle sites stay idle"),
    "side by side": ("side by side", "the optimum of time tables that favour independent parts on different sites"),
    "paper": ("paper's cost", "the optimum of the paper's cost"),
    "less memory": ("less memory", "the optimum of the time tables with a price on memory"),
    "improved": ("improved", "the best of the others after changes of single operators"),
    "tiles": (
        "in tiles",
        "the fastest of the others with products in tiles, which sites send while they compute the next",
    ),
    "idle site": ("sites idle", "the fastest plan on fewer sites, as none that was looked at on more was faster"),
}
"""For the names that the search gives to plans, the name in the table and what is said of it. Others are those of
well-known plans."""

_OTHER_SELECTORS = {
    "eindecomp": "chosen for the least cost of the paper, not for the least time (--selector fastest does that)",
    "greedy": "every operator has the cut that costs least by itself (selector greedy)",
    "random": "the cuts are drawn at random (selector random)",
}


def summarize_selection(document: Document) -> list[str]:
    """Lines on how the plan was chosen, and what a faster one lacks."""
    return [*_describe_choice(document), *_describe_distance(document)]


def _describe_distance(document: Document) -> list[str]:
    """How far from the fastest possible plan this one can be at most."""
    least, predicted = document["least_ms"], document["predicted_ms"]
    if document["selector"] != FASTEST or not least or not predicted:
        return []
    return [
        f"at most {max(1.0, predicted / least):.2f} times the fastest possible plan: none takes less than"
        f" {format_ms(least)}"
    ]


def _describe_choice(document: Document) -> list[str]:
    if document["selector"] != FASTEST:
        return [_OTHER_SELECTORS[document["selector"]]] if document["selector"] in _OTHER_SELECTORS else []
    rows = [row for row in document["contenders"] if row["predicted_ms"] is not None]
    chosen = [row["name"] for row in rows if row["chosen"]]
    named = [row["name"] for row in document["baselines"] if row["chosen"]]
    if not chosen and not named:
        return []
    if named:
        lines = [f"the fastest by predicted time: the baseline {named[0]}, faster than what the search found"]
    else:
        _, description = _name(chosen[0])
        fitting = not all(row["fits"] for row in rows)
        plans = {(row["predicted_ms"], row["memory_bytes"], row["total_cost"]) for row in rows if row["fits"]}
        some = f"the fastest of {len(plans)} plans by predicted time"
        if fitting:
            some = f"the fastest by predicted time of {len(plans)} plans that fit"
        if len(plans) == 1:
            some = f"the only plan {'of these that fits' if fitting else 'that was built'}"
        lines = [f"{some}: {description}"]
        (promised,) = (row["predicted_ms"] for row in rows if row["chosen"])
        if abs(promised - document["predicted_ms"]) > SAME_TIME * document["predicted_ms"]:
            lines.append(f"plans are compared before they are built whole: this one promised {format_ms(promised)}")
    return [*lines, *_describe_larger(document)]


def find_fastest_too_large(document: Document) -> Document | None:
    """Of the contenders that do not fit into memory, the fastest, if it is faster than the plan."""
    larger = [row for row in document["contenders"] if row["fits"] is False and row["predicted_ms"] is not None]
    fastest = min(larger, key=lambda row: row["predicted_ms"], default=None)
    return None if fastest is None or fastest["predicted_ms"] >= document["predicted_ms"] else fastest


def _describe_larger(document: Document) -> list[str]:
    """That memory is what a faster plan lacks."""
    larger = find_fastest_too_large(document)
    if larger is None:
        return []
    needed = format_memory(larger["memory_bytes"])
    return [f"a faster plan does not fit: {format_ms(larger['predicted_ms'])} would take {needed} per site"]


def describe_contender(name: str) -> str:
    """In words, what the search calls a plan that it considered: `the optimum of the paper's cost`."""
    return _name(name)[1]


def _name(name: str) -> tuple[str, str]:
    return _PLAN_NAMES.get(name, (name, f"the well-known plan {name}"))


def describe_choice(document: Document) -> str:
    """What a plan takes, in a few words; of plans that were not chosen by time also the paper's cost."""
    memory = f"{format_memory(max(document['memory_bytes']))} per site"
    predicted = f"predicted {format_ms(document['predicted_ms'])}{describe_trust(document)}"
    if document["selector"] != FASTEST:
        proof = "" if document["exact"] else ", not proved least"
        return f"{predicted}, {memory}, cost {document['total_cost']:,}{proof}"
    larger = find_fastest_too_large(document)
    if larger is None:
        return f"{predicted}, {memory}"
    needed = f"{format_ms(larger['predicted_ms'])} would take {format_memory(larger['memory_bytes'])} per site"
    return f"{predicted}, {memory} ({needed}, which does not fit)"


def find_paper_contender(document: Document) -> Document | None:
    """The contender that the paper's cost chooses, if it was predicted."""
    return next((x for x in document["contenders"] if x["name"] == "paper" and x["predicted_ms"] is not None), None)


def is_chosen_plan(row: Document, document: Document) -> bool:
    """Whether a contender takes what the chosen one does."""
    fields = ("predicted_ms", "memory_bytes", "total_cost")
    return any(
        contender["chosen"] and all(contender[field] == row[field] for field in fields)
        for contender in document["contenders"]
    )


def find_times(row: Document) -> tuple[float, float]:
    """Between which times a contender is predicted to end, in ms, with the exchanges that the plan was to have."""
    highest = row["predicted_ms"]
    return highest if row["promised_ms"] is None else row["promised_ms"], highest


def format_span(ends: Sequence[float], digits: int = 3) -> str:
    """Two numbers as one text: `0.144 to 0.357`."""
    low, high = (f"{end:,.{digits}f}" for end in ends)
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class EqualPlans:
    """Plans that the search considered and that take the same, and their names; `low_ms` is below `high_ms` where
    exchanges were not synthesized: the first is what the time tables promise, the second that with naive ones."""

    names: str
    low_ms: float
    high_ms: float
    memory: int
    cost: int
    remark: str


def group_contenders(document: Document) -> tuple[list[EqualPlans], list[tuple[str, str]]]:
    """The plans that the search considered, the chosen one first and then the fastest; and the names of those that have
    no time, each with the reason."""
    rows = [row for row in document["contenders"] if row["predicted_ms"] is not None]
    groups: dict[tuple[float, float, int, int], list[Document]] = {}
    for row in sorted(rows, key=lambda row: (not row["chosen"], find_times(row))):
        groups.setdefault((*find_times(row), row["memory_bytes"], row["total_cost"]), []).append(row)
    equal_plans = []
    for (low, high, memory, cost), group in groups.items():
        equal_names = [
            row["name"] for row in document["contenders"] if row["reason"] in [f"as {x['name']}" for x in group]
        ]
        names = _list_names([*(row["name"] for row in group), *equal_names])
        remark = "chosen" if group[0]["chosen"] else "" if group[0]["fits"] else "does not fit"
        equal_plans.append(EqualPlans(names, low, high, memory, cost, remark))
    known = {f"as {row['name']}" for row in rows}
    missing = [row for row in document["contenders"] if row["predicted_ms"] is None and row["reason"]]
    return equal_plans, [(_name(row["name"])[0], row["reason"]) for row in missing if row["reason"] not in known]


def format_contenders(document: Document, strong: Emphasis, *, paper: bool = False) -> list[str]:
    """The table of the plans that the search considered, the fastest first; equal plans stand in one row."""
    groups, missing = group_contenders(document)
    if not groups:
        return []
    table = [["plans considered", "predicted", "per site", *(["paper's cost"] if paper else []), ""]]
    for group in groups:
        span = format_span((group.low_ms, group.high_ms))
        cost = [f"{group.cost:,}"] if paper else []
        table.append([group.names, f"{span} ms", format_memory(group.memory), *cost, group.remark])
    lines = align_columns(table, right=range(1, len(table[0]) - 1))
    for name, reason in missing:
        lines += wrap(f"  not tried: {name}, {reason}", REASON_WIDTH, subsequent_indent="    ")
    if any(" to " in row[1] for row in table):
        lines.append(
            "  a to b: from what the time tables promise with synthesized exchanges to the time with naive ones"
        )
    if not any(row["name"] == "time" and row["predicted_ms"] is None for row in document["contenders"]):
        lines.append("  time tables: what each cut of an operator takes, and each exchange between two cuts. They are")
        lines.append("  minimized exactly. They do not see what overlaps: that no plan at all is faster is not proved.")
    return [strong(lines[0]), *lines[1:], ""]


def _list_names(names: Sequence[str]) -> str:
    """The names of equal plans: the first optima, well-known plans, and then the rest, at most MAX_NAMES of them."""
    ranked = sorted(names, key=lambda name: 0 if name in ("time", "paper") else 1 if name not in _PLAN_NAMES else 2)
    shown = ", ".join(_name(name)[0] for name in ranked[:MAX_NAMES])
    return shown + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def format_memory_points(document: Document, strong: Emphasis) -> list[str]:
    """What plans with less memory would take, of those that the search built; nothing if there is only one."""
    points = document["memory_points"]
    if len(points) < 2:
        return []
    plan_memory = format_memory(max(document["memory_bytes"]))
    table = []
    for point, larger in itertools.zip_longest(points, points[1:]):
        if larger and format_memory(larger["memory_bytes"]) == format_memory(point["memory_bytes"]):
            continue
        remark = "this plan's memory" if format_memory(point["memory_bytes"]) == plan_memory else ""
        fits = remark if point["fits"] else "does not fit"
        table.append([f"{format_memory(point['memory_bytes'])} per site", f"{point['predicted_ms']:,.3f} ms", fits])
    lines = align_columns(table, right=(0, 1))
    return [strong("time over memory, with naive exchanges"), *(f"  {line}" for line in lines), ""]
