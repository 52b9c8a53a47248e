"""Synthesis: from a preamble to a valid body, with the splits of its atoms and the members of its open partitions.

Memberships and routes come from a linear program that balances the resources (`placement.py`, `allocation.py`), pieces
and their order from rounding and list scheduling (`rounding.py`, `scheduling.py`). Every candidate is run
by the simulator, whose time counts. The naive body is the first candidate, so that nothing slower is ever
returned (paper, Section 5.4).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einc.errors import ProgramError
from einc.exchange.bounds import Certificate, bound
from einc.exchange.language.checker import check
from einc.exchange.language.program import Action, Program
from einc.exchange.memberships import close_partitions, is_open
from einc.exchange.naive import build_naive_body
from einc.exchange.network import Network, build_network
from einc.exchange.simulation.simulator import BodyEvaluator, simulate
from einc.exchange.synthesis.allocation import RouteAmounts
from einc.exchange.synthesis.demands import MAX_TERMINALS, Demand
from einc.exchange.synthesis.placement import choose_fewest_bytes, place
from einc.exchange.synthesis.rewrites import MAX_REWRITTEN, improve_by_rewrites
from einc.exchange.synthesis.rounding import RouteChooser, choose_piece_counts
from einc.exchange.synthesis.scheduling import (
    ExchangeTasks,
    TaskSchedule,
    build_first_schedule,
    build_tasks,
    improve_schedule,
    write_ordered_actions,
    write_unordered_actions,
)
from einc.exchange.synthesis.splitting import can_split, find_atom_families, split_atoms
from einc.exchange.synthesis.switching import MAX_SIMULATED_ACTIONS, build_switched_bodies
from einc.machines.model import Machine

if TYPE_CHECKING:
    from einc.exchange.synthesis.proposers import Proposer

MAX_SEARCHED_ACTIONS = 2000
"""By default, on machines of up to eleven sites; more on larger ones, as their squares."""

MAX_ACTIONS_OF_MANY = 16_000
"""By default, on machines of any size."""

MAX_ATOM_PIECES = 512
"""Pieces that an atom may be cut into."""

_GRAINS = (30, 125, 250, 500, 1000, 2000, 4000, 8000)
"""Numbers of actions that are tried, as far as they are allowed."""

MAX_RESOURCE_RATIO = 1.004
"""The search ends, by default, with a body that takes at most this many times the time of the fullest resource."""

_MIN_PIECES_GAIN = 1.005
"""Finer pieces must be faster by this factor for still finer ones to be tried."""

_MAX_FRUITLESS = 2
"""The search for finer pieces ends when this many in a row were not worthwhile."""

_PATIENCE_OF_MANY = 4
"""The same on large machines: small shares of the bytes take other ways there, for which there must be many pieces."""

_WORTH_LENGTH = 0.002
"""A program with many more actions must be faster by this part to be taken."""

_TASKS_PER_ITERATION = 200
"""An iteration is meant for a body of this many tasks; a larger body gets fewer iterations."""

_OVERLAPS = (1, 2, 3)
"""How many transfers may share a resource at a time, where transfers have latencies."""

_TIMED_UP_TO = 1.5
"""The timing of a candidate stops at this many times the best time."""

_MIN_GRAINS = 2
"""This many grains are tried even if no time is left, unless there are more than MAX_EARLY_DEMANDS demands."""

MAX_EARLY_DEMANDS = 500
"""Demands up to which the first grains take so little time that they are always tried."""

_ACTIONS_PER_ITERATION = 10
"""An iteration of rewriting is meant for a body of this many actions; a larger body gets fewer iterations."""

Progress = Callable[[str, float], None]
"""Called with what is being done, and the best time so far in ms."""


@dataclass(frozen=True, slots=True)
class SynthesisOptions:
    """How long and how finely `synthesize` searches.

    `iterations` are random changes that are tried on the best order found, fewer on large bodies. `time_limit` is in
    seconds. `max_actions` None allows more on larger machines. `max_pieces` limits the pieces of single atoms; those of
    one aggregate count by the first of them. The search ends with a program that takes at most `enough` times the
    bound. It gives up where the routes found keep the fullest resource busy for more than `max_packed_ms`; the caller
    knows that no placement keeps it busy for less than `min_packed_ms`. With `switches`, those of the machine may copy
    and add.
    """

    iterations: int = 200
    max_actions: int | None = None
    time_limit: float | None = None
    seed: int = 0
    max_pieces: Mapping[str, int] = field(default_factory=dict)
    enough: float = MAX_RESOURCE_RATIO
    max_packed_ms: float = math.inf
    min_packed_ms: float = 0.0
    switches: bool = False


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A valid program with explicit memberships and what it takes; `splits` has the atoms that are cut.

    `naive_ms` is what the naive body takes; where memberships are open, with those that move the fewest bytes. No
    program with these memberships takes less than its `bound`. `interrupted` says that KeyboardInterrupt ended the
    search, and `proposals` has a line on the outcome of every proposal. `packed_ms` is the time of the fullest resource
    if bytes are divided among routes as well as possible; finer pieces come closer to it. It is None if nothing was
    divided.
    """

    program: Program
    splits: Mapping[str, int]
    completion_ms: float
    naive_ms: float
    bound: Certificate
    interrupted: bool = False
    proposals: tuple[str, ...] = ()
    packed_ms: float | None = None


_DEFAULT_OPTIONS = SynthesisOptions()


def synthesize(
    preamble: Program,
    machine: Machine,
    options: SynthesisOptions = _DEFAULT_OPTIONS,
    *,
    candidates: Sequence[Program] = (),
    proposers: Sequence[Proposer] = (),
    progress: Progress | None = None,
) -> Synthesis:
    """The best program found for a preamble, whose partitions may be open; a body that it has is a candidate too, and
    so are `candidates`, programs for it with explicit memberships.

    The same preamble, machine and options give the same program unless the time limit ends the search. An interrupt
    (KeyboardInterrupt) ends it too once there is a first program. `proposers` are asked for candidates first. Raises
    ProgramError for a preamble that cannot be met.
    """
    search = _SynthesisSearch(preamble, machine, options, progress)
    try:
        search.begin(candidates, proposers)
        search.run()
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return dataclasses.replace(search.build_result(), interrupted=True)
    return search.build_result()


def synthesize_naive(preamble: Program, machine: Machine) -> Synthesis:
    """The naive body without any search. Raises ProgramError for a preamble that cannot be met."""
    program = _build_placed_naive_body(preamble, machine)
    completion = simulate(program, machine).completion_ms
    certificate = bound(dataclasses.replace(program, actions=()), machine)
    return Synthesis(program, {}, completion, completion, certificate)


def _build_placed_naive_body(preamble: Program, machine: Machine) -> Program:
    """The naive body; where memberships are open, with those that move the fewest bytes."""
    if is_open(preamble):
        preamble = close_partitions(
            preamble, choose_fewest_bytes(preamble, build_network(machine, preamble.gpus).sites)
        )
    return build_naive_body(preamble, machine)


class _SynthesisSearch:
    """The best candidate so far, and the stages that add candidates."""

    def __init__(
        self, preamble: Program, machine: Machine, options: SynthesisOptions, progress: Progress | None
    ) -> None:
        self.preamble, self.machine, self.options = preamble, machine, options
        self.max_actions = options.max_actions or max(
            MAX_SEARCHED_ACTIONS, min(MAX_ACTIONS_OF_MANY, 16 * len(machine.sites) ** 2)
        )
        self.switches = options.switches or any(action.uses_switch for action in preamble.actions)
        self.packed_ms: float | None = None
        self.deadline = math.inf if options.time_limit is None else time.monotonic() + options.time_limit
        self.progress = progress
        self.best: Program | None = None
        self.certificate: Certificate | None = None
        self.splits: dict[str, int] = {}
        self.best_ms = self.naive_ms = math.inf
        self.proposals: list[str] = []

    def stop(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() >= self.deadline

    def begin(self, candidates: Sequence[Program], proposers: Sequence[Proposer]) -> None:
        """Tries the candidates that need no search: the naive body, given ones, and proposals."""
        naive = _build_placed_naive_body(self.preamble, self.machine)
        self.offer_program(naive, {}, "naive body")
        self.naive_ms = self.best_ms
        if self.best is None:
            raise ProgramError(check(naive, self.machine).faults[0].message)
        has_body = self.preamble.actions and not is_open(self.preamble)
        for program in (*candidates, self.preamble) if has_body else candidates:
            self.offer_program(program, {}, "given body")
        if proposers:
            self.consult(proposers)

    def consult(self, proposers: Sequence[Proposer]) -> None:
        from einc.exchange.synthesis.proposers import Consultation

        consultation = Consultation(
            self.preamble, self.machine, self.show_best, self.offer_proposal, self.count_seconds, self.say,
            self.proposals,
        )  # fmt: skip
        for number, proposer in enumerate(proposers, 1):
            self.say(f"asking proposer {number}")
            consultation.ask(number, proposer)

    def show_best(self) -> tuple[Program, float]:
        """The best program so far, and its time in ms."""
        assert self.best is not None, "the naive body is a candidate"
        return self.best, self.best_ms

    def count_seconds(self) -> float:
        """What a proposer may take of the time that is left; the rest is for the search."""
        return (self.deadline - time.monotonic()) / 2

    def offer_proposal(self, program: Program, splits: Mapping[str, int]) -> float:
        """Tries a valid proposal; returns its time in ms."""
        taken = BodyEvaluator(dataclasses.replace(program, actions=()), self.machine).completion(program.actions)
        self.offer_program(program, dict(splits), "proposal")
        return taken

    def run(self) -> None:
        """Searches: for a placement and routes, then for pieces and their order, then for rewrites."""
        options = self.options
        network = build_network(self.machine, self.preamble.gpus)
        if not is_open(self.preamble):
            bare = dataclasses.replace(self.preamble, actions=())
            self.certificate = bound(bare, self.machine, switches=self.switches)
            if self.best_ms <= self.certificate.bound_ms * options.enough:
                return
        self.say("placing")
        known = 0.0 if self.certificate is None else self.certificate.bound_ms - network.transfer_latency
        limits = options.max_packed_ms, max(options.min_packed_ms, known)
        placed, demands, amounts = place(self.preamble, network, 0.02, self.stop, *limits)
        self.offer_program(build_naive_body(placed, self.machine), {}, "naive body")
        if options.switches:
            for program, splits in build_switched_bodies(placed, self.machine):
                self.offer_program(program, splits, "switches that copy and add")
        self.packed_ms = amounts.fullest_ms
        if self.packed_ms > options.max_packed_ms:
            return
        if demands:
            self.construct(placed, demands, amounts, network)
        self.rewrite(amounts.fullest_ms * options.enough)

    def construct(self, placed: Program, demands: tuple[Demand, ...], amounts: RouteAmounts, network: Network) -> None:
        """Tries bodies from the routes, with finer and finer pieces while that helps, then orders of the best one."""
        options = self.options
        family = find_atom_families(placed)
        splittable = can_split(placed)
        router = RouteChooser(demands, amounts, network)
        goal = amounts.fullest_ms * options.enough
        seen: set[tuple[int, ...]] = set()
        best: tuple[float, ExchangeTasks, TaskSchedule, dict[str, int]] | None = None
        most_patience = patience = _MAX_FRUITLESS if len(network.sites) <= MAX_TERMINALS else _PATIENCE_OF_MANY
        overlaps = _OVERLAPS if network.transfer_latency else _OVERLAPS[:1]
        for actions in _list_grains(self.max_actions) if splittable else _GRAINS[:1]:
            enough = len(seen) >= _MIN_GRAINS or len(demands) > MAX_EARLY_DEMANDS
            if (enough and self.stop()) or self.best_ms <= goal:
                break
            max_pieces = MAX_ATOM_PIECES if splittable else 1
            counts = choose_piece_counts(demands, family, amounts, actions, max_pieces, options.max_pieces)
            pieces = tuple(counts[family[demand.aggregate[0]]] for demand in demands)
            if pieces in seen:
                continue
            seen.add(pieces)
            splits = {atom: counts[name] for atom, name in family.items() if counts.get(name, 1) > 1}
            tasks = build_tasks(demands, router.choose(pieces), network)
            self.say(f"{len(tasks.actions)} actions")
            schedule = build_first_schedule(tasks, options.seed)
            evaluator = BodyEvaluator(split_atoms(placed, splits), self.machine)
            taken = math.inf
            if len(tasks.actions) <= MAX_SIMULATED_ACTIONS:  # beyond, thousands of flows at a time take long to time
                taken = self.offer(evaluator, write_unordered_actions(tasks), splits, "without waits")
            for together in overlaps:
                taken = min(taken, self.offer_schedule(evaluator, tasks, schedule, splits, together))
            gain = math.inf if best is None else best[0] / taken
            if gain > 1:
                best = taken, tasks, schedule, splits
            patience = patience - 1 if gain < _MIN_PIECES_GAIN else most_patience
            if not patience:
                break
        if best is not None and self.best_ms > goal:
            _, tasks, schedule, splits = best
            evaluator = BodyEvaluator(split_atoms(placed, splits), self.machine)
            rounds = options.iterations * _TASKS_PER_ITERATION // max(_TASKS_PER_ITERATION, len(tasks.actions))
            for better in improve_schedule(tasks, schedule, options.seed, rounds, self.stop, goal):
                for together in overlaps:
                    self.offer_schedule(evaluator, tasks, better, splits, together)

    def rewrite(self, goal: float) -> None:
        """Tries rewrites of the best body, if it is small enough."""
        assert self.best is not None, "the naive body is a candidate"
        switched = any(action.uses_switch for action in self.best.actions)
        if self.best_ms <= goal or switched or len(self.best.actions) > MAX_REWRITTEN:
            return
        self.say("rewriting")
        rounds = self.options.iterations * _ACTIONS_PER_ITERATION // max(_ACTIONS_PER_ITERATION, len(self.best.actions))
        for better in improve_by_rewrites(self.best, self.machine, self.options.seed, rounds, self.stop):
            self.offer_program(better, self.splits, "rewritten body")

    def offer_schedule(
        self,
        evaluator: BodyEvaluator,
        tasks: ExchangeTasks,
        schedule: TaskSchedule,
        splits: dict[str, int],
        together: int,
    ) -> float:
        """Time a schedule.

        Its makespan is exact if resources take one task at a time: then only a schedule that is better is timed.
        """
        if together == 1 and schedule.makespan >= self.best_ms:
            return schedule.makespan
        return self.offer(evaluator, write_ordered_actions(tasks, schedule, together), splits, "schedule")

    def offer_program(self, program: Program, splits: dict[str, int], origin: str) -> None:
        """Time a program with a preamble of its own; a program that cannot be timed is no candidate."""
        with contextlib.suppress(ProgramError):
            self.offer(BodyEvaluator(program, self.machine), program.actions, splits, origin)

    def offer(
        self, evaluator: BodyEvaluator, actions: tuple[Action, ...], splits: dict[str, int], origin: str
    ) -> float:
        """Time a candidate; it becomes the best one if it is valid and faster (clearly faster, if it is much longer).

        Returns the time, infinite where it is not valid or far slower than the best one.
        """
        longer = self.best is not None and len(actions) > 1.5 * len(self.best.actions)
        limit = self.best_ms * (1 - (_WORTH_LENGTH if longer else 1e-9))
        try:
            taken = evaluator.completion(actions, self.best_ms * _TIMED_UP_TO)
        except ProgramError:
            return math.inf
        if taken < limit:
            program = dataclasses.replace(evaluator.preamble, actions=actions)
            self.best, self.splits, self.best_ms = program, splits, taken
            self.say(origin)
        return taken

    def say(self, remark: str) -> None:
        if self.progress is not None:
            self.progress(remark, self.best_ms)

    def build_result(self) -> Synthesis:
        assert self.best is not None, "the naive body is a candidate"
        assert check(self.best, self.machine).valid, "only valid programs end in a finite time"
        if self.certificate is None:
            members = {partition.name: partition.members or () for partition in self.best.partitions}
            task = dataclasses.replace(close_partitions(self.preamble, members), actions=())
            self.certificate = bound(task, self.machine, switches=self.switches)
        proposals = tuple(self.proposals)
        return Synthesis(
            self.best, self.splits, self.best_ms, self.naive_ms, self.certificate, False, proposals, self.packed_ms
        )


def _list_grains(max_actions: int) -> list[int]:
    """Numbers of actions to try, the greatest last."""
    return [*(count for count in _GRAINS if count < max_actions), max_actions]
