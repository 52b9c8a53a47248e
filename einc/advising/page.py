"""Advice as one page: the answer, a picture of latency against rate, and the table.

The picture is drawn here, as the page needs no script: logarithmic axes, a point for each option, a line through those
that no other option beats.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc.advising.advice import Advice
from einc.advising.documents import (
    describe_best,
    describe_limit,
    describe_option_sites,
    describe_terms,
    describe_trust,
    format_cost,
    format_rate,
    format_time,
    list_sites,
)
from einc.advising.option import AdviceOption
from einc.report.html.page import render_template
from einc.report.html.plot import LogarithmicAxis, describe_frame, make_axes
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory

MACHINE_COLOURS = ("kernel", "combine", "transfer", "input", "state", "weight")
"""Of machines, by their names in the style of pages; with more machines they are used again."""


def write_advice_page(advice: Advice, document: Document) -> str:
    """The page; `document` is what `--json` prints."""
    chat = document["answer_tokens"] is not None
    machines = list(dict.fromkeys(option.named for option in advice.options))
    colours = {name: MACHINE_COLOURS[n % len(MACHINE_COLOURS)] for n, name in enumerate(machines)}
    unit_of_time = "a token of every user" if chat else "a run"
    return render_template(
        "advice.html",
        title=f"Where {advice.workload.name} should run",
        lead=_describe_question(document),
        picture_title="Latency and rate",
        footer=" from predicted times; nothing was run",
        **_describe_answer(advice, document),
        machines=[(name, colours[name]) for name in machines],
        picture=_draw(advice, colours, f"time for {unit_of_time}"),
        chat=chat,
        unit=advice.workload.unit,
        prices=any(option.unit_cost is not None for option in advice.options),
        rows=[_describe_row(advice, n, option) for n, option in enumerate(advice.options)],
        terms=describe_terms(advice, chat),
    )


def _describe_question(document: Document) -> str:
    """One sentence: what was planned."""
    lengths = [(document["prompt_tokens"], "prompts"), (document["answer_tokens"], "answers")]
    parts = [f"{name} of {format_count(count, 'token')}" for count, name in lengths if count is not None]
    planned = f"{format_count(len(document['options']), 'option')}; asked for the best {document['objective']}"
    return f"{', '.join([*parts, planned])}."


def _describe_answer(advice: Advice, document: Document) -> Document:
    """The figure that the objective asks for, what it is of, and the other figures of the best option."""
    if advice.best is None:
        return {"answer": "none", "where": describe_best(advice, document), "facts": []}
    option = advice.options[advice.best]
    unit = advice.workload.unit
    latency = (f"per {'token' if option.first_ms is not None else 'run'}", format_time(option.latency_ms))
    rate = (f"{unit} a second", format_rate(option.rate))
    cost = (f"per million {unit}", format_cost(option.unit_cost))
    chosen = {"latency": latency, "throughput": rate, "cost": cost}[document["objective"]]
    facts = [fact for fact in (rate, latency, cost) if fact != chosen and fact[1] != "-"]
    facts += [("first token", format_time(option.first_ms))] if option.first_ms is not None else []
    sites = describe_option_sites(option)
    trust = describe_trust(option)
    if trust:
        trust = f"; {trust.removeprefix(', ')}" if chosen == latency else f"; {latency[0]} {latency[1]}{trust}"
    return {
        "answer": f"{chosen[1]} {chosen[0]}",
        "where": f"{option.named}, {sites}, {format_count(option.users, 'user')}{trust}",
        "facts": [*facts, ("memory of a site", format_memory(option.memory_bytes or 0))],
    }


def _describe_row(advice: Advice, number: int, option: AdviceOption) -> Document:
    known = option.problem is None
    return {
        "machine": option.named,
        "sites": list_sites(option),
        "replicas": option.replicas,
        "stages": option.stages,
        "users": option.users,
        "first": format_time(option.first_ms),
        "latency": format_time(option.latency_ms) + (describe_trust(option) if known else ""),
        "rate": format_rate(option.rate),
        "hourly": format_cost(option.hourly),
        "cost": format_cost(option.unit_cost),
        "memory": format_memory(option.memory_bytes) if option.memory_bytes is not None else "-",
        "limit": describe_limit(option),
        "is_best": number == advice.best,
        "on_frontier": number in advice.frontier,
        "problem": option.problem,
    }


def _draw(advice: Advice, colours: dict[str, str], time_label: str) -> Document | None:
    """The picture in pixels; None where no option has times."""
    timed = [(n, o, o.latency_ms, o.rate) for n, o in enumerate(advice.options) if o.latency_ms and o.rate]
    if not timed:
        return None
    latencies, rates = [latency for _, _, latency, _ in timed], [rate for _, _, _, rate in timed]
    across, up = make_axes(LogarithmicAxis, _widen(latencies), _widen(rates))
    points = {n: (across.position(latency), up.position(rate)) for n, _, latency, rate in timed}
    labels = time_label, f"{advice.workload.unit} a second"
    return {
        **describe_frame((across, up), labels, (format_time, format_rate)),
        "frontier": " ".join(f"{x},{y}" for x, y in (points[n] for n in advice.frontier)),
        "points": [
            {
                "x": points[n][0],
                "y": points[n][1],
                "colour": colours[option.named],
                "is_best": n == advice.best,
                "label": _label_point(option),
                "text": f"{option.named}, {describe_option_sites(option)}, "
                f"{format_count(option.users, 'user')}: {format_time(latency)}, "
                f"{format_rate(rate)} {advice.workload.unit} a second",
            }
            for n, option, latency, rate in timed
        ],
    }


def _label_point(option: AdviceOption) -> str:
    """`16: 2 x 4`: users, replicas and the sites of each; or `16: 6 + 2`. Stages follow: `16: 2 x 4 / 2`."""
    each = list_sites(option) if option.prompt_sites else f"{option.replicas} x {option.sites // option.replicas}"
    stages = f" / {option.stages}" if option.stages > 1 else ""
    return f"{option.users}: {each}{stages}"


def _widen(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis with some room beside the outermost values."""
    return min(values) / 1.25, max(values) * 1.25
