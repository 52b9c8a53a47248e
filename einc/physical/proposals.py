"""Exchanges of a plan as questions to proposers (paper, Sections 5.4 and 6: the mode `ai`).

Every exchange is offered once, in the names of the first operator that has it: equal ones, as in the layers of a model,
are found by their canonical form and take the same program. A proposal is untrusted: it is checked, and timed with the
true sizes of its pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc.exchange.language.program import Action, Program
from einc.exchange.language.resolve import read_program
from einc.exchange.simulation.simulator import simulate
from einc.exchange.synthesis.placement import EQUAL
from einc.exchange.synthesis.proposers import Consultation, Proposer
from einc.machines.model import Machine
from einc.physical.atoms import Inflow
from einc.physical.budget import SearchBudget
from einc.physical.pieces import count_max_pieces, cut_as_asked, use_actions
from einc.physical.preamble import CanonicalPreamble, Preamble, build_preamble, canonicalize, rename_actions
from einc.physical.schedule import ScheduledExchange
from einc.physical.synthesis import Report, ignore_report
from einc_runtime.plan.schema import Exchange

MAX_FAILURES = 2
"""A proposer that failed so many times in a row is not asked again."""


@dataclass(frozen=True, slots=True)
class FoundProposal:
    """The fastest proposal for a canonical preamble: its body and its splits, in the canonical names."""

    actions: tuple[Action, ...]
    splits: tuple[tuple[str, int], ...]


class ProposedExchanges:
    """What proposers say about the exchanges of one plan. `lines` gets a line on every proposal."""

    def __init__(
        self,
        machine: Machine,
        proposers: Sequence[Proposer],
        budget: SearchBudget,
        lines: list[str],
        report: Report = ignore_report,
    ) -> None:
        self.lines = lines
        self._machine = machine
        self._proposers = tuple(proposers)
        self._failures = [0] * len(self._proposers)
        self._budget = budget
        self._report = report
        self._known: dict[tuple[object, ...], FoundProposal | None] = {}
        self._left = 1
        self._out_of_time = False

    def restart(self, exchanges: int) -> None:
        """Begins with a plan of at most so many exchanges, which share the time that is left."""
        self._left = exchanges

    def improve(self, name: str, inflows: Sequence[Inflow], scheduled: ScheduledExchange) -> ScheduledExchange:
        """The exchange with the fastest proposal for its placement, if one is faster than what was scheduled."""
        self._left -= 1
        exchange = scheduled.exchange
        if exchange is None or exchange.completion_ms is None:
            return scheduled
        if exchange.bound_ms is not None and exchange.completion_ms <= EQUAL * exchange.bound_ms:  # none is faster
            return scheduled
        preamble = build_preamble(inflows, scheduled.sites, len(self._machine.sites))
        assert preamble is not None, "something moves"
        form = canonicalize(preamble.program, count_max_pieces(inflows, preamble))
        key = form.program, form.max_pieces
        if key not in self._known:
            self._known[key] = self._ask(name, inflows, preamble, form, exchange)
        proposal = self._known[key]
        return scheduled if proposal is None else self._use(inflows, preamble, form, proposal, scheduled)

    def _ask(
        self, name: str, inflows: Sequence[Inflow], preamble: Preamble, form: CanonicalPreamble, exchange: Exchange
    ) -> FoundProposal | None:
        """Asks all proposers about an exchange; the fastest valid proposal that is faster than the present program."""
        assert exchange.completion_ms is not None
        best, best_ms = read_program(exchange.program, name, self._machine), exchange.completion_ms
        bound_ms, proposal = exchange.bound_ms or 0.0, None
        canonical = {old: new for new, old in form.names}

        def show_best() -> tuple[Program, float]:
            return best, best_ms

        def offer(program: Program, splits: Mapping[str, int]) -> float:
            nonlocal best, best_ms, proposal
            used = use_actions(cut_as_asked(inflows, preamble, splits), program.actions)
            taken = simulate(used.program, self._machine).completion_ms
            if taken < best_ms:
                best, best_ms = used.program, taken
                pieces = tuple(sorted((canonical[atom], count) for atom, count in splits.items()))
                proposal = FoundProposal(rename_actions(program.actions, canonical.__getitem__), pieces)
            return taken

        def say(line: str) -> None:
            self._report(f"the exchange for {name}: {line}", best_ms, bound_ms)

        seconds = self._budget.share((self._left + 1) * len(self._proposers))
        if not seconds:
            if not self._out_of_time:
                self.lines.append(f"{name}: no time is left to ask about it, and about the exchanges after it")
            self._out_of_time = True
            return None
        consultation = Consultation(preamble.program, self._machine, show_best, offer, lambda: seconds, say)
        with self._budget.catch_interrupt():
            for number, proposer in enumerate(self._proposers, 1):
                if self._failures[number - 1] < MAX_FAILURES and not self._budget.interrupted:
                    say(f"asking proposer {number}")
                    succeeded = consultation.ask(number, proposer)
                    self._failures[number - 1] = 0 if succeeded else self._failures[number - 1] + 1
                    if self._failures[number - 1] == MAX_FAILURES:
                        consultation.lines.append(f"proposer {number}: it failed again, and is not asked any more")
        self.lines += [f"{name}: {line}" for line in consultation.lines]
        return proposal

    def _use(
        self,
        inflows: Sequence[Inflow],
        preamble: Preamble,
        form: CanonicalPreamble,
        proposal: FoundProposal,
        scheduled: ScheduledExchange,
    ) -> ScheduledExchange:
        names = dict(form.names)
        splits = {names[atom]: count for atom, count in proposal.splits}
        actions = rename_actions(proposal.actions, names.__getitem__)
        used = use_actions(cut_as_asked(inflows, preamble, splits), actions)
        return scheduled.take(used, splits, "proposer", self._machine)
