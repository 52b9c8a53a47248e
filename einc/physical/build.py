"""The physical optimizer: from a logical plan and a machine to a device program (paper, Section 5).

Operators are visited in topological order. A scheduler places each on sites and plans its inputs' exchange, which is
lowered to tasks, and its kernels follow. A saved output is brought home right after the last operator that uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from einc.errors import CapacityError, MachineError
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.beginnings import PlacedBeginnings
from einc.physical.few_layers import FewLayers, LayersDiffer
from einc.physical.passes import finish
from einc.physical.placer import Placer, PlanRecords
from einc.physical.program import DeviceProgram
from einc.physical.schedule import NaiveScheduler, Scheduler
from einc.physical.synthesis import SearchScope, SynthesizingScheduler


def build(
    plan: LogicalPlan,
    machine: Machine,
    scheduler: Scheduler | None = None,
    records: PlanRecords | None = None,
    *,
    check_memory: bool = True,
    beginnings: PlacedBeginnings | None = None,
    unfolded: bool = False,
) -> DeviceProgram:
    """The device program that runs `plan` on sites 0, 1, ... of `machine`, with naive exchanges by default.

    `records` are those of the plan, for callers that build several programs of it, and `beginnings` what plans like it
    had placed. Of many equal layers, a few are built, unless they are asked for `unfolded`. Raises MachineError where
    sites that must exchange data cannot talk, or where there are too few of them, and CapacityError where a site's
    memory is too small, unless `check_memory` is false.
    """
    scheduler = scheduler or NaiveScheduler(machine, plan.used_sites)

    def build_program(built: LogicalPlan, few: FewLayers | None) -> DeviceProgram:
        of_plan = records if few is None and records is not None else PlanRecords.of(built)
        return finish(_place(built, machine, scheduler, of_plan, beginnings).collect(few), check_memory=check_memory)

    return build_program(plan, None) if unfolded or beginnings is not None else _build_few(plan, machine, build_program)


def _build_few(
    plan: LogicalPlan, machine: Machine, build_program: Callable[[LogicalPlan, FewLayers | None], DeviceProgram]
) -> DeviceProgram:
    """The program of a plan, built with a few of its layers where one of them can stand for the others."""
    few = FewLayers.of(plan, machine)
    if few is not None:
        with suppress(LayersDiffer):
            return replace(build_program(few.plan, few), plan=plan)
    return build_program(plan, None)


def _place(
    plan: LogicalPlan,
    machine: Machine,
    scheduler: Scheduler,
    records: PlanRecords,
    beginnings: PlacedBeginnings | None = None,
) -> Placer:
    """All operators at their places."""
    if len(machine.sites) < plan.sites:
        raise MachineError(f"the plan is for {plan.sites} sites, and machine {machine.name} has {len(machine.sites)}")
    if beginnings is not None:
        return beginnings.place(plan, machine, scheduler, records)
    placer = Placer(plan, machine, scheduler, records)
    nodes = ((number, None) for number in range(len(plan.graph.nodes)))
    for number, part in nodes if plan.division is None else plan.division.list_steps():
        placer.place(number, part)
    return placer


def build_fast(
    plan: LogicalPlan,
    machine: Machine,
    scheduler: SynthesizingScheduler | None = None,
    naive_ms: float | None = None,
    promised_ms: float | None = None,
) -> DeviceProgram:
    """The fastest of three device programs by predicted time, with synthesized exchanges.

    The first may choose all placements, the second keeps the naive ones, the third is the naive program. A placement
    that is good for one exchange may be bad for the next, and the order in which an exchange moves its pieces may keep
    kernels waiting; so whole programs are compared. Times and bounds of every exchange are recorded, unless the
    scheduler's time is over. What the scheduler has found for earlier plans is used again. When too little time is left
    to build another program, the naive one is taken without times of its exchanges. `naive_ms` is what the naive
    program takes, where that is known. A program that takes `promised_ms` at most is not compared with the naive one:
    its caller knows that this takes longer. Raises what `build` raises.
    """
    scheduler = scheduler or SynthesizingScheduler(machine, plan.used_sites)
    return _build_few(
        plan, machine, lambda built, few: _build_fastest(built, machine, scheduler, naive_ms, promised_ms, few)
    )


def _build_fastest(
    plan: LogicalPlan,
    machine: Machine,
    scheduler: SynthesizingScheduler,
    naive_ms: float | None,
    promised_ms: float | None,
    few: FewLayers | None,
) -> DeviceProgram:
    records = PlanRecords.of(plan)

    def build_naive() -> DeviceProgram:
        return finish(_place(plan, machine, scheduler.naive, records).collect(few), check_memory=False)

    best: DeviceProgram | None = None
    naive: DeviceProgram | None = None
    took = 0.0
    if (naive_ms is None and promised_ms is None) or scheduler.budget.limited:
        started = time.monotonic()
        naive = build_naive()
        took, naive_ms = time.monotonic() - started, naive.predicted_ms
    for scope in scheduler.scopes:
        if scheduler.budget.left <= 2 * took:
            naive = naive or build_naive()
            if fits(naive, machine):
                return naive
        expected_ms = promised_ms if naive_ms is None else naive_ms
        scheduler.restart(scope, len(plan.graph.nodes) + len(plan.graph.outputs), expected_ms or 0.0)
        placed = _place(plan, machine, scheduler, records).collect(few)
        try:
            best = finish(placed, known_ms=None if scheduler.improved else naive_ms)
        except CapacityError:
            if scope is SearchScope.NOTHING:
                raise
            continue
        if not scheduler.improved or (promised_ms is not None and best.predicted_ms <= promised_ms):
            break
        if naive_ms is None:
            naive_ms = build_naive().predicted_ms
        if best.predicted_ms <= naive_ms or scope is SearchScope.NOTHING:
            break
    assert best is not None
    return best


def fits(program: DeviceProgram, machine: Machine) -> bool:
    """Whether every site has enough memory."""
    return all(need <= site.memory_bytes for need, site in zip(program.memory, machine.sites, strict=False))
