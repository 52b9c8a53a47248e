"""The answer of a search: a plan, its device program, and the way there."""

from __future__ import annotations

from dataclasses import dataclass

from einc.logical.plan import LogicalPlan
from einc.physical.program import DeviceProgram


@dataclass(frozen=True, slots=True)
class SelectedPlan:
    """The plan, and its device program with the exchanges that were asked for; None if no plan fits into memory.

    `walk` has the text of every pass of the search, in order (`--emit search`).
    """

    plan: LogicalPlan
    program: DeviceProgram | None
    walk: tuple[str, ...] = ()
