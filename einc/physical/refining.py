"""A scheduler whose exchanges other programs may replace: those that a person gives, and proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc.physical.atoms import Inflow
from einc.physical.given import GivenExchanges
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
