"""The exchange programs of a plan in time: which piece crosses which link when, and who has a copy of what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from einc.errors import EincError
from einc.exchange.language.parser import parse
from einc.exchange.language.program import Program
from einc.exchange.language.resolve import resolve
from einc.exchange.simulation.body_run import Timeline
from einc.exchange.simulation.simulator import simulate
from einc.machines.model import MS_PER_US, Machine
from einc_runtime.strict_json import Document

MAX_DRAWN_TEXT = 300_000
"""Characters of all programs of a page that are drawn, the slowest programs first: to read and simulate them takes a
second."""

DRAWN_DIGITS = 12
"""Of milliseconds that are drawn: further digits only make pages larger."""


def describe_programs(document: Document, machine: Machine) -> list[Document]:
    """Every distinct exchange program of a plan, the one that takes most time first, with the operators that use it.

    `exchange` is what the document of `einc explain` says of it. `drawn` is what happens in it, or null where the
    program is too long, or does not fit the machine.
    """
    groups: dict[tuple[str, str], Document] = {}
    for name, exchange in _list_exchanges(document):
        key = exchange["program"], exchange["author"]
        groups.setdefault(key, {"names": [], "exchange": exchange})["names"].append(name)
    rows = sorted(groups.values(), key=lambda row: (-_sum_time(row), row["names"][0]))
    left = MAX_DRAWN_TEXT
    for row in rows:
        text = row["exchange"]["program"]
        left -= len(text) if (is_drawn := len(text) <= left) else 0
        row["drawn"] = _draw_text(text, machine) if is_drawn else None
    return rows


def draw_program(program: Program, timeline: Timeline, machine: Machine) -> Document:
    """What happens in a program: `aggregates` by name, with their bytes; `copies`, which appear in time; and `flows`.

    A copy is `[aggregate, site, ms, how]`, in the order of the times: it is `held` at the beginning, or `formed` of
    others. A flow is `[aggregate, source, target, start ms, end ms]`, without the latency; at its end, the target has a
    copy that has arrived.
    """
    names: dict[tuple[str, ...], int] = {}
    sizes = {atom: holding.size for holding in program.holdings for atom in holding.aggregate}
    copies: list[list[Any]] = []
    flows: list[list[Any]] = []

    def number(aggregate: tuple[str, ...]) -> int:
        return names.setdefault(aggregate, len(names))

    for holding in program.holdings:
        copies += [[number(holding.aggregate), site, 0.0, "held"] for site in holding.sites]
    for event in timeline.events:
        aggregate, source = number(event.action.aggregate), event.action.source
        if event.parts != (event.action.aggregate,):
            copies.append([aggregate, source, round(event.formed, DRAWN_DIGITS), "formed"])
        for target, arrival in event.arrivals:
            begin = min(arrival, event.formed + machine.transfer_latency_us * MS_PER_US)
            flows.append([aggregate, source, target, round(begin, DRAWN_DIGITS), round(arrival, DRAWN_DIGITS)])
    copies.sort(key=lambda copy: copy[2])
    return {
        "aggregates": [{"name": "+".join(name), "bytes": sizes.get(name[0], 0)} for name in names],
        "copies": copies,
        "flows": flows,
        "completion_ms": round(timeline.completion_ms, DRAWN_DIGITS),
    }


def _draw_text(text: str, machine: Machine) -> Document | None:
    try:
        program = resolve(parse(text, "exchange program"), machine)
        return draw_program(program, simulate(program, machine), machine)
    except EincError:
        return None


def _list_exchanges(document: Document) -> Iterator[tuple[str, Document]]:
    parts: Iterable[tuple[str, Document]] = [(op["name"], op) for op in document["ops"]]
    outputs = [(f"output {output['name']}", output) for output in document["outputs"]]
    for name, part in [*parts, *outputs]:
        if part["exchange"] is not None:
            yield name, part["exchange"]


def _sum_time(row: Document) -> float:
    return len(row["names"]) * (row["exchange"]["completion_ms"] or 0.0)
