"""Placements and exchange programs by synthesis, near the least time that the machine allows (paper, Section 5.4).

Function specifications that need the same atoms are a partition declared by its size. The search begins with the naive
schedule, goes on with the best body for its placement, and then tries other placements; each step only if the bounds
leave room for it. Results are kept by canonical form, so that the same exchange in many layers is synthesized once.
"""

from __future__ import annotations

import enum
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from einc.exchange.bounds import bound
from einc.exchange.language.closure import Firing, order_firings
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Action, Program
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import simulate
from einc.exchange.synthesis import Synthesis, SynthesisOptions, synthesize
from einc.machines.model import MS_PER_US, Machine
from einc.physical.atoms import Inflow
from einc.physical.budget import SearchBudget
from einc.physical.pieces import count_max_pieces, split_atoms
from einc.physical.preamble import (
    CanonicalPreamble,
    Preamble,
    build_open_preamble,
    build_preamble,
    canonicalize,
    rename_actions,
)
from einc.physical.schedule import NaiveScheduler, ScheduledExchange
from einc_runtime.plan.schema import Exchange

Report = Callable[[str, float, float], None]
"""Called with what is being done for which operator, the best time so far and the bound (0 if unknown), in ms."""


def ignore_report(step: str, best_ms: float, bound_ms: float) -> None:
    """Ignores the progress."""


class SearchScope(enum.Enum):
    """What the search may change about the naive schedule: placement and body, the body alone, or nothing."""

    PLACEMENT = enum.auto()
    BODY = enum.auto()
    NOTHING = enum.auto()


MAX_BOUND_RATIO = 1.02
"""The search ends with a program that takes at most this many times the bound."""

MIN_PLACEMENT_GAIN = 1.05
"""Another placement is searched for only if it may be faster by this factor, and taken only if it is."""

REACHED_BOUND_RATIO = 1.25
"""A body within this factor of its bound shows that bounds can be reached.

Then only a placement with a lower bound can help.
"""

MAX_SEARCHED_SITES = 10
"""On machines with more sites, placements are chosen by the bytes that move, and no other is searched for."""

WORTH_SEARCHING = 0.01
"""On such machines, a body is searched for only if it may save this part of what the plan takes: a search takes seconds
there, and small exchanges consist of latencies."""

_BOUND_SHARE = 0.25
"""The part of the search time of an exchange that the bound over all placements may take."""

_MAX_BOUNDED_PLACEMENTS = 3
"""The number of placements that this bound may look at one by one."""

ITERATIONS = 40
"""Improvements of one exchange that are tried: those of a whole plan share its limit of time."""
MAX_EXCHANGE_ACTIONS = 500
"""Of one exchange program in a plan: a limit of the time that simulating takes."""


MAX_REPEATED = 64
"""Exchanges that are kept for layers that repeat: those of a layer are fewer, and each may have thousands of atoms."""


Members = tuple[tuple[int, ...], ...]
"""The sites of every partition."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of the search for one canonical preamble; `actions` is None if the naive body is best.

    `packed_ms` is that of the search for a body; infinite where there was none.
    """

    members: Members
    actions: tuple[Action, ...] | None
    splits: tuple[tuple[str, int], ...]
    completion_ms: float
    naive_ms: float
    bound_ms: float | None
    bound_free_ms: float | None
    bound_by: str | None
    packed_ms: float = math.inf

    def exchange(
        self, program: str, completion_ms: float, splits: Mapping[str, int] | None = None, *, naive: bool = False
    ) -> Exchange:
        """The plan's record of an exchange by the program with this text, with the bounds for all programs."""
        bounds = (self.naive_ms, self.bound_ms, self.bound_free_ms, self.bound_by)
        return Exchange(program, naive, completion_ms, *bounds, dict(sorted((splits or {}).items())))


class SynthesizingScheduler:
    """Searches for a faster exchange than the naive one. `naive` makes the naive one, and keeps what it has planned.

    `budget` is the time that the searches may take, and `searches` how many there were. `improved` says whether an
    exchange since the last `restart` is not the naive one. With `placed`, sites are always
    given (`bring`), and nothing is said about other ones.
    """

    def __init__(
        self,
        machine: Machine,
        sites: int,
        naive: NaiveScheduler | None = None,
        *,
        budget: SearchBudget | None = None,
        seed: int = 0,
        report: Report = ignore_report,
        placed: bool = False,
    ) -> None:
        self._machine = machine
        self._sites = sites
        self._placed = placed
        self.budget = budget or SearchBudget()
        self._seed = seed
        self._report = report
        self.searches = 0
        self.improved = False
        self.naive = naive or NaiveScheduler(machine, sites, timed=False)
        # Where all transfers share one resource, such as a memory, only bytes count: no placement or piece is faster.
        self._uniform = len(machine.resources) <= 1
        self._scope = SearchScope.BODY if placed else SearchScope.PLACEMENT
        self._left = 1
        self._least_gain_ms = 0.0
        self._results: dict[tuple[object, ...], SearchResult] = {}
        self._repeated: dict[int, tuple[ScheduledExchange, ScheduledExchange]] = {}  # with the naive
        self._written: dict[tuple[Program, tuple[Action, ...]], tuple[Exchange, tuple[Firing, ...]]] = {}

    @property
    def scopes(self) -> tuple[SearchScope, ...]:
        """What may be searched for, the most first. Where no placement is searched for, only bodies are."""
        return tuple(SearchScope) if self._sites <= MAX_SEARCHED_SITES else (SearchScope.BODY, SearchScope.NOTHING)

    def restart(self, scope: SearchScope, exchanges: int, plan_ms: float = 0.0) -> None:
        """Begins with another plan, or with the same one under another scope.

        It will be asked for `exchanges` exchanges at most. `plan_ms` is what the plan takes with naive ones.
        """
        self._scope = scope
        self._left = exchanges
        self.improved = False
        self._repeated.clear()
        self._least_gain_ms = WORTH_SEARCHING * plan_ms if self._sites > MAX_SEARCHED_SITES else 0.0

    def schedule(
        self, node: str, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
    ) -> ScheduledExchange:
        self._left -= 1
        naive = self.naive.schedule(node, inflows, functions, busy_ms)
        if id(naive) not in self._repeated:  # one object for all layers that ask for it alike
            self._repeated[id(naive)] = naive, self._improve(node, inflows, naive, self._scope)
            if len(self._repeated) > MAX_REPEATED:
                del self._repeated[next(iter(self._repeated))]
        return self._repeated[id(naive)][1]

    def bring(self, node: str, inflows: Sequence[Inflow], sites: tuple[int, ...]) -> ScheduledExchange:
        """The fastest exchange found for function specifications at these sites. Raises MachineError as `schedule`."""
        self._left -= 1
        scope = SearchScope.BODY if self._scope is SearchScope.PLACEMENT else self._scope
        return self._improve(node, inflows, self.naive.bring(node, inflows, sites), scope)

    def _improve(
        self, node: str, inflows: Sequence[Inflow], naive: ScheduledExchange, scope: SearchScope
    ) -> ScheduledExchange:
        opened = build_open_preamble(inflows, len(naive.sites), self._sites)
        if naive.exchange is None or opened is None:
            return naive
        form = canonicalize(opened.program, count_max_pieces(inflows, opened))
        members = tuple(tuple(sorted(naive.sites[f] for f in group)) for group in opened.groups)
        result = self._search(node, form, members, scope)
        if result.actions is not None:
            placement = naive.sites if result.members == members else _assign_placement(opened.groups, result.members)
            scheduled = self._complete(inflows, opened, form, placement, result)
            if scheduled is not None:
                self.improved = True
                return scheduled
        return replace(naive, exchange=result.exchange(naive.exchange.program, result.naive_ms, naive=True))

    def _complete(
        self,
        inflows: Sequence[Inflow],
        opened: Preamble,
        form: CanonicalPreamble,
        placement: tuple[int, ...],
        result: SearchResult,
    ) -> ScheduledExchange | None:
        """The found body, with the names of the preamble for that placement; None if it is slower with true sizes."""
        closed = build_preamble(inflows, placement, self._sites)
        if closed is None or result.actions is None:
            return ScheduledExchange(placement)
        names = _map_names(opened, closed, form)
        splits = {names[atom]: pieces for atom, pieces in result.splits if atom in names}
        cut = split_atoms(inflows, closed, splits)
        key = cut.program, result.actions
        if key not in self._written:
            program = replace(cut.program, actions=rename_actions(result.actions, names.__getitem__))
            completion = simulate(program, self._machine).completion_ms
            exchange = result.exchange(print_program(program), completion, splits)
            self._written[key] = exchange, order_firings(program)
        exchange, firings = self._written[key]
        assert exchange.completion_ms is not None
        return (
            ScheduledExchange(placement, cut, exchange, firings) if exchange.completion_ms <= result.naive_ms else None
        )

    def _search(self, node: str, form: CanonicalPreamble, members: Members, scope: SearchScope) -> SearchResult:
        """The fastest of the naive schedule, the best body for its placement, and the best for any placement."""
        best = self._once(SearchScope.NOTHING, form, members, lambda: self._find_bounds(node, form, members))
        if scope is not SearchScope.NOTHING:
            best = self._once(SearchScope.BODY, form, members, lambda: self._search_body(node, form, members, best))
        if scope is SearchScope.PLACEMENT:
            best = self._once(SearchScope.PLACEMENT, form, members, lambda: self._search_placement(node, form, best))
        return best

    def _once(
        self, scope: SearchScope, form: CanonicalPreamble, members: Members, search: Callable[[], SearchResult]
    ) -> SearchResult:
        key = scope, form.program, form.max_pieces, members
        if key not in self._results:
            self._results[key] = search()
        return self._results[key]

    def _find_bounds(self, node: str, form: CanonicalPreamble, members: Members) -> SearchResult:
        """The naive body with the naive placement, and the bounds."""
        closed = set_members(form.program, members)
        naive_ms = simulate(build_naive_body(closed, self._machine), self._machine).completion_ms
        result = SearchResult(members, None, (), naive_ms, naive_ms, None, None, None)
        if self.budget.left:
            self._report(f"bounding the exchange for {node}", naive_ms, 0.0)
            with self.budget.catch_interrupt():
                certificate = bound(closed, self._machine, thorough=not self._uniform, enough_ms=naive_ms)
                result = replace(result, bound_ms=certificate.bound_ms, bound_by=certificate.bound_by)
                if self._sites <= MAX_SEARCHED_SITES and not self._uniform and not self._placed:
                    ends = time.monotonic() + _BOUND_SHARE * self.budget.share(self._left + 1)
                    tried = itertools.count()

                    def stop() -> bool:
                        return next(tried) >= _MAX_BOUNDED_PLACEMENTS or time.monotonic() >= ends

                    free = bound(form.program, self._machine, stop=stop, enough_ms=certificate.bound_ms)
                    result = replace(result, bound_free_ms=min(free.bound_ms, certificate.bound_ms))
        return result

    def _search_body(self, node: str, form: CanonicalPreamble, members: Members, best: SearchResult) -> SearchResult:
        if best.bound_ms is None:
            return best
        least_ms = self._practical_bound(form, best.bound_ms)
        if best.completion_ms <= max(MAX_BOUND_RATIO * least_ms, least_ms + self._least_gain_ms):
            return best
        synthesis = self._synthesize(node, set_members(form.program, members), form, best.bound_ms)
        if synthesis is not None and synthesis.packed_ms is not None:
            best = replace(best, packed_ms=synthesis.packed_ms)
        return self._choose_faster(best, synthesis)

    def _search_placement(self, node: str, form: CanonicalPreamble, best: SearchResult) -> SearchResult:
        if self._uniform or best.bound_free_ms is None or best.bound_ms is None:
            return best
        if best.completion_ms <= MIN_PLACEMENT_GAIN * self._practical_bound(form, best.bound_free_ms):
            return best
        if (
            best.bound_ms <= MIN_PLACEMENT_GAIN * best.bound_free_ms
            and best.completion_ms <= REACHED_BOUND_RATIO * best.bound_ms
        ):
            return best
        max_packed_ms = best.packed_ms / MIN_PLACEMENT_GAIN
        min_packed_ms = best.bound_free_ms - self._machine.transfer_latency_us * MS_PER_US
        if min_packed_ms >= max_packed_ms:
            return best
        synthesis = self._synthesize(node, form.program, form, best.bound_free_ms, max_packed_ms, min_packed_ms)
        return self._choose_faster(best, synthesis, MIN_PLACEMENT_GAIN)

    def _practical_bound(self, form: CanonicalPreamble, bound_ms: float) -> float:
        """The bound plus the latency of evenly spread aggregations. A search can hardly find anything faster."""
        if not bound_ms:
            return 0.0
        held = {holding.aggregate for holding in form.program.holdings}
        combined = sum(requirement.aggregate not in held for requirement in form.program.requirements)
        kernels = -(-combined // self._sites)
        return bound_ms + kernels * self._machine.kernel_latency_us / 1e3

    def _synthesize(
        self,
        node: str,
        program: Program,
        form: CanonicalPreamble,
        bound_ms: float,
        max_packed_ms: float = math.inf,
        min_packed_ms: float = 0.0,
    ) -> Synthesis | None:
        seconds = self.budget.share(self._left + 1)
        synthesis: Synthesis | None = None
        if seconds:
            self.searches += 1
            with self.budget.catch_interrupt():
                options = SynthesisOptions(
                    iterations=0 if self._uniform else ITERATIONS,
                    max_actions=MAX_EXCHANGE_ACTIONS,
                    time_limit=None if seconds == math.inf else seconds,
                    seed=self._seed,
                    max_pieces={atom: 1 if self._uniform else pieces for atom, pieces in form.max_pieces},
                    enough=MAX_BOUND_RATIO * self._practical_bound(form, bound_ms) / bound_ms
                    if bound_ms
                    else MAX_BOUND_RATIO,
                    max_packed_ms=max_packed_ms,
                    min_packed_ms=min_packed_ms,
                )
                synthesis = synthesize(
                    program,
                    self._machine,
                    options,
                    progress=lambda step, ms: self._report(f"the exchange for {node}: {step}", ms, bound_ms),
                )
        if synthesis is not None and synthesis.interrupted:
            self.budget.interrupted = True
        return synthesis

    def _choose_faster(self, best: SearchResult, synthesis: Synthesis | None, factor: float = 1.0) -> SearchResult:
        """The faster of the two; `synthesis` must be faster by the factor."""
        if synthesis is None or not synthesis.completion_ms * factor < best.completion_ms:
            return best
        return replace(
            best,
            members=tuple(partition.members or () for partition in synthesis.program.partitions),
            actions=synthesis.program.actions,
            splits=tuple(sorted(synthesis.splits.items())),
            completion_ms=synthesis.completion_ms,
            bound_ms=synthesis.bound.bound_ms,
            bound_by=synthesis.bound.bound_by,
        )


def set_members(program: Program, members: Members) -> Program:
    """The preamble with these members of its partitions."""
    partitions = zip(program.partitions, members, strict=True)
    return replace(program, partitions=tuple(replace(partition, members=sites) for partition, sites in partitions))


def _assign_placement(groups: Sequence[Sequence[int]], members: Members) -> tuple[int, ...]:
    """A site for every function specification: the site of its own number if it can be, else in ascending order."""
    sites: dict[int, int] = {}
    for group, sites_of_group in zip(groups, members, strict=True):
        sites.update((f, f) for f in group if f in sites_of_group)
        left = sorted(set(sites_of_group) - set(group))
        sites.update(zip((f for f in group if f not in sites_of_group), left, strict=True))
    return tuple(sites[f] for f in range(len(sites)))


def _map_names(opened: Preamble, closed: Preamble, form: CanonicalPreamble) -> dict[str, str]:
    """The names that the atoms of the canonical form have in the preamble for a placement, which lists fewer atoms."""
    moving = {(atom.inflow, atom.cell): atom for atom in closed.atoms.values()}
    names = {}
    for new, old in form.names:
        atom = opened.atoms[old]
        same = moving.get((atom.inflow, atom.cell))
        if same is not None:
            names[new] = same.copies[atom.copies.index(old)]
    return names
