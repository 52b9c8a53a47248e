"""The answer of a search: a plan, and its device program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from einc.errors import CapacityError
from einc.logical.plan import LogicalPlan
from einc.physical.program import DeviceProgram


@dataclass(frozen=True, slots=True)
class SelectedPlan:
    """The plan, and its device program with the exchanges that were asked for; None if no plan fits into memory."""

    plan: LogicalPlan
    program: DeviceProgram | None


def select_plan(plans: Sequence[LogicalPlan], build_program: Callable[[LogicalPlan], DeviceProgram]) -> SelectedPlan:
    """The fastest of the plans with its program, or the first one without a program if none fits after all."""
    result = SelectedPlan(plans[0], None)
    for plan in plans:
        with suppress(CapacityError):
            program = build_program(plan).forget_times()
            if result.program is None or program.predicted_ms < result.program.predicted_ms:
                result = SelectedPlan(plan, program)
    return result
