"""Which choices of a plan are not certain: others are predicted to take no longer than the plan's time may be off."""

from __future__ import annotations

from collections.abc import Iterator

from einc.report.selection import describe_contender
from einc.report.tables import format_cut
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count

MAX_NAMED_CHOICES = 4
"""Choices that are named, those first whose other plan is fastest; the document has all."""


def describe_choices(document: Document) -> Document | None:
    """How many choices were made by predicted time, and those that another plan within the error would turn.

    A choice is the cut of an operator that no pin decides, or the plan instead of a baseline or of one that the search
    timed. None where nothing was fitted to the GPUs.
    """
    if document["predicted_range_ms"] is None:
        return None
    choices = [*_list_cuts(document), *_list_plans(document)]
    uncertain = [choice for choice in choices if choice.pop("is_uncertain")]
    return {"count": len(choices), "uncertain": uncertain}


def _list_cuts(document: Document) -> Iterator[Document]:
    """A choice for every operator: with the fastest other cut that is within the error, if any is."""
    for operation in document["ops"]:
        if operation["next_fastest"] is None or operation["pin"]:
            continue
        near = [
            alternative
            for alternative in operation["other_cuts"]
            if abs(alternative["more_ms"]) <= alternative["error_ms"]
        ]
        nearest = near[0] if near else operation["next_fastest"]
        yield {
            "choice": "cut",
            "name": operation["name"],
            "chosen": format_cut(operation),
            "instead": format_cut(nearest),
            "predicted_ms": document["predicted_ms"] + nearest["more_ms"],
            "is_uncertain": bool(near),
        }


def _list_plans(document: Document) -> Iterator[Document]:
    """A choice for every baseline, and for every other plan that the search timed and that fits, equal ones once."""
    baselines = [row for row in document["baselines"] if row["predicted_ms"] is not None]
    known = {row["name"] for row in baselines}
    contenders = [row for row in document["contenders"] if row["predicted_ms"] is not None]
    rows = [("baseline", row) for row in baselines]
    rows += [("plan", row) for row in contenders if row["fits"] is not False and row["name"] not in known]
    seen = {_describe_plan(row) for row in (*baselines, *contenders) if row["chosen"]}
    for choice, row in rows:
        if _describe_plan(row) not in seen:
            seen.add(_describe_plan(row))
            yield {
                "choice": choice,
                "name": row["name"],
                "chosen": None,
                "instead": row["name"],
                "predicted_ms": row["predicted_ms"],
                "is_uncertain": row["predicted_ms"] <= document["predicted_range_ms"][1],
            }


def _describe_plan(row: Document) -> tuple[float, int]:
    return row["predicted_ms"], row["memory_bytes"]


def format_choices(document: Document) -> list[str]:
    """The choices that are not certain: a heading, and a line for each; none if all are, or if nothing is known."""
    choices = document["choices"]
    if choices is None or not choices["uncertain"]:
        return []
    groups: dict[tuple[str, str, str | None, str], list[Document]] = {}
    for choice in sorted(choices["uncertain"], key=lambda choice: choice["predicted_ms"]):
        time = f"{choice['predicted_ms']:.3f} ms"
        key = (choice["choice"], time, choice["chosen"], choice["instead"])
        groups.setdefault(key, []).append(choice)
    named = [_format_group(group, time) for (_, time, _, _), group in groups.items()]
    more = [f"{len(named) - MAX_NAMED_CHOICES} more"] if len(named) > MAX_NAMED_CHOICES else []
    some = len(choices["uncertain"])
    verb = "is" if some == 1 else "are"
    heading = f"{some} of {format_count(choices['count'], 'choice')} {verb} within the error of the prediction:"
    return [heading, *(f"  {line}" for line in (*named[:MAX_NAMED_CHOICES], *more))]


def _format_group(group: list[Document], time: str) -> str:
    """`up (x32) cut d_ff/8 instead of tokens/8 (about 0.151 ms)`, `the baseline megatron (0.149 ms)`."""
    first = group[0]
    if first["choice"] == "baseline":
        return f"the baseline {first['name']} ({time})"
    if first["choice"] == "plan":
        return f"{describe_contender(first['name'])} ({time})"
    name = first["name"] if len(group) == 1 else f"{first['name']} (x{len(group)})"
    return f"{name} cut {first['instead']} instead of {first['chosen']} (about {time})"
