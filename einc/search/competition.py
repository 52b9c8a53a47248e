"""A plan against the well-known plans of the same graph: each is built and predicted, and the fastest is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from einc.errors import CapacityError, MachineError
from einc.logical.optimize import build_choices
from einc.logical.pins import Pin
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.physical.budget import SearchBudget
from einc.physical.program import DeviceProgram
from einc.plan_report import BaselineTime, Contender
from einc.search.baselines import build_baselines
from einc_runtime.text import shorten

Builder = Callable[[LogicalPlan], DeviceProgram]

MAX_NOTE = 300
"""Characters of the reason why a plan could not be built."""

_NO_TIME = "no time was left to search exchange programs for it"


@dataclass(frozen=True, slots=True)
class Competition:
    """The fastest program, and what every baseline takes."""

    program: DeviceProgram
    baselines: tuple[BaselineTime, ...]


def compete(
    plan: LogicalPlan, names: Sequence[str], pins: Sequence[Pin], build: Builder, budget: SearchBudget
) -> Competition:
    """The fastest of the programs that `build` makes of `plan` and of the named baselines, which keep to the pins.

    Of equally fast ones, the plan goes first. When the budget is spent, no more are built; the search for the plan may
    have predicted them. Raises CapacityError or MachineError, those of the plan, if none can be built.
    """
    best, failure = _attempt(plan, build)
    predicted = {contender.name: contender for contender in plan.contenders}
    winner: str | None = None
    contenders = tuple(msgspec.structs.replace(earlier, chosen=False) for earlier in plan.contenders)
    problem = build_problem(plan.graph, plan.sites, flexible=True, pins=pins)
    rows: list[BaselineTime] = []
    for baseline in build_baselines(plan.graph, problem, plan.sites, names):
        if baseline.chosen is None:
            rows.append(BaselineTime(baseline.name, note=baseline.reason))
        elif baseline.same_as is not None:
            same = next(row for row in rows if row.name == baseline.same_as)
            rows.append(msgspec.structs.replace(same, name=baseline.name, note=same.note or f"as {same.name}"))
        elif best is not None and not budget.left:
            known = predicted.get(baseline.name, Contender(baseline.name))
            rows.append(BaselineTime(baseline.name, known.predicted_ms, known.memory, note=_NO_TIME))
        else:
            choices = build_choices(plan.graph, problem, baseline.chosen)
            candidate = replace(
                plan, choices=choices, exact=False, spread=baseline.spread, idle=0, contenders=contenders
            )
            program, fault = _attempt(candidate, build)
            if program is None:
                rows.append(BaselineTime(baseline.name, note=shorten("" if fault is None else fault.message, MAX_NOTE)))
                continue
            rows.append(BaselineTime(baseline.name, program.predicted_ms, max(program.memory)))
            if best is None or program.predicted_ms < best.predicted_ms:
                best, winner = program, baseline.name
    if best is None:
        assert failure is not None
        raise failure
    marked = tuple(msgspec.structs.replace(row, chosen=row.name == winner) for row in rows)
    return Competition(best, marked)


def _attempt(plan: LogicalPlan, build: Builder) -> tuple[DeviceProgram | None, CapacityError | MachineError | None]:
    """The program of a plan, or the reason why there is none."""
    try:
        return build(plan), None
    except (CapacityError, MachineError) as error:
        return None, error
