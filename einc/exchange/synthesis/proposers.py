"""Candidate programs from outside: from files, commands or a language model (`sources.py`).

A proposal is only text until it has been parsed, found to be a program for the same preamble (with atoms split or not),
checked and timed. A proposal that fails on the way is left out, with the reason.

A consultation asks proposers, and has the outcome of each in words (paper, Section 5.4: the mode `ai`). They are told
the task, the machine, the best program, the bound, and outcomes of earlier answers. A language model is also told the
language; a command reads all of it as an exchange program with comments.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from einc.data import find_folder
from einc.errors import ProgramError
from einc.exchange.bounds import bound
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


Message = dict[str, str]
"""`role` and `content`, as chat endpoints have them."""

MAX_SHOWN_PROGRAM = 8000
"""Characters of a program in a message."""

MAX_LISTED_RESOURCES = 150
MAX_ANSWERS = 6
"""Only the latest answers are repeated."""

_PROMPT_RULES = """You write exchange programs: they bring data to the sites of a machine, and combine it on the way.

The grammar:
{grammar}
What a program means:
- IN says which site holds which atom at first, OUT which aggregate has to be where at the end. A+B is the sum of the
  atoms A and B.
- The body is a set of actions; their order in the text means nothing. `A+B @ 0 -> 1, 2` forms A+B at site 0, as soon
  as disjoint parts of it are there, and sends it to sites 1 and 2 as two flows. Without `->` it is only formed.
- No atom may be counted twice: parts that share an atom cannot be combined.
- `X @ s -> r -> d` is `X @ s -> r` and `X @ r -> d`: r relays.
- All flows through a resource share its bandwidth fairly. Combining m parts of b bytes moves (m + 1) * b bytes of a
  site's HBM. Different resources work at the same time.
- `after (action; action)` lets an action wait until others, written exactly as in the body, have ended.
- Atoms may be split: replace A by A.1, A.2, ... (sizes that add up to A's) in IN and OUT, all atoms of an aggregate
  alike: OUT then has A.1+B.1 and A.2+B.2. Pieces take several ways at once, and with waits they pipeline. This often
  pays most.

Answer with at most three complete programs (IN, OUT and body), in one block between lines ```, with a line
{separator} between programs. An example:
```
IN:  A.1 @ 0 (size: 500 MB); A.2 @ 0 (size: 500 MB); B.1 @ 1 (size: 500 MB); B.2 @ 1 (size: 500 MB)
OUT: A.1+B.1 @ 0, 1; A.2+B.2 @ 0, 1

A.1 @ 0 -> 1
A.1+B.1 @ 1 -> 0
B.2 @ 1 -> 0
A.2+B.2 @ 0 -> 1
```"""


def build_messages(request: ProposalRequest) -> list[Message]:
    """The conversation so far; endpoints keep no state, so it is sent as a whole."""
    rules = _PROMPT_RULES.format(grammar=_read_grammar(), separator=CANDIDATE_SEPARATOR)
    said = [{"role": "system", "content": rules}, {"role": "user", "content": _describe_task(request)}]
    for answer in request.answers[-MAX_ANSWERS:]:
        said.append({"role": "assistant", "content": f"```\n{_shorten(answer.text)}\n```"})
        said.append({"role": "user", "content": f"Outcome: {_shorten_outcome(answer)}"})
    if request.answers:
        said[-1]["content"] += f"\nThe best so far takes {request.best_ms:.3f} ms. Answer with better programs."
    return said


def write_request(request: ProposalRequest) -> str:
    """The preamble, and below it as comments what a proposer may want to know beside it."""
    preamble = dataclasses.replace(request.preamble, actions=())
    remarks = [_describe_machine(request.machine), _describe_best(request, print_program(request.best))]
    remarks += _describe_bound(request)
    for answer in request.answers[-MAX_ANSWERS:]:
        remarks.append(f"An earlier answer:\n{_shorten(answer.text)}\nIts outcome: {answer.outcome}")
    comments = "\n\n".join(remarks).splitlines()
    return print_program(preamble) + "\n" + "".join(f"# {line}".rstrip() + "\n" for line in comments)


def extract_programs(reply: str) -> str:
    """The candidates of a reply: its fenced blocks, or all of it where there are none."""
    blocks: list[list[str]] = []
    inside = False
    for line in reply.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
            if inside:
                blocks.append([])
        elif inside:
            blocks[-1].append(line)
    return f"\n{CANDIDATE_SEPARATOR}\n".join("\n".join(block) for block in blocks) if blocks else reply


def _describe_task(request: ProposalRequest) -> str:
    preamble = dataclasses.replace(request.preamble, actions=())
    parts = [_describe_machine(request.machine), f"The task:\n```\n{_shorten(print_program(preamble))}\n```"]
    if any(partition.members is None for partition in preamble.partitions):
        parts.append("Choose members for the partitions that have only a size, and write them out: G1 {0, 3}.")
    parts.append(_describe_best(request, f"```\n{_shorten(print_program(request.best))}\n```"))
    return "\n\n".join([*parts, *_describe_bound(request)])


def _describe_best(request: ProposalRequest, text: str) -> str:
    splits = "" if request.best.holdings == request.preamble.holdings else ", which splits atoms"
    return f"The best program so far{splits}, takes {request.best_ms:.3f} ms:\n{text}"


def _describe_bound(request: ProposalRequest) -> list[str]:
    try:
        certificate = bound(dataclasses.replace(request.preamble, actions=()), request.machine)
    except ProgramError:
        return []
    return [f"No program takes less than {certificate.bound_ms:.3f} ms: {certificate.bound_by}."]


def _describe_machine(machine: Machine) -> str:
    hbm = sorted({site.sustained_gbs for site in machine.sites})
    speeds = " to ".join(f"{speed:.6g}" for speed in (hbm if len(hbm) < 2 else (hbm[0], hbm[-1])))
    lines = [f"The machine {machine.name} has sites 0 to {len(machine.sites) - 1}, with {speeds} GB/s of HBM each."]
    if machine.transfer_latency_us or machine.kernel_latency_us:
        lines.append(
            f"A transfer takes {machine.transfer_latency_us:g} us before its first byte, an aggregation "
            f"{machine.kernel_latency_us:g} us."
        )
    lines.append("Its resources (a transfer crosses all that list its pair; other pairs cannot talk):")
    for resource in machine.resources[:MAX_LISTED_RESOURCES]:
        pairs = " ".join(f"{a}>{b}" for a, b in resource.pairs[:MAX_LISTED_RESOURCES])
        more = " ..." if len(resource.pairs) > MAX_LISTED_RESOURCES else ""
        lines.append(f"- {resource.gbs:g} GB/s for {pairs}{more}")
    if len(machine.resources) > MAX_LISTED_RESOURCES:
        lines.append(f"- and {len(machine.resources) - MAX_LISTED_RESOURCES} more of this kind")
    return "\n".join(lines)


def _shorten_outcome(answer: JudgedCandidate) -> str:
    return answer.outcome[:500]


def _read_grammar() -> str:
    """The rules of the grammar, without its comments."""
    text = (find_folder("grammars") / "exprog.lark").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("//"))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_PROGRAM else text[:MAX_SHOWN_PROGRAM] + "\n# ... and so on"
