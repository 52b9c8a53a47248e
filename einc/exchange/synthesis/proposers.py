"""Candidate programs from outside: from files, from commands (`sources.py`), or from a language model (`endpoint.py`).

A proposal is only text until it has been parsed, found to be a program for the same preamble (with atoms split or not),
checked and timed. A proposal that fails on the way is left out, with the reason.

A consultation asks proposers, and has the outcome of each in words (paper, Section 5.4: the mode `ai`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Program
from einc.exchange.language.resolve import read_program
from einc.exchange.synthesis.splitting import find_splits, split_atoms
from einc.machines.model import Machine
from einc_runtime.text import replace_unprintable

CANDIDATE_SEPARATOR = "---"
"""A line of its own between the candidates of one text."""
ASK_AGAIN = "--- again"
"""The last line of an answer whose sender wants to be told the outcomes, and asked again."""

_IN = re.compile(r"^[ \t]*IN[ \t]*:", re.MULTILINE)

MAX_PROPOSAL_TEXT = 1 << 22
"""Characters of one answer, whose sender may be hostile."""
MAX_PROPOSED_ACTIONS = 20_000
"""A limit of time: each candidate is checked and simulated."""
MAX_CANDIDATES = 64
"""Candidates of one answer that are read; a proposer that knows better sends its best first."""
MAX_PROPOSAL_ROUNDS = 100
"""So that a proposer that always finds a little more comes to an end."""


@dataclass(frozen=True, slots=True)
class JudgedCandidate:
    """A candidate and its outcome in words: its time, or why it does not count."""

    text: str
    outcome: str


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """What a proposer is told: a preamble without a body, the machine, the best program so far and its time in ms.

    `answers` are this proposer's candidates of all rounds so far, and `again` says whether its last answer asked for
    this round; the search waits at most `seconds`.
    """

    preamble: Program
    machine: Machine
    best: Program
    best_ms: float
    seconds: float
    round: int = 0
    answers: tuple[JudgedCandidate, ...] = ()
    again: bool = False


class Proposer(Protocol):
    """A source of candidates."""

    def propose(self, request: ProposalRequest) -> str | None:
        """Candidate programs, with lines `---` between them, or None where there are no more. Raises ProgramError."""


def consult_proposer(
    proposer: Proposer,
    ask: Callable[[int, tuple[JudgedCandidate, ...]], ProposalRequest],
    consider: Callable[[str], str],
) -> Iterator[JudgedCandidate]:
    """Ask a proposer, round after round until it has no more candidates; yield all of them with their outcomes.

    `ask` makes the request from the round and the answers before; `consider` returns the outcome of a candidate.
    Raises ProgramError where the proposer fails.
    """
    answers: tuple[JudgedCandidate, ...] = ()
    again = False
    for number in range(MAX_PROPOSAL_ROUNDS):
        reply = proposer.propose(dataclasses.replace(ask(number, answers), again=again))
        if reply is None:
            return
        again = reply.rstrip().endswith(f"\n{ASK_AGAIN}")
        empty = True
        for text in split_candidates(reply):
            empty = False
            answers += (JudgedCandidate(text, consider(text)),)
            yield answers[-1]
        if empty:
            answers += (JudgedCandidate(reply, "there is no program in this reply"),)
            yield answers[-1]


@dataclass(frozen=True, slots=True)
class TextProposer:
    """Gives candidates that exist already, such as the contents of a file."""

    text: str

    def propose(self, request: ProposalRequest) -> str | None:
        return None if request.round else self.text


def split_candidates(text: str) -> Iterator[str]:
    """The programs of a proposer's text. Raises ProgramError where it is too long."""
    if len(text) > MAX_PROPOSAL_TEXT:
        raise ProgramError(f"a proposal has more than {MAX_PROPOSAL_TEXT} characters")
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() in (CANDIDATE_SEPARATOR, ASK_AGAIN):
            parts.append([])
        else:
            parts[-1].append(line)
    for lines in parts[:MAX_CANDIDATES]:
        if any(line.strip() for line in lines):
            yield "\n".join(lines) + "\n"


def read_candidate(text: str, preamble: Program, machine: Machine) -> tuple[Program, dict[str, int]]:
    """A candidate as a program for the preamble, and its splits; without IN, it is a body for the preamble. Raises
    ProgramError where it is none."""
    if not _IN.search(text):
        text = print_program(dataclasses.replace(preamble, actions=())) + "\n" + text
    program = read_program(text, "<proposal>", machine)
    if len(program.actions) > MAX_PROPOSED_ACTIONS:
        raise ProgramError(f"a proposal has more than {MAX_PROPOSED_ACTIONS} actions")
    for partition in preamble.partitions:
        same = [
            candidate
            for candidate in program.partitions
            if candidate.name == partition.name and candidate.size == partition.size
        ]
        if not same or partition.members not in (None, same[0].members):
            raise ProgramError(f"the proposal changes the partition {partition.name}")
    splits = find_splits(program, preamble)
    if any(
        splits[atom] > holding.size for holding in preamble.holdings for atom in holding.aggregate if atom in splits
    ):
        raise ProgramError("the proposal splits an atom into more pieces than it has bytes")
    if _normalize_preamble(split_atoms(preamble, splits)) != _normalize_preamble(program) or len(
        program.partitions
    ) != len(preamble.partitions):
        raise ProgramError("the proposal is for another preamble")
    return program, splits


def _normalize_preamble(program: Program) -> tuple[object, ...]:
    """What a preamble says, independent of how it is written."""
    held = {(holding.aggregate, site, holding.size) for holding in program.holdings for site in holding.sites}
    required = {
        (requirement.aggregate, target) for requirement in program.requirements for target in requirement.targets
    }
    return None if program.gpus is None else tuple(sorted(program.gpus)), held, required


MAX_LINE = 300
"""Characters of a line about a proposal."""


@dataclass(slots=True)
class Consultation:
    """One preamble that proposers are asked about; a candidate counts only if it is valid for this preamble.

    `show_best` returns the best program so far and its time in ms. `offer` takes a valid program with its splits and
    returns its time in ms; it raises ProgramError where the program cannot be used. `count_seconds` returns the time
    that one request may take. `lines` collects what happened, in printable characters; `say` is called with each.
    """

    preamble: Program
    machine: Machine
    show_best: Callable[[], tuple[Program, float]]
    offer: Callable[[Program, Mapping[str, int]], float]
    count_seconds: Callable[[], float]
    say: Callable[[str], None]
    lines: list[str] = field(default_factory=list)

    def ask(self, number: int, proposer: Proposer) -> bool:
        """Asks one proposer, whose number is for the lines. Returns whether it answered without a failure."""
        try:
            for count, answer in enumerate(consult_proposer(proposer, self._describe_request, self._judge), 1):
                self._note(f"proposal {number}.{count}: {answer.outcome}")
        except ProgramError as error:
            self._note(f"proposer {number}: {error.message}")
            return False
        return True

    def _describe_request(self, number: int, answers: tuple[JudgedCandidate, ...]) -> ProposalRequest:
        seconds = self.count_seconds()
        if seconds <= 0:
            raise ProgramError("no time is left to ask it")
        best, best_ms = self.show_best()
        bare = dataclasses.replace(self.preamble, actions=())
        return ProposalRequest(bare, self.machine, best, best_ms, seconds, number, answers)

    def _judge(self, text: str) -> str:
        """The outcome of a candidate, which is offered if it is valid."""
        before = self.show_best()[1]
        try:
            program, splits = read_candidate(text, self.preamble, self.machine)
            faults = check(program, self.machine).faults
            if faults:
                return f"not valid: {faults[0].message}"
            taken = self.offer(program, splits)
        except ProgramError as error:
            return f"refused: {error.message}"
        return f"{taken:.3f} ms" + (", the best so far" if self.show_best()[1] < before else "")

    def _note(self, remark: str) -> None:
        line = replace_unprintable(remark, " ")[:MAX_LINE]
        self.lines.append(line)
        self.say(line)
