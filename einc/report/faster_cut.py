"""A cut that makes a plan faster than it is, if the time tables suggest one: the plan with it is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einc.errors import EincError
from einc.logical.candidates import restore_candidate
from einc.logical.pins import REPLICAS
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.report.references import MAX_TRIED_TASKS
from einc.report.summary import group_alike
from einc_runtime.plan.schema import Bundle
from einc_runtime.strict_json import Document

WORTH_TRYING = 0.002
"""The least part of a plan's time for which another cut is tried, and suggested."""


def find_faster_cut(
    bundle: Bundle, plan: LogicalPlan, machine: Machine, operations: Sequence[Document]
) -> Document | None:
    """`ops`, the names of equal operators, `cut`, as a pin has it, and `predicted_ms` of the plan with it and naive
    exchanges: those that the time tables promise most for, if the plan is faster then. None where it is not, and above
    MAX_TRIED_TASKS tasks.

    `operations` are their rows in the document. Operators that a person has pinned keep their cuts.
    """
    predicted_ms = bundle.predicted_ms or 0.0
    group = max(group_alike(operations), key=_find_saved_ms, default=[])
    if len(bundle.tasks) > MAX_TRIED_TASKS or _find_saved_ms(group) <= WORTH_TRYING * predicted_ms:
        return None
    names, cut = [operation["name"] for operation in group], group[0]["next_fastest"]
    tried_ms = _time_with(plan, machine, names, cut)
    if tried_ms is None or tried_ms > (1 - WORTH_TRYING) * predicted_ms:
        return None
    return {"ops": names, "cut": _write_pin(cut), "predicted_ms": tried_ms}


def _find_saved_ms(group: Sequence[Document]) -> float:
    """What equal operators may save by their next fastest cut, by the time tables; negative where they would take
    longer."""
    cut = group[0]["next_fastest"] if group and group[0]["pin"] is None else None
    return -cut["more_ms"] * len(group) if cut else 0.0


def _time_with(plan: LogicalPlan, machine: Machine, names: Sequence[str], cut: Document) -> float | None:
    """What the plan takes with another cut of some equal operators, and naive exchanges; None if it does not fit."""
    from einc.physical.build import build
    from einc.physical.schedule import NaiveScheduler

    intervals = tuple(tuple((lower, upper) for lower, upper in parts) for parts in cut["intervals"].values())
    choices = list(plan.choices)
    for n, node in enumerate(plan.graph.nodes):
        if node.name in names:
            choices[n] = replace(choices[n], candidate=restore_candidate(node.operator, intervals, cut["replicas"]))
    try:
        tried = replace(plan, choices=tuple(choices))
        return build(tried, machine, NaiveScheduler(machine, plan.sites, timed=False)).predicted_ms
    except EincError:
        return None


def _write_pin(cut: Document) -> str:
    """`tokens/2,replicas/4`, as `--pin` has it."""
    parts = [f"{name}/{len(parts)}" for name, parts in cut["intervals"].items() if len(parts) > 1]
    if cut["replicas"] > 1:
        parts.append(f"{REPLICAS}/{cut['replicas']}")
    return ",".join(parts) or "whole"
