"""The sites of function specifications, and the exchange program that brings what they read: the naive choice.

A scheduler is asked once for every operator and every saved output, in order. The naive one places by the bytes that
have to move, and sends every atom straight from where it is (paper, Section 5.4).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import msgspec

from einc.errors import MachineError
from einc.exchange.language.closure import Firing, order_firings
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Program, list_targets
from einc.exchange.naive import build_naive_body
from einc.exchange.network import Network, Routing
from einc.exchange.simulation.simulator import simulate
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine
from einc.physical.atoms import Inflow
from einc.physical.placement import place_functions
from einc.physical.preamble import Preamble, build_preamble, get_last_name
from einc_runtime.plan.schema import Exchange

OUTPUT = "output {}"
"""The name of the exchange that brings a saved tensor home; that of an operator is the operator's own."""

MAX_KEPT_ATOMS = 200_000
"""Exchanges are forgotten once those that are kept for repetitions have more atoms than this in all."""


@dataclass(frozen=True, slots=True)
class ScheduledExchange:
    """The site of every function specification, and the exchange, with its actions in the order in which they fire.

    `preamble` is that of the exchange's program; both are None where nothing moves.
    """

    sites: tuple[int, ...]
    preamble: Preamble | None = None
    exchange: Exchange | None = None
    firings: tuple[Firing, ...] = ()

    def take(
        self, preamble: Preamble, splits: Mapping[str, int], author: Literal["proposer", "user"], machine: Machine
    ) -> ScheduledExchange:
        """With the program of another preamble in place of this one, written by somebody else; bounds stay."""
        completion = simulate(preamble.program, machine).completion_ms
        record = msgspec.structs.replace(
            self.exchange or Exchange(""),
            program=print_program(preamble.program),
            naive=False,
            completion_ms=completion,
            splits=dict(sorted(splits.items())),
            author=author,
        )
        return replace(self, preamble=preamble, exchange=record, firings=order_firings(preamble.program))


class Scheduler(Protocol):
    """Plans exchanges, one after another."""

    def schedule(
        self, node: str, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
    ) -> ScheduledExchange:
        """Chooses sites for the function specifications of a node, and the exchange that brings its inputs there.

        `busy_ms` has for every site the time that it still needs for earlier work once the node could begin; None
        stands for none. Raises MachineError where sites that must exchange data cannot talk.
        """

    def bring(self, node: str, inflows: Sequence[Inflow], sites: tuple[int, ...]) -> ScheduledExchange:
        """The exchange for function specifications at these sites. Raises MachineError as `schedule` does."""


class NaiveScheduler:
    """Chooses the sites that need the fewest bytes moved, and the naive body. Repeated preambles are planned once."""

    def __init__(self, machine: Machine, sites: int, *, timed: bool = True) -> None:
        """`timed` says whether exchanges are simulated, so that the plan file has their times."""
        self._machine = machine
        self._sites = sites
        self._timed = timed
        self._known: dict[Program, tuple[Exchange, tuple[Firing, ...]]] = {}
        self._known_schedules: dict[Hashable, ScheduledExchange] = {}
        self._kept_atoms = 0
        self._widths = machine.widths
        levels = Network(machine, tuple(range(sites))).levels
        self._in_nodes = any(1 < len(cluster) < sites for level in levels for cluster in level)
        # Between the two sites that are closest to each other.
        self._bytes_per_ms = max(self._widths.values(), default=1.0) * BYTES_PER_MS

    def schedule(
        self, node: str, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
    ) -> ScheduledExchange:
        names = tuple([get_last_name(inflow.name) for inflow in inflows]) if len(inflows) > 1 else ()
        busy = self._convert(inflows, busy_ms)
        key = names, functions, busy, tuple([inflow.describe() for inflow in inflows])
        known = self._known_schedules.get(key)
        if known is None:
            known = self.bring(node, inflows, self._choose_sites(inflows, functions, busy))
            self._kept_atoms += 1 if known.preamble is None else len(known.preamble.atoms)
            if self._kept_atoms > MAX_KEPT_ATOMS:
                self._known_schedules.clear()
                self._kept_atoms = 0
            self._known_schedules[key] = known
        return known

    def bring(self, node: str, inflows: Sequence[Inflow], sites: tuple[int, ...]) -> ScheduledExchange:
        """The exchange for function specifications at these sites. Raises MachineError as `schedule` does."""
        needed = build_preamble(inflows, sites, self._sites)
        if needed is None:
            return ScheduledExchange(sites)
        if needed.program not in self._known:
            self._check_paths(node, needed.program)
            complete = build_naive_body(needed.program, self._machine)
            naive_ms = simulate(complete, self._machine).completion_ms if self._timed else None
            exchange = Exchange(print_program(complete), completion_ms=naive_ms, naive_ms=naive_ms)
            self._known[needed.program] = exchange, order_firings(complete)
        return ScheduledExchange(sites, needed, *self._known[needed.program])

    def place(
        self, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
    ) -> tuple[int, ...]:
        return self._choose_sites(inflows, functions, self._convert(inflows, busy_ms))

    def _choose_sites(self, inflows: Sequence[Inflow], functions: int, busy: Sequence[int] | None) -> tuple[int, ...]:
        return place_functions(inflows, functions, self._sites, busy, self._widths, in_nodes=self._in_nodes)

    def _convert(self, inflows: Sequence[Inflow], busy_ms: Sequence[float] | None) -> tuple[int, ...] | None:
        """Times for which sites are busy as the bytes that could be moved until then."""
        # It is not worth leaving the data for a wait that is shorter than the latency of a transfer.
        accepted = self._machine.transfer_latency_us * MS_PER_US if inflows else 0.0
        if busy_ms is None:
            return None
        return tuple([round(max(0.0, ms - accepted) * self._bytes_per_ms) for ms in busy_ms])

    def _check_paths(self, node: str, program: Program) -> None:
        """Raises MachineError if a site needs something that no site with a copy can send there, over others either."""
        if len(self._machine.routes) == len(self._machine.sites) * (len(self._machine.sites) - 1):
            return
        ways = Routing(self._machine, range(self._sites))
        holders: dict[str, list[int]] = {}
        for holding in program.holdings:
            for name in holding.aggregate:
                holders.setdefault(name, []).extend(holding.sites)
        for requirement in program.requirements:
            for site in list_targets(program, requirement):
                for name in requirement.aggregate:
                    if not any(holder == site or ways.reaches(holder, site) for holder in holders[name]):
                        raise make_route_error(node, self._machine, holders[name][0], site)


def make_route_error(node: str, machine: Machine, source: int, destination: int) -> MachineError:
    """The error for data that no path can carry to where it is needed."""
    return MachineError(
        f"{node} needs data of site {source} at site {destination}, and site {source} cannot reach site {destination}: "
        f"{machine.name} has no link between them, and no other site of the plan can relay",
        hint="add the pair to the machine file, or leave one of the sites out with --devices",
    )
