"""Synthesized exchanges for a whole plan, and no plan that is slower than the naive one.

A placement that is good for one exchange may be bad for the next, and the order in which an exchange moves its pieces
may keep kernels waiting. So whole plans are compared by their predicted time as well.
"""

from __future__ import annotations

from einc.errors import CapacityError
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.budget import Budget
from einc.physical.build import build
from einc.physical.forecast import predicted_ms
from einc.physical.program import DeviceProgram
from einc.physical.synthesis import Freedom, Report, Synthesizer, quiet


def build_fast(
    plan: LogicalPlan, machine: Machine, *, budget: Budget | None = None, seed: int = 0, report: Report = quiet
) -> DeviceProgram:
    """The device program of least predicted time: of that with the best placements, that with the naive ones, and the
    naive one.

    What an exchange takes is written beside it, with its bounds. Raises what `build` raises.
    """
    budget = budget or Budget()
    budget.begin()
    scheduler = Synthesizer(machine, plan.sites, budget=budget, seed=seed, report=report)
    best: DeviceProgram | None = None
    limit = predicted_ms(build(plan, machine, scheduler.naive), machine)
    for freedom in Freedom:
        scheduler.restart(freedom, len(plan.graph.nodes) + len(plan.graph.outputs))
        try:
            best = build(plan, machine, scheduler)
        except CapacityError:
            if freedom is Freedom.NONE:
                raise
            continue
        if predicted_ms(best, machine) <= limit or freedom is Freedom.NONE:
            break
    budget.end()
    assert best is not None
    return best
