"""The physical optimizer: from a logical plan and a machine to a device program (paper, Section 5).

Operators are visited in topological order. A scheduler places each on sites and plans its inputs' exchange, which is
lowered to tasks, and its kernels follow. A saved output is brought home right after the last operator that uses it.

A search looks at many plans that begin with the same operators: only what comes after these is placed again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile

from einc.errors import CapacityError, MachineError
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.few_layers import FewLayers, LayersDiffer
from einc.physical.homes import StateHomes
from einc.physical.passes import finish
from einc.physical.placer import Placer, PlanRecords, has_choice
from einc.physical.program import DeviceProgram
from einc.physical.schedule import NaiveScheduler, Scheduler
from einc.physical.synthesis import SearchScope, SynthesizingScheduler
from einc_runtime.plan.schema import Operation


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
) -> DeviceProgram:
    """The fastest of three device programs by predicted time, with synthesized exchanges.

    The first may choose all placements, the second keeps the naive ones, the third is the naive program. A placement
    that is good for one exchange may be bad for the next, and the order in which an exchange moves its pieces may keep
    kernels waiting; so whole programs are compared. Times and bounds of every exchange are recorded, unless the
    scheduler's time is over. What the scheduler has found for earlier plans is used again. When too little time is left
    to build another program, the naive one is taken without times of its exchanges. `naive_ms` is what the naive
    program takes, where that is known. Raises what `build` raises.
    """
    scheduler = scheduler or SynthesizingScheduler(machine, plan.used_sites)
    return _build_few(plan, machine, lambda built, few: _build_fastest(built, machine, scheduler, naive_ms, few))


def _build_fastest(
    plan: LogicalPlan,
    machine: Machine,
    scheduler: SynthesizingScheduler,
    naive_ms: float | None,
    few: FewLayers | None,
) -> DeviceProgram:
    records = PlanRecords.of(plan)

    def build_naive() -> DeviceProgram:
        return finish(_place(plan, machine, scheduler.naive, records).collect(few), check_memory=False)

    best: DeviceProgram | None = None
    naive: DeviceProgram | None = None
    took = 0.0
    if naive_ms is None or scheduler.budget.limited:
        started = time.monotonic()
        naive = build_naive()
        took, naive_ms = time.monotonic() - started, naive.predicted_ms
    for scope in scheduler.scopes:
        if scheduler.budget.left <= 2 * took:
            naive = naive or build_naive()
            if fits(naive, machine):
                return naive
        scheduler.restart(scope, len(plan.graph.nodes) + len(plan.graph.outputs), naive_ms)
        placed = _place(plan, machine, scheduler, records).collect(few)
        try:
            best = finish(placed, known_ms=None if scheduler.improved else naive_ms)
        except CapacityError:
            if scope is SearchScope.NOTHING:
                raise
            continue
        if not scheduler.improved or best.predicted_ms <= naive_ms or scope is SearchScope.NOTHING:
            break
    assert best is not None
    return best


def fits(program: DeviceProgram, machine: Machine) -> bool:
    """Whether every site has enough memory."""
    return all(need <= site.memory_bytes for need, site in zip(program.memory, machine.sites, strict=False))


MAX_KEPT_BEGINNINGS = 4
"""Plans whose beginnings are kept: the one that is being improved, and the last of those that differ from it."""
MAX_KEPT_PLACERS = 64
"""Placers that are kept of a plan. Each has what exists of all tensors so far, so that as many as there are operators
would take a time and memory that grow with their square; of a plan that differs, at most a 64th is placed again."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The operations of a plan, what else decides where they are placed, and its placers after each few of them
    (`_find_step`), which are not changed any more."""

    operations: tuple[Operation, ...]
    conditions: Hashable
    placers: tuple[Placer, ...]

    def count_shared(self, operations: Sequence[Operation], conditions: Hashable) -> int:
        """How many placers of another plan would be those of this one, from the first on."""
        if conditions != self.conditions:
            return 0
        pairs = zip(self.operations, operations, strict=True)
        return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs)) // _find_step(operations)


def _find_step(operations: Sequence[Operation]) -> int:
    """After how many operators a placer is kept, and after as many again."""
    return math.ceil(len(operations) / MAX_KEPT_PLACERS)


class PlacedBeginnings:
    """What plans that were built lately had placed after each operator, so that only what differs is placed again.

    They are plans of one graph, with its operators in any order, on one machine with one scheduler, and their records
    are by one recorder: equal operations are one object.
    """

    def __init__(self) -> None:
        self._kept: list[_Beginning] = []  # the one that was of use last stands at the end

    def place(self, plan: LogicalPlan, machine: Machine, scheduler: Scheduler, records: PlanRecords) -> Placer:
        """The placer that has placed all operators. Raises MachineError where sites cannot talk."""
        operations = records.operations
        conditions = has_choice(plan, records), StateHomes(operations).key
        shared, position = max(
            ((beginning.count_shared(operations, conditions), b) for b, beginning in enumerate(self._kept)),
            default=(0, 0),
        )
        placers: list[Placer] = []
        step = _find_step(operations)
        if shared:
            beginning = self._kept.pop(position)
            self._kept.append(beginning)
            placers += beginning.placers[:shared]
            placer = placers[-1].fork(plan, records, shared * step)
        else:
            placer = Placer(plan, machine, scheduler, records)
        for number in range(shared * step, len(operations)):
            placer.place(number)
            if (number + 1) % step == 0:
                placers.append(placer.fork(plan, records, number + 1))
        self._kept.append(_Beginning(operations, conditions, tuple(placers)))
        del self._kept[:-MAX_KEPT_BEGINNINGS]
        return placer
