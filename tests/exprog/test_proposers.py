"""Proposals: good ones are taken, whatever else comes harms nothing."""

import sys

import pytest
from exprog_oracle import SWAP

from einc.errors import ProgramError
from einc.exprog.printer import print_program
from einc.exprog.synthesis import Command, Text, read_preamble, synthesize
from einc.exprog.synthesis.proposers import candidates, read_candidate
from einc.machines.load import load_machine

MACHINE = load_machine("dgx-h100").ideal()
BARE = "IN: A @ 0; B @ 1\nOUT: A+B @ 0, 1\n"
PREAMBLE = read_preamble(BARE, "p", MACHINE)
SPLIT = "IN: A.1 @ 0 (size: 500 MB); A.2 @ 0 (size: 500 MB); B.1 @ 1 (size: 500 MB); B.2 @ 1 (size: 500 MB)\n"
SPLIT += "OUT: A.1+B.1 @ 0, 1; A.2+B.2 @ 0, 1\nA.1 @ 0 -> 1\nA.1+B.1 @ 1 -> 0\nB.2 @ 1 -> 0\nA.2+B.2 @ 0 -> 1\n"


def propose(*proposers):
    """With proposals alone: the search is over at once."""
    said = []
    found = synthesize(
        PREAMBLE, MACHINE, time_limit=1e-9, proposers=proposers, progress=lambda what, best: said.append(what)
    )
    return found, said


def test_a_split_proposal_is_taken():
    program, splits = read_candidate(SPLIT, PREAMBLE, MACHINE)
    assert splits == {"A": 2, "B": 2}
    found, said = propose(Text(SWAP + "\n---\n" + SPLIT))
    assert "proposal" in said
    assert found.program == program
    assert found.splits == splits


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
    found, _ = propose(Text(text))
    assert found.completion_ms == found.naive_ms
    assert found.splits == {}


def test_a_command_reads_the_preamble_and_writes_programs():
    program = "import sys; text = sys.stdin.read(); print(text); print('A @ 0 -> 1; B @ 1 -> 0; A+B @ 0, 1')"
    command = Command((sys.executable, "-c", program))
    assert read_candidate(command.propose(print_program(PREAMBLE)), PREAMBLE, MACHINE)[1] == {}
    found, said = propose(command)
    assert not [what for what in said if "refused" in what]
    assert found.completion_ms == found.naive_ms


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("/nowhere/proposer",), "cannot be run"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "status 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "longer than"),
        ((sys.executable, "-c", "while True: print('A' * 10**6)"), "more than"),
    ],
)
def test_commands_that_fail_are_left_out(arguments, reason):
    found, said = propose(Command(arguments, seconds=2))
    assert any(reason in what for what in said)
    assert found.completion_ms == found.naive_ms


def test_texts_without_end_are_refused():
    with pytest.raises(ProgramError, match="more than"):
        list(candidates("A" * (1 << 23)))
