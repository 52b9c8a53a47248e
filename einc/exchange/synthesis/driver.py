"""Synthesis: from a preamble to a valid body, with the splits of its atoms and the members of its open partitions.

Membership and routes come from a packing of the resources (`placement`, `packing`), the pieces and their order from
list scheduling (`rounding`, `scheduling`), and what the machine makes of it from the simulator, which every candidate
must pass: the naive body is the first of them, so that nothing worse is ever returned (paper, Section 5.4).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from einc.errors import ProgramError
from einc.exchange.bounds import Certificate, bound
from einc.exchange.language.checker import check
from einc.exchange.language.program import Action, Program
from einc.exchange.naive import build_naive_body
from einc.exchange.network import Network, build_network
from einc.exchange.simulation.simulator import BodyEvaluator, simulate
from einc.exchange.synthesis.demands import Demand
from einc.exchange.synthesis.local import MOST_ACTIONS as MOST_REWRITTEN
from einc.exchange.synthesis.local import improve
from einc.exchange.synthesis.memberships import fewest_bytes, is_open, with_members
from einc.exchange.synthesis.packing import Packing
from einc.exchange.synthesis.placement import place
from einc.exchange.synthesis.proposers import Answer, Proposer, Question, consult, read_candidate
from einc.exchange.synthesis.rounding import Router, pieces_for
from einc.exchange.synthesis.scheduling import MANY, Schedule, first_schedule, improved_schedules
from einc.exchange.synthesis.splitting import can_split, families, split
from einc.exchange.synthesis.tasks import Tasks, tasks_of
from einc.exchange.synthesis.writing import actions_of, plain_actions
from einc.machines.model import Machine
from einc_runtime.text import replace_unprintable

MOST_ACTIONS = 2000
"""By default, on machines of up to a dozen sites; more on larger ones, in proportion."""

MOST_PIECES = 512
_GRAINS = (30, 125, 250, 500, 1000, 2000)
"""Numbers of actions that are tried, as far as they are allowed."""

ENOUGH = 1.004
"""How near to the fullest resource's time a body has to come for the search to end, by default."""

_WORTHWHILE = 1.005
"""By how much finer pieces have to be faster for still finer ones to be tried."""

_PATIENCE = 2
"""How often in a row finer pieces may not be worthwhile."""

_WORTH_LENGTH = 0.002
"""The part by which a much longer program has to be faster."""

_TASKS = 200
"""Tasks of a body that an iteration is meant for: a larger one is changed less often."""

_TOGETHER = (1, 2, 3)
"""Transfers that share a resource at a time where they have latencies."""

_FAR = 1.5
"""Candidates are timed up to so many times the best time."""

_AT_LEAST = 2
"""Grains that are tried even where no time is left, ..."""

MOST_DEMANDS = 500
"""... of so many demands at most, for which they take next to none."""

MOST_TOLD = 300
"""Characters of a line about a proposal."""

_REWRITTEN = 10
"""Actions of a body that an iteration of rewriting is meant for: a larger one is rewritten less often."""

Progress = Callable[[str, float], None]
"""Is told what is being done, and the best time so far in ms."""


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A valid program with explicit memberships and what it takes; `splits` has the atoms that are cut.

    `naive_ms` is what the naive body takes, with the fewest bytes moved where memberships are open. No program with
    these memberships takes less than its `bound`. `interrupted` says that the search was, by KeyboardInterrupt, and
    `proposals` has a line on what became of every proposal. `packed_ms` is what the fullest resource takes with bytes
    divided among routes as well as can be, which ever finer pieces approach; None where nothing was divided.
    """

    program: Program
    splits: Mapping[str, int]
    completion_ms: float
    naive_ms: float
    bound: Certificate
    interrupted: bool = False
    proposals: tuple[str, ...] = ()
    packed_ms: float | None = None


def synthesize(
    preamble: Program,
    machine: Machine,
    *,
    iterations: int = 200,
    most_actions: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    proposers: Sequence[Proposer] = (),
    most_pieces: Mapping[str, int] | None = None,
    enough: float = ENOUGH,
    most_packed_ms: float = math.inf,
    least_packed_ms: float = 0.0,
) -> Synthesis:
    """The best program found for a preamble, whose partitions may be open; a body that it has is a candidate too.

    `iterations` are random changes tried on the best order found, fewer on large bodies; the same preamble, machine,
    seed and iterations give the same program unless `time_limit` (in seconds) ends the search. An interrupt
    (KeyboardInterrupt) ends it too once there is a first program. `proposers` are asked for candidates first.
    `most_pieces` has atoms that cannot be cut at will; those of one aggregate count by the first of them. The search
    ends with a program that takes `enough` times the bound, and where the placement found has a `packed_ms` above
    `most_packed_ms`; that no placement has one below `least_packed_ms` is known. Raises ProgramError for a preamble
    that cannot be met.
    """
    search_ = _Search(preamble, machine, time_limit, progress, most_pieces, enough, most_packed_ms, least_packed_ms)
    try:
        search_.begin(proposers)
        search_.run(iterations, most_actions or max(MOST_ACTIONS, 150 * len(machine.sites)), seed)
    except KeyboardInterrupt:
        if search_.best is None:
            raise
        return dataclasses.replace(search_.result(), interrupted=True)
    return search_.result()


def naive_synthesis(preamble: Program, machine: Machine) -> Synthesis:
    """The naive body without any search. Raises ProgramError for a preamble that cannot be met."""
    program = _naive(preamble, machine)
    completion = simulate(program, machine).completion_ms
    certificate = bound(dataclasses.replace(program, actions=()), machine)
    return Synthesis(program, {}, completion, completion, certificate)


def _naive(preamble: Program, machine: Machine) -> Program:
    """The naive body, with the members that move the fewest bytes where they are open."""
    if is_open(preamble):
        preamble = with_members(preamble, fewest_bytes(preamble, build_network(machine, preamble.gpus).sites))
    return build_naive_body(preamble, machine)


class _Search:
    """The best candidate so far, and the stages that add candidates."""

    def __init__(
        self,
        preamble: Program,
        machine: Machine,
        time_limit: float | None,
        progress: Progress | None,
        most_pieces: Mapping[str, int] | None = None,
        enough: float = ENOUGH,
        most_packed_ms: float = math.inf,
        least_packed_ms: float = 0.0,
    ) -> None:
        self.preamble, self.machine = preamble, machine
        self.enough, self.most_packed_ms, self.least_packed_ms = enough, most_packed_ms, least_packed_ms
        self.packed_ms: float | None = None
        self.most_pieces = most_pieces or {}
        self.deadline = math.inf if time_limit is None else time.monotonic() + time_limit
        self.progress = progress
        self.best: Program | None = None
        self.certificate: Certificate | None = None
        self.splits: dict[str, int] = {}
        self.best_ms = self.naive_ms = math.inf
        self.proposals: list[str] = []

    def stop(self) -> bool:
        return time.monotonic() >= self.deadline

    def begin(self, proposers: Sequence[Proposer]) -> None:
        """The candidates that need no search: the naive body, the given one, and proposals."""
        naive = _naive(self.preamble, self.machine)
        self.offer_program(naive, {}, "naive body")
        self.naive_ms = self.best_ms
        if self.best is None:
            raise ProgramError(check(naive, self.machine).faults[0].message)
        if self.preamble.actions and not is_open(self.preamble):
            self.offer_program(self.preamble, {}, "given body")
        for number, proposer in enumerate(proposers, 1):
            self.say(f"asking proposer {number}")
            try:
                for count, answer in enumerate(consult(proposer, self.question, self.consider), 1):
                    self.tell(f"proposal {number}.{count}: {answer.outcome}")
            except ProgramError as error:
                self.tell(f"proposer {number}: {error.message}")

    def question(self, number: int, answers: tuple[Answer, ...]) -> Question:
        assert self.best is not None, "the naive body is a candidate"
        bare = dataclasses.replace(self.preamble, actions=())
        patience = (self.deadline - time.monotonic()) / 2  # the rest is for the search
        return Question(bare, self.machine, self.best, self.best_ms, patience, number, answers)

    def consider(self, text: str) -> str:
        """A program that somebody proposes counts only if it is valid for this preamble; returns what became of it."""
        before = self.best_ms
        try:
            program, splits = read_candidate(text, self.preamble, self.machine)
            faults = check(program, self.machine).faults
            if faults:
                return f"not valid: {faults[0].message}"
            taken = BodyEvaluator(dataclasses.replace(program, actions=()), self.machine).completion(program.actions)
        except ProgramError as error:
            return f"refused: {error.message}"
        self.offer_program(program, splits, "proposal")
        return f"{taken:.3f} ms" + (", the best so far" if self.best_ms < before else "")

    def tell(self, what: str) -> None:
        """Keep a line about a proposal; what others wrote is shown as one line of printable characters."""
        line = replace_unprintable(what, " ")[:MOST_TOLD]
        self.proposals.append(line)
        self.say(line)

    def run(self, iterations: int, most_actions: int, seed: int) -> None:
        network = build_network(self.machine, self.preamble.gpus)
        if not is_open(self.preamble):
            self.certificate = bound(dataclasses.replace(self.preamble, actions=()), self.machine)
            if self.best_ms <= self.certificate.bound_ms * self.enough:
                return
        self.say("placing")
        limits = self.most_packed_ms, self.least_packed_ms
        placed, demands, packing = place(self.preamble, network, 0.02, self.stop, *limits)
        self.offer_program(build_naive_body(placed, self.machine), {}, "naive body")
        self.packed_ms = packing.fullest_ms
        if self.packed_ms > self.most_packed_ms:
            return
        if demands:
            self.construct(placed, demands, packing, network, iterations, most_actions, seed)
        self.refine(packing.fullest_ms * self.enough, iterations, seed)

    def construct(
        self,
        placed: Program,
        demands: tuple[Demand, ...],
        packing: Packing,
        network: Network,
        iterations: int,
        most_actions: int,
        seed: int,
    ) -> None:
        """Bodies from the packing with ever finer pieces while they pay, then better orders of the best of them."""
        family = families(placed)
        splittable = can_split(placed)
        router = Router(demands, packing, network)
        goal = packing.fullest_ms * self.enough
        seen: set[tuple[int, ...]] = set()
        best: tuple[float, Tasks, Schedule, dict[str, int]] | None = None
        patience = _PATIENCE
        overlaps = _TOGETHER if network.transfer_latency else _TOGETHER[:1]
        for actions in _grains(most_actions) if splittable else _GRAINS[:1]:
            enough = len(seen) >= _AT_LEAST or len(demands) > MOST_DEMANDS
            if (enough and self.stop()) or self.best_ms <= goal:
                break
            most = MOST_PIECES if splittable else 1
            counts = pieces_for(demands, family, packing, actions, most, self.most_pieces)
            pieces = tuple(counts[family[demand.aggregate[0]]] for demand in demands)
            if pieces in seen:
                continue
            seen.add(pieces)
            splits = {atom: counts[name] for atom, name in family.items() if counts.get(name, 1) > 1}
            tasks = tasks_of(demands, router.choose(pieces), network)
            self.say(f"{len(tasks.actions)} actions")
            schedule = first_schedule(tasks, seed)
            evaluator = BodyEvaluator(split(placed, splits), self.machine)
            taken = math.inf
            if len(tasks.actions) <= MANY:  # thousands of flows at a time take long to time, and order is better
                taken = self.offer(evaluator, plain_actions(tasks), splits, "without waits")
            for together in overlaps:
                taken = min(taken, self.offer_schedule(evaluator, tasks, schedule, splits, together))
            gain = math.inf if best is None else best[0] / taken
            if gain > 1:
                best = taken, tasks, schedule, splits
            patience = patience - 1 if gain < _WORTHWHILE else _PATIENCE
            if not patience:
                break
        if best is not None and self.best_ms > goal:
            _, tasks, schedule, splits = best
            evaluator = BodyEvaluator(split(placed, splits), self.machine)
            rounds = iterations * _TASKS // max(_TASKS, len(tasks.actions))
            for better in improved_schedules(tasks, schedule, seed, rounds, self.stop, goal):
                for together in overlaps:
                    self.offer_schedule(evaluator, tasks, better, splits, together)

    def refine(self, goal: float, iterations: int, seed: int) -> None:
        """Rewrites of the best body, where it is small enough."""
        assert self.best is not None, "the naive body is a candidate"
        if self.best_ms <= goal or len(self.best.actions) > MOST_REWRITTEN:
            return
        self.say("rewriting")
        rounds = iterations * _REWRITTEN // max(_REWRITTEN, len(self.best.actions))
        for better in improve(self.best, self.machine, seed, rounds, self.stop):
            self.offer_program(better, self.splits, "rewritten body")

    def offer_schedule(
        self, evaluator: BodyEvaluator, tasks: Tasks, schedule: Schedule, splits: dict[str, int], together: int
    ) -> float:
        """A schedule is exact where its resources are taken by one task at a time: only a better one is timed then."""
        if together == 1 and schedule.makespan >= self.best_ms:
            return schedule.makespan
        return self.offer(evaluator, actions_of(tasks, schedule, together), splits, "schedule")

    def offer_program(self, program: Program, splits: dict[str, int], what: str) -> None:
        """Time a program of its own preamble; what cannot be timed is no candidate."""
        with contextlib.suppress(ProgramError):
            self.offer(BodyEvaluator(program, self.machine), program.actions, splits, what)

    def offer(self, evaluator: BodyEvaluator, actions: tuple[Action, ...], splits: dict[str, int], what: str) -> float:
        """Time a candidate; it becomes the best one if it is valid and faster, and much so if it is much longer.

        Returns the time, infinite where it is not valid or far slower than the best one.
        """
        longer = self.best is not None and len(actions) > 1.5 * len(self.best.actions)
        limit = self.best_ms * (1 - (_WORTH_LENGTH if longer else 1e-9))
        try:
            taken = evaluator.completion(actions, self.best_ms * _FAR)
        except ProgramError:
            return math.inf
        if taken < limit:
            program = dataclasses.replace(evaluator.preamble, actions=actions)
            self.best, self.splits, self.best_ms = program, splits, taken
            self.say(what)
        return taken

    def say(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, self.best_ms)

    def result(self) -> Synthesis:
        assert self.best is not None, "the naive body is a candidate"
        assert check(self.best, self.machine).valid, "only valid programs end in a finite time"
        if self.certificate is None:
            members = {partition.name: partition.members or () for partition in self.best.partitions}
            whole = dataclasses.replace(with_members(self.preamble, members), actions=())
            self.certificate = bound(whole, self.machine)
        told = tuple(self.proposals)
        return Synthesis(
            self.best, self.splits, self.best_ms, self.naive_ms, self.certificate, False, told, self.packed_ms
        )


def _grains(most_actions: int) -> list[int]:
    """Numbers of actions to try, the greatest last."""
    return [*(count for count in _GRAINS if count < most_actions), most_actions]
