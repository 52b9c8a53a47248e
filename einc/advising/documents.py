"""Advice as JSON, as CSV, and as text for a terminal."""

from __future__ import annotations

import csv
import io

from einc.advising.advice import Advice
from einc.advising.figures import Figures
from einc.advising.option import AdviceOption, describe_sites
from einc.report.tables import NOT_MEASURED, align_columns, format_range
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory

_COLUMNS = (
    "machine", "named", "sites", "prompt_sites", "replicas", "stages", "microbatches", "users",
    "first_ms", "latency_ms", "round_ms", "rate", "hourly",
    "unit_cost", "memory_bytes", "limit", "limit_part", "link", "on_frontier", "best", "problem", "rates",
)  # fmt: skip
"""Of the CSV: a line for each option."""


def describe_advice(advice: Advice, objective: str) -> Document:
    """The document of `einc advise --json`."""
    workload = advice.workload
    lengths = {name: getattr(workload, name) for name in ("prompt_tokens", "answer_tokens") if hasattr(workload, name)}
    return {
        "model": workload.name,
        "unit": workload.unit,
        "prompt_tokens": None,
        "answer_tokens": None,
        **lengths,
        "objective": objective,
        "best": advice.best,
        "frontier": list(advice.frontier),
        "options": [
            describe_option(option, n in advice.frontier, n == advice.best) for n, option in enumerate(advice.options)
        ],
    }


def describe_option(option: AdviceOption, on_frontier: bool, is_best: bool) -> Document:
    """An option with the figures of its plans, and what limits the one that most of the time goes to."""
    main = find_main_figures(option)
    return {
        "machine": option.machine,
        "named": option.named,
        "sites": option.sites,
        "prompt_sites": option.prompt_sites,
        "replicas": option.replicas,
        "stages": option.stages,
        "microbatches": option.microbatches,
        "users": option.users,
        "first_ms": option.first_ms,
        "latency_ms": option.latency_ms,
        "round_ms": option.round_ms,
        "rate": option.rate,
        "hourly": option.hourly,
        "unit_cost": option.unit_cost,
        "memory_bytes": option.memory_bytes,
        "limit": None if main is None else main.limit,
        "limit_part": None if main is None else main.limit_part,
        "link": None if main is None else main.link,
        "shared_links": list(option.shared),
        "on_frontier": on_frontier,
        "best": is_best,
        "problem": option.problem,
        "rates": None if main is None else main.rates,
        "plans": {
            name: {
                "predicted_ms": figures.predicted_ms,
                "predicted_range_ms": None if figures.range_ms is None else list(figures.range_ms),
                "rates": figures.rates,
                "memory_bytes": figures.memory_bytes,
                "limit": figures.limit,
                "limit_part": figures.limit_part,
                "link": figures.link,
                "problem": figures.problem,
            }
            for name, figures in option.figures.items()
        },
    }


def find_main_figures(option: AdviceOption) -> Figures | None:
    """The figures of the plan that latency is that of."""
    return option.figures.get("token", option.figures.get("run"))


def write_csv(document: Document) -> str:
    """A heading and a line for each option; what is not known is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(document["options"])
    return stream.getvalue()


def format_advice(advice: Advice, document: Document) -> str:
    """The answer, and the table of options."""
    lines = [describe_best(advice, document), ""]
    prices = any(option.unit_cost is not None for option in advice.options)
    chat = document["answer_tokens"] is not None
    staged = any(option.stages > 1 for option in advice.options)
    heading = ["machine", "sites", "replicas", *(["stages"] if staged else []), "users"]
    heading += ["first token"] if chat else []
    heading += ["per token" if chat else "latency", f"{advice.workload.unit} / s"]
    heading += [*(["per hour", f"per million {advice.workload.unit}"] if prices else []), "per site", "limited by", ""]
    rows = [heading]
    notes = []
    for n, option in enumerate(advice.options):
        begin = [option.named, list_sites(option), str(option.replicas)]
        begin += [*([str(option.stages)] if staged else []), str(option.users)]
        if option.problem is not None:
            rows.append([*begin, *["-"] * (len(heading) - len(begin) - 1), _name_problem(option)])
            if not option.beaten and not option.is_unplanned:
                notes.append(f"{option.named}, {describe_option_sites(option)}: {option.problem}")
            continue
        cells = [*([format_time(option.first_ms)] if chat else [])]
        cells += [f"{format_time(option.latency_ms)}{describe_trust(option)}"]
        cells += [format_rate(option.rate)]
        cells += [format_cost(option.hourly), format_cost(option.unit_cost)] if prices else []
        cells += [format_memory(option.memory_bytes or 0), describe_limit(option)]
        marks = ["best"] * (n == advice.best) + ["frontier"] * (n in advice.frontier)
        rows.append([*begin, *cells, ", ".join(marks)])
    last = len(heading) - 2
    lines += align_columns(rows, right=range(1, last))
    lines += ["", *dict.fromkeys(notes)] if notes else []
    return "\n".join([*lines, *describe_terms(advice, chat)])


def _name_problem(option: AdviceOption) -> str:
    if option.is_unplanned:
        return "not planned"
    return "beaten" if option.beaten else "does not fit" if option.figures else "not possible"


def describe_best(advice: Advice, document: Document) -> str:
    """What the objective chooses, and whether there was no time left for some options."""
    left = sum(option.is_unplanned for option in advice.options)
    lines = [_describe_best(advice, document)]
    unpriced = dict.fromkeys(option.named for option in advice.options if option.hourly is None)
    if document["objective"] == "cost" and unpriced:
        lines.append(f"no price, and so not compared by cost: {', '.join(unpriced)}")
    if left:
        lines.append(
            f"the time limit was reached: not planned, {left} of {format_count(len(advice.options), 'option')}"
        )
    return "\n".join(lines)


def _describe_best(advice: Advice, document: Document) -> str:
    if advice.best is None:
        return "no option keeps to the limits" if any(o.rate for o in advice.options) else "no option is possible"
    option = advice.options[advice.best]
    sites = describe_option_sites(option)
    users = format_count(option.users, "user")
    figures = [f"{format_rate(option.rate)} {advice.workload.unit} a second"]
    figures += [f"first token after {format_time(option.first_ms)}"] if option.first_ms is not None else []
    name = "a token" if option.first_ms is not None else "a run"
    if option.unit_cost is not None:
        figures.append(f"{format_cost(option.hourly)} an hour, {format_cost(option.unit_cost)} for a million")
    figures += [f"{name} takes {format_time(option.latency_ms)}{describe_trust(option)}"]
    return f"best {document['objective']}: {option.named}, {sites}, {users}: {', '.join(figures)}"


def describe_option_sites(option: AdviceOption) -> str:
    """`8 sites in 2 stages`."""
    return describe_sites(option.sites, option.replicas, option.prompt_sites, option.stages)


def list_sites(option: AdviceOption) -> str:
    """`8`, or `6 + 2` where two of them are for prompts alone."""
    return f"{option.sites - option.prompt_sites} + {option.prompt_sites}" if option.prompt_sites else str(option.sites)


def describe_trust(option: AdviceOption) -> str:
    """What is said right after a latency: its range, or that nothing was measured of the machine."""
    main = find_main_figures(option)
    if main is None or main.rates == "measured":
        return ""
    return f", {format_range(main.range_ms)}" if main.range_ms is not None else f", {NOT_MEASURED}"


def describe_limit(option: AdviceOption) -> str:
    """`memory 81%`, or `exchanges 55% (nvswitch out 0)`."""
    main = find_main_figures(option)
    if main is None or main.limit is None:
        return "-"
    link = f" ({main.link})" if main.limit == "exchanges" and main.link is not None else ""
    return f"{main.limit} {main.limit_part:.0%}{link}"


def format_time(ms: float | None) -> str:
    """A time with three digits: `0.123 ms`, `12.3 ms` or `1.23 s`."""
    if ms is None:
        return "-"
    return f"{ms / 1e3:,.3g} s" if ms >= 1e3 else f"{ms:.3g} ms"


def format_rate(rate: float | None) -> str:
    """A rate with three digits, or all digits before the point."""
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def format_cost(cost: float | None) -> str:
    """A price, in whatever currency prices were given in."""
    return "-" if cost is None else f"{cost:,.2f}" if cost >= 0.1 else f"{cost:.3g}"


def describe_terms(advice: Advice, chat: bool) -> list[str]:
    """What the columns mean, where that could be misunderstood."""
    shared = sorted({link for option in advice.options for link in option.shared})
    lines = ["frontier: no other option has both a shorter latency and a higher rate"]
    if chat:
        lines.append("rates count the time for reading prompts; caches are planned as full")
    if any(option.prompt_sites for option in advice.options):
        lines.append("6 + 2 sites: six make tokens, and two read prompts and send them the caches")
    if any(option.stages > 1 for option in advice.options):
        subject = "prompts, a few together," if chat else "micro-batches of the users"
        lines.append(f"stages: {subject} go through groups of the sites, one after the other")
    if any(option.beaten for option in advice.options):
        lines.append(
            "beaten: not planned, as kernels alone allow no shorter latency and no higher rate than another row"
        )
    if shared:
        names = ", ".join(shared[:4]) + (f" and {len(shared) - 4} more" if len(shared) > 4 else "")
        lines.append(f"replicas share {names}: each is predicted as if it were alone")
    return lines
