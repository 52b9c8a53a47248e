"""Proposals: good ones are taken, and all others are refused without harm."""

import sys
import time
from pathlib import Path

import pytest

from einc.errors import ProgramError
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.exchange.synthesis.proposers import (
    JudgedCandidate,
    TextProposer,
    consult_proposer,
    read_candidate,
    split_candidates,
)
from einc.exchange.synthesis.sources import CommandProposer
from tests.support.exchange_oracle import SWAP
from tests.support.preambles import read_preamble
from tests.support.proposal_cases import BARE, MACHINE, PREAMBLE, SPLIT, make_request


def propose(*proposers):
    """With proposals alone: no packing is good enough to be routed."""
    said = []

    def progress(message, best):
        said.append(message)

    return synthesize(
        PREAMBLE, MACHINE, SynthesisOptions(max_packed_ms=0.0), proposers=proposers, progress=progress
    ), said


def test_a_split_proposal_is_taken():
    program, splits = read_candidate(SPLIT, PREAMBLE, MACHINE)
    assert splits == {"A": 2, "B": 2}
    proposed, said = propose(TextProposer(SWAP + "\n---\n" + SPLIT))
    assert "proposal" in said
    assert proposed.program == program
    assert proposed.splits == splits


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot help with that.",
        "---\n---\n",
        "\0\xff\ufffd",
        "(" * 100_000,
        BARE,  # valid nowhere: no body
        "IN: A @ 0; B @ 0\nOUT: A+B @ 0, 1\nA+B @ 0 -> 1",  # B is elsewhere
        "IN: A @ 0 (size: 1 B); B @ 1 (size: 1 B)\nOUT: A+B @ 0, 1\nA @ 0 -> 1; B @ 1 -> 0; A+B @ 0, 1",
        "IN: A @ 0; B @ 1\nOUT: A+B @ 0\nB @ 1 -> 0; A+B @ 0",  # asks less
        "IN: A.1 @ 0; A.2 @ 0; B @ 1\nOUT: A.1+A.2+B @ 0, 1\nA.1+A.2 @ 0 -> 1",
        SPLIT.replace("500 MB", "1 B"),
        "IN: A @ 0; B @ 1\nOUT: A+B @ 0, 1\nA @ 0 -> 1; B @ 1 -> 0; A+B @ 0, 1 after (A+B @ 0)",
    ],
)
def test_hostile_replies_harm_nothing(text):
    proposed, _ = propose(TextProposer(text))
    assert proposed.completion_ms == proposed.naive_ms
    assert proposed.splits == {}


def test_a_command_reads_the_preamble_and_writes_programs():
    program = "import sys; text = sys.stdin.read(); print(text); print('A @ 0 -> 1; B @ 1 -> 0; A+B @ 0, 1')"
    command = CommandProposer((sys.executable, "-c", program))
    reply = command.propose(make_request())
    assert reply is not None
    assert read_candidate(reply, PREAMBLE, MACHINE)[1] == {}
    assert command.propose(make_request(1)) is None
    assert read_candidate("A @ 0 -> 1; B @ 1 -> 0; A+B @ 0, 1", PREAMBLE, MACHINE)[0].holdings == PREAMBLE.holdings
    proposed, said = propose(command)
    assert not [message for message in said if "refused" in message]
    assert proposed.completion_ms == proposed.naive_ms


def test_a_command_is_told_what_came_of_its_answers_as_long_as_it_asks(tmp_path):
    """It sees the machine, the best program and the bound; and after an answer that asks for it, the outcome."""
    program = """
import pathlib, sys
rounds = pathlib.Path(sys.argv[1])
number = len(list(rounds.iterdir()))
(rounds / str(number)).write_text(sys.stdin.read())
print(["A @ 0 -> 1\\n--- again", pathlib.Path(sys.argv[2]).read_text() + "--- again", "A+B @ 0"][number])
"""
    rounds, split = tmp_path / "rounds", tmp_path / "split.exprog"
    rounds.mkdir()
    split.write_text(SPLIT)
    proposed, said = propose(CommandProposer((sys.executable, "-c", program, str(rounds), str(split))))
    assert [line.partition(":")[0] for line in said if line.startswith("proposal 1.")] == [
        "proposal 1.1", "proposal 1.2", "proposal 1.3"
    ]  # fmt: skip
    first, second, third = ((rounds / str(number)).read_text() for number in range(3))
    assert read_preamble(first, "request", MACHINE) == PREAMBLE
    assert "# The machine dgx-h100 has sites 0 to 7" in first
    assert f"# The best program so far, takes {proposed.naive_ms:.3f} ms:" in first
    assert "# No program takes less than" in first
    assert "# Its outcome: not valid: A+B is required at site" in second
    assert f"# The best program so far, which splits atoms, takes {proposed.completion_ms:.3f} ms:" in third
    assert proposed.splits == {"A": 2, "B": 2}


def test_an_answer_counts_although_a_process_that_the_command_started_keeps_the_pipe_open(tmp_path):
    begin = time.monotonic()
    script = f"echo 'A @ 0 -> 1; B @ 1 -> 0'; sleep 300 & echo $! > {tmp_path}/started; exit 0"
    assert CommandProposer(("/bin/sh", "-c", script)).propose(make_request()) == "A @ 0 -> 1; B @ 1 -> 0\n"
    assert time.monotonic() - begin < 25
    state = Path(f"/proc/{(tmp_path / 'started').read_text().strip()}/stat")
    for _ in range(200):  # it has been ended, and takes a moment to go
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the command started is still there")


@pytest.mark.parametrize(
    ("arguments", "seconds", "reason"),
    [
        (("/nowhere/proposer",), 300, "cannot be run"),
        ((sys.executable, "-c", "raise SystemExit(3)"), 300, "status 3"),
        ((sys.executable, "-c", "import time; time.sleep(30)"), 0.2, "longer than"),
        (("/bin/sh", "-c", "sleep 30 & wait"), 0.2, "longer than"),
        (("/bin/sh", "-c", "sleep 30 & exit 0"), 300, "there is no program in this reply"),
        (("/bin/sh", "-c", "sleep 30 & exit 4"), 300, "status 4"),
        (("/bin/sh", "-c", "exec >&-; sleep 30"), 0.2, "longer than"),
        ((sys.executable, "-c", "while True: print('A' * 10**6)"), 300, "more than"),
    ],
)
def test_commands_that_fail_are_left_out(arguments, seconds, reason):
    begin = time.monotonic()
    proposed, said = propose(CommandProposer(arguments, seconds=seconds))
    assert time.monotonic() - begin < 25  # nobody waits for one who sleeps
    assert any(reason in message for message in said)
    assert proposed.completion_ms == proposed.naive_ms


def test_every_proposal_gets_a_line_of_printable_characters():
    proposed, _ = propose(TextProposer("\x1b[31mA @ 0\n---\n" + BARE + "\n---\n" + SWAP), TextProposer("A" * (1 << 23)))
    assert [line.split(":")[0] for line in proposed.proposals] == [
        "proposal 1.1", "proposal 1.2", "proposal 1.3", "proposer 2"
    ]  # fmt: skip
    assert all(line.isprintable() and len(line) <= 300 for line in proposed.proposals)
    refused, invalid, timed, long = proposed.proposals
    assert "refused" in refused
    assert "not valid: A+B is required at site 0 and never gets there" in invalid
    assert timed == f"proposal 1.3: {proposed.naive_ms:.3f} ms"
    assert "more than" in long


def test_rounds_go_on_until_the_proposer_has_no_more_to_say():
    requests = []

    class Thinking:
        def propose(self, request):
            requests.append(request)
            return ["nothing\n---\nsomething", "", "more"][request.round] if request.round < 3 else None

    answers = list(consult_proposer(Thinking(), lambda number, answers: make_request(number, answers), str.upper))
    assert answers == [
        JudgedCandidate("nothing\n", "NOTHING\n"),
        JudgedCandidate("something\n", "SOMETHING\n"),
        JudgedCandidate("", "there is no program in this reply"),
        JudgedCandidate("more\n", "MORE\n"),
    ]
    assert [len(request.answers) for request in requests] == [0, 2, 3, 4]


def test_texts_without_end_are_refused():
    with pytest.raises(ProgramError, match="more than"):
        list(split_candidates("A" * (1 << 23)))
