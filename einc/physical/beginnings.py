"""What plans that begin with the same operators have placed of them.

A search looks at many such plans: only what comes after is placed again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.homes import StateHomes
from einc.physical.placer import Placer, PlanRecords, has_choice
from einc.physical.schedule import Scheduler
from einc_runtime.plan.schema import Operation

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
