"""What proposers are asked: the task, the machine, the best program, the bound, and outcomes of earlier answers.

A language model is also told the language; a command reads all of it as an exchange program with comments.
"""

from __future__ import annotations

import dataclasses

from einc.data import find_folder
from einc.errors import ProgramError
from einc.exchange.bounds import bound
from einc.exchange.language.printer import print_program
from einc.exchange.synthesis.proposers import CANDIDATE_SEPARATOR, JudgedCandidate, ProposalRequest
from einc.machines.model import Machine

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
