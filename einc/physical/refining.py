"""A scheduler whose exchanges other programs may replace: those that a person gives, and proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from einc.errors import CapacityError
from einc.machines.model import Machine
from einc.physical.atoms import Inflow
from einc.physical.build import build
from einc.physical.given import GivenExchanges
from einc.physical.program import DeviceProgram
from einc.physical.proposals import ProposedExchanges
from einc.physical.schedule import ScheduledExchange, Scheduler


@dataclass(frozen=True, slots=True)
class OtherPrograms:
    """What may stand in place of scheduled exchanges."""

    given_exchanges: GivenExchanges | None = None
    proposed: ProposedExchanges | None = None


class RefiningScheduler:
    """Takes what another scheduler makes, unless a program is given for the exchange or a proposal is faster."""

    def __init__(self, scheduler: Scheduler, programs: OtherPrograms) -> None:
        self._scheduler = scheduler
        self._programs = programs

    def schedule(
        self, node: str, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
    ) -> ScheduledExchange:
        return self._refine(node, inflows, self._scheduler.schedule(node, inflows, functions, busy_ms))

    def bring(self, node: str, inflows: Sequence[Inflow], sites: tuple[int, ...]) -> ScheduledExchange:
        return self._refine(node, inflows, self._scheduler.bring(node, inflows, sites))

    def _refine(self, node: str, inflows: Sequence[Inflow], scheduled: ScheduledExchange) -> ScheduledExchange:
        given_exchanges = self._programs.given_exchanges
        tree = None if given_exchanges is None else given_exchanges.find(node, scheduled)
        if given_exchanges is not None and tree is not None:
            return given_exchanges.use(node, tree, inflows, scheduled)
        if self._programs.proposed is not None:
            return self._programs.proposed.improve(node, inflows, scheduled)
        return scheduled


def refine(
    program: DeviceProgram, machine: Machine, scheduler: Scheduler, user_programs: OtherPrograms
) -> DeviceProgram:
    """The program with the exchanges that a person gives, and with proposals where the whole is faster with them.

    `scheduler` must make the program again. Raises what `build` raises, and ProgramError for given exchanges that are
    not valid.
    """
    plan = program.plan
    given_exchanges, proposed = user_programs.given_exchanges, user_programs.proposed
    if given_exchanges is not None:
        given_scheduler = RefiningScheduler(scheduler, OtherPrograms(given_exchanges))
        program = build(plan, machine, given_scheduler, unfolded=True)
        given_exchanges.require_used()
    if proposed is not None:
        proposed.restart(len(plan.graph.nodes) + len(plan.graph.outputs))
        try:
            faster = build(plan, machine, RefiningScheduler(scheduler, user_programs), unfolded=True)
        except CapacityError as error:
            proposed.lines.append(f"the proposals are not used, as the plan with them does not fit: {error.message}")
            return program
        if faster.predicted_ms < program.predicted_ms:
            return faster
        if _count_proposed(faster):
            proposed.lines.append(
                f"the proposals are not used: the plan takes {faster.predicted_ms:.4g} ms with them and"
                f" {program.predicted_ms:.4g} ms without"
            )
    return program


def _count_proposed(program: DeviceProgram) -> int:
    """The number of exchanges whose program is from a proposer."""
    operators = (operation.exchange for operation in program.operations)
    outputs = (output.exchange for output in program.outputs)
    return sum(exchange is not None and exchange.author == "proposer" for exchange in chain(operators, outputs))
