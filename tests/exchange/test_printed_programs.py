"""Printed programs are read as by the grammar, whatever is changed in them; what is not as printed is left to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einc.errors import ProgramError
from einc.exchange.language.parser import parse, read_by_grammar
from einc.exchange.language.printed import read_printed
from einc.exchange.language.printer import print_program
from einc.exchange.language.resolve import read_program
from einc.exchange.language.syntax import ProgramSource
from einc.machines.load import load_machine
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, SWAP

TEXTS = [print_program(read_program(text, machine=load_machine("dgx-v100"))) for text in (SWAP, DOUBLING, CUBE_MESH)]
PIECES = ("", " ", "\n", ";", ",", "+", "@", "->", "after", "size", "0", "7", "9999999", "A", "A+A", "#", "\r", "\n\n",
          "{", "}", "(", ":", "GPUS: 0\n", "(size: 0 B)", " after (A @ 0)", "1.5", "\u0661", "\t")  # fmt: skip


def with_places(tree):
    """Places are no part of equality."""
    return (
        tree,
        tree.gpus_place,
        [e.place for e in (*tree.partitions, *tree.holdings, *tree.requirements, *tree.actions)],
    )


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_printed_needs_no_grammar(text):
    tree = read_printed(ProgramSource("f", text))
    assert tree is not None
    assert with_places(tree) == with_places(read_by_grammar(ProgramSource("f", text)))


@settings(max_examples=400)
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 3), st.sampled_from(PIECES)), max_size=2),
)
def test_a_changed_text_is_read_as_by_the_grammar_or_left_to_it(text, changes):
    for at, gone, piece in changes:
        at %= len(text)
        text = text[:at] + piece + text[at + gone :]
    source = ProgramSource("f", text)
    tree = read_printed(source)
    if tree is not None:
        assert with_places(tree) == with_places(read_by_grammar(source))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("A @ 0", "A+A @ 0"), ("-> 1", "-> 1000000"), ("1 GB", "0 B"), ("1 GB", "9999999999 GB"), ("1 GB", "1 PB"),
        ("OUT", "IN"), ("OUT: ", "OUT: A @ 0\nOUT: "), ("IN: ", "GPUS: 0, 0\nIN: "), ("A @ 0", "@ 0"),
    ],
)  # fmt: skip
def test_what_the_grammar_refuses_is_left_to_it(before, after):
    text = TEXTS[0].replace(before, after)
    assert text != TEXTS[0]
    assert read_printed(ProgramSource("f", text)) is None
    with pytest.raises(ProgramError):
        parse(text, "f")
