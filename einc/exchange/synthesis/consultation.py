"""Asking proposers for candidates, and the outcome of each in words (paper, Section 5.4: the mode `ai`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.program import Program
from einc.exchange.synthesis.proposers import (
    JudgedCandidate,
    ProposalRequest,
    Proposer,
    consult_proposer,
    read_candidate,
)
from einc.machines.model import Machine
from einc_runtime.text import replace_unprintable

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
