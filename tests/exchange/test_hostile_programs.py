"""Hostile texts end in one error, in bounded time and memory."""

import contextlib
import os
import random

import pytest

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.program import Action, Holding, Program, Requirement
from einc.exchange.language.resolve import read_program
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import load_machine
from tests.support.paced import within

HEAD = "IN: A @ 0\nOUT: A @ 1\n"
HOSTILE = {
    "nested parentheses": HEAD + "A @ 0 -> 1 after " + "(" * 100_000,
    "nested waits": HEAD + "A @ 0 -> 1 after (A @ 0" * 50_000,
    "a long line": HEAD + "A @ 0 " * 100_000,
    "a million atoms": lambda: "IN: " + ";".join(f"A{k} @ 0" for k in range(1_000_000)) + "\nOUT: A1 @ 0",
    "a huge aggregate": "IN: A @ 0\nOUT: " + "+".join(f"A{k}" for k in range(100_000)) + " @ 0",
    "many declarations": "IN: A @ 0\n" * 10_000,
    "a huge number": HEAD + "A @ " + "9" * 100_000,
    "a huge size": "IN: A @ 0 (size: " + "9" * 100_000 + " GB)\nOUT: A @ 1",
    "a huge fraction": "IN: A @ 0 (size: 0." + "0" * 100_000 + "1 GB)\nOUT: A @ 1",
    "chains of partitions": f"PARTITIONS: G {{{', '.join(map(str, range(1000)))}}}\n{HEAD}A @ G{' -> G' * 3000}",
    "waits on partitions": f"PARTITIONS: G {{{', '.join(map(str, range(2000)))}}}\n{HEAD}A @ G after (A @ G)",
    "binary": "IN: \x00\x01\x02\ufffd\u202e",
    "only headers": "IN: OUT: GPUS: PARTITIONS:",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_end_in_one_error(name):
    hostile = HOSTILE[name]
    text = hostile() if callable(hostile) else hostile
    with within(10), pytest.raises(ProgramError) as caught:
        read_program(text, "hostile.exprog")
    rendered = caught.value.render()
    assert len(rendered) < 1000
    assert all(letter.isprintable() or letter == "\n" for letter in rendered)


def test_noise_is_refused_or_read_but_never_crashes():
    noise = random.Random(5)
    words = [
        "IN:",
        "OUT:",
        "GPUS:",
        "PARTITIONS:",
        "A",
        "B",
        "0",
        "1",
        "@",
        "->",
        "+",
        ";",
        ",",
        "\n",
        "(",
        ")",
        "{",
        "}",
    ]
    words += ["size", "after", ":", "GB", "1.5", "#", " ", "\x00", "é"]
    for _ in range(400):
        text = " ".join(noise.choices(words, k=noise.randrange(25)))
        if noise.random() < 0.5:
            text = HEAD + text
        with_noise = os.fsdecode(noise.randbytes(20)) if noise.random() < 0.1 else text
        with contextlib.suppress(ProgramError):
            check(read_program(with_noise))


def test_overlapping_aggregates_without_a_partition_end():
    # All 3-subsets of 19 atoms: no partition exists, and to see that takes a search.
    atoms = [f"A{k:02d}" for k in range(19)]
    triples = [(a, b, c) for i, a in enumerate(atoms) for j, b in enumerate(atoms[:i]) for c in atoms[:j]]
    holdings = tuple(Holding(tuple(sorted(triple)), (0,)) for triple in triples)
    program = Program(None, (), holdings, (Requirement(tuple(atoms), (0,)),), (Action(tuple(atoms), 0),))
    with within(30), pytest.raises(ProgramError, match="overlap"):
        check(program)


def test_tens_of_thousands_of_actions_take_seconds():
    machine = load_machine("gb200-nvl72")
    holdings = tuple(Holding((f"x{k}",), (k % 72,), 10**6) for k in range(10_000))
    requirements = tuple(Requirement((f"x{k}",), ((k * 7 + 1) % 72,)) for k in range(10_000))
    actions = tuple(Action((f"x{k}",), k % 72, ((k * 7 + 1) % 72,)) for k in range(10_000) if (k * 6 + 1) % 72)
    with within(10):
        program = Program(None, (), holdings, requirements, actions)
        assert check(program, machine).valid
        assert simulate(program, machine.ideal()).completion_ms > 0
