"""The text of an exchange program: its syntax tree, and the message for every text that is refused."""

import pytest

from einc.errors import ProgramError
from einc.exchange.language.parser import parse
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Action, Holding, Requirement
from einc.exchange.language.resolve import read_program, resolve
from einc.machines.load import load_machine
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, PREAMBLE, SWAP

HEAD = "IN: A @ 0; B @ 0; A.1 @ 0; A.2 @ 0\nOUT: A @ 0\n"


def actions(body, head=HEAD):
    return read_program(head + body).actions


@pytest.mark.parametrize(("text", "count"), [(SWAP, 4), (DOUBLING, 12), (CUBE_MESH, 24)])
def test_the_papers_listings_parse_as_printed(text, count):
    program = read_program(text, machine=load_machine("dgx-v100"))
    assert len(program.actions) == count
    assert read_program(print_program(program), machine=load_machine("dgx-v100")) == program


def test_the_papers_preamble_parses_as_printed():
    tree = parse(PREAMBLE)
    assert [(p.name, p.size, p.members) for p in tree.partitions] == [(f"S{k}", 1, None) for k in (1, 2, 3, 4)]
    assert len(tree.holdings) == 8
    assert tree.requirements[2].requirement == Requirement(("X3", "Y3"), ("S3",))


def test_the_swap_in_full():
    program = read_program(SWAP)
    assert program.gpus is None
    assert program.holdings == (Holding(("A",), (0,), 10**9), Holding(("B",), (1,), 10**9))
    assert program.requirements == (Requirement(("A", "B"), (0, 1)),)
    assert program.actions == (
        Action(("A",), 0, (1,)), Action(("B",), 1, (0,)), Action(("A", "B"), 0), Action(("A", "B"), 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("B+A @ 0", [Action(("A", "B"), 0)]),
        ("A @ 0 -> 3, 1, 2", [Action(("A",), 0, (1, 2, 3))]),
        ("A @ 0 -> 1, 1", [Action(("A",), 0, (1,))]),
        ("A @ 0 -> 0", [Action(("A",), 0)]),
        ("A @ 0, 1 -> 1, 0", [Action(("A",), 0, (1,)), Action(("A",), 1, (0,))]),
        ("A @ 0 -> 1 -> 2", [Action(("A",), 0, (1,)), Action(("A",), 1, (2,))]),
        ("A @ 0 -> 1, 2 -> 2, 3", [Action(("A",), 0, (1, 2)), Action(("A",), 1, (2, 3)), Action(("A",), 2, (3,))]),
        ("A @ 0 -> 1; A @ 0 -> 1\nA @ 0 -> 1, 2", [Action(("A",), 0, (1,)), Action(("A",), 0, (1, 2))]),
        ("A @ 0 -> 1,\n  2;\nB @ 0 # no arrow\n# nothing\nB @ 0 -> 1", [
            Action(("A",), 0, (1, 2)), Action(("B",), 0), Action(("B",), 0, (1,))]),
        ("A.2 @ 0 -> 1 after (A.1 @ 0 -> 1)", [Action(("A.2",), 0, (1,), (Action(("A.1",), 0, (1,)),))]),
        ("A @ 0 -> 1 -> 2 after (B @ 0;\n A @ 3 -> 0 -> 1)", [
            Action(("A",), s, (d,), (Action(("A",), 0, (1,)), Action(("A",), 3, (0,)), Action(("B",), 0)))
            for s, d in ((0, 1), (1, 2))]),
    ],
)  # fmt: skip
def test_what_a_statement_stands_for(body, expected):
    assert list(actions(body)) == expected


def test_partitions_stand_for_their_members_and_keep_their_names_in_out():
    program = read_program(
        "PARTITIONS: G1 {3, 1}\n G2 {0}; G3 {2}\nIN: A @ 0\nOUT: A @ G1, 2\nA @ G2 -> G1, 2; A @ 0, G3"
    )
    assert [p.members for p in program.partitions] == [(3, 1), (0,), (2,)]
    assert program.requirements == (Requirement(("A",), ("G1", 2)),)
    assert program.actions == (Action(("A",), 0, (1, 2, 3)), Action(("A",), 0), Action(("A",), 2))


@pytest.mark.parametrize(
    ("size", "expected"),
    [("1.0 GB", 10**9), ("1024 B", 1024), ("0.5 KB", 500), ("2.25 MB", 2_250_000), ("0.000000001GB", 1)],
)
def test_sizes_are_powers_of_ten(size, expected):
    assert read_program(f"IN: A+B @ 0, 2 (size: {size})\nOUT: A+B @ 2").holdings[0] == Holding(
        ("A", "B"), (0, 2), expected
    )


def test_words_of_the_language_are_names_elsewhere():
    program = read_program("IN: IN @ 0; B @ 0; size @ 0; after @ 0; GPUS @ 0\nOUT: IN+OUT @ 0\nafter @ 0 -> 1")
    assert [holding.aggregate[0] for holding in program.holdings] == ["IN", "B", "size", "after", "GPUS"]
    assert program.actions == (Action(("after",), 0, (1,)),)


def test_a_declaration_ends_at_a_blank_line_or_without_a_semicolon():
    assert actions("A @ 0 -> 1", "IN: A @ 0;\nOUT: A @ 1;\n\n") == actions("A @ 0 -> 1", "IN: A @ 0\nOUT: A @ 1\n")
    assert len(read_program("IN: A @ 0;\n# between\n B @ 1\nOUT: A @ 0\r\nB @ 1 -> 0\r\n").holdings) == 2


REFUSED = {
    "": "no IN: declaration",
    "IN: A @ 0": "no OUT: declaration",
    "IN: A @ 0\nOUT: A @ 1\nIN: A @ 0\n": "IN is declared twice",
    "IN:\nA @ 0\nOUT: A @ 1": "unexpected the end of the line; expected a name",
    "IN: A @ 0\nOUT: A @ 1;\nA @ 0 -> 1": "unexpected '->'",
    "IN: A @ 0\nOUT: A+A @ 1": "A stands twice",
    "IN: A @ 0 (size: 3 GiB)\nOUT: A @ 1": "GiB is not a unit",
    "IN: A @ 0 (size: 0 B)\nOUT: A @ 1": "whole number of bytes",
    "IN: A @ 0 (size: 0.5 B)\nOUT: A @ 1": "whole number of bytes",
    "IN: A @ 0 (size: 1e3 B)\nOUT: A @ 1": "unexpected 'B'; expected ')'",
    "IN: A @ 0 (size: -1 B)\nOUT: A @ 1": "unexpected '-'",
    "IN: A @ G\nOUT: A @ 1": "unexpected 'G'; expected a site number",
    "IN: A @ 0\nOUT: A @ G\n": "there is no partition G",
    "IN: A @ 0\nOUT: A @ 0\nA @ 0 ->\n1": "expected a name or a site number",
    "IN: A @ 0\nOUT: A @ 0\nA @ 0 -> 1 after (A @ 0 after (A @ 0))": "unexpected 'after'",
    "IN: A @ 0\nOUT: A @ 0\nA @ 0 -> 1 after ()": "unexpected ')'",
    "GPUS: 0, 1\nIN: A @ 2\nOUT: A @ 0": "site 2 is not among GPUS",
    "GPUS: 0, 1, 0\nIN: A @ 0\nOUT: A @ 0": "names a site twice",
    "GPUS: 0, 1\nIN: A @ 0\nOUT: A @ 0\nA @ 0 -> 5": "site 5 is not among GPUS",
    "GPUS: 0, 1\nIN: A @ 0\nOUT: A @ 0\nA @ 0 after (A @ 5)": "site 5 is not among GPUS",
    "PARTITIONS: G {0, 1} H {1, 2}\nIN: A @ 0\nOUT: A @ 0": "both have site 1",
    "PARTITIONS: G {0} G {1}\nIN: A @ 0\nOUT: A @ 0": "G is declared twice",
    "GPUS: 0\nPARTITIONS: G {size 0}\nIN: A @ 0\nOUT: A @ 0": "G has no sites",
    "GPUS: 0, 1\nPARTITIONS: G {size 2} H {1}\nIN: A @ 0\nOUT: A @ 0": "need 2 sites, and 1 are left",
    "PARTITIONS: G {size 2}\nIN: A @ 0\nOUT: A @ G": "needs to know the sites",
    "GPUS: 0, 1, 2, 3, 4, 5, 6, 7, 8\nPARTITIONS: G {size 2}\nIN: A @ 0\nOUT: A @ G": "must be written out",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_and_why(text):
    with pytest.raises(ProgramError) as caught:
        read_program(text, "bad.exprog")
    assert REFUSED[text] in caught.value.message
    assert "bad.exprog" in caught.value.render()


def test_an_error_points_at_its_place():
    with pytest.raises(ProgramError) as caught:
        read_program("IN: A @ 0\nOUT: A @ 1\n  A @ 0 = 1\n", "p.exprog")
    assert caught.value.render().splitlines() == [
        "p.exprog:3:9: unexpected '='; expected ',', '->', ';', '<=', '=>', 'after', a new line or the end",
        "      A @ 0 = 1",
        "            ^",
    ]


def test_a_site_that_the_machine_lacks():
    with pytest.raises(ProgramError, match="no site 8 on dgx-a100: it has 8 sites"):
        resolve(parse("IN: A @ 0\nOUT: A @ 8\n"), load_machine("dgx-a100"))
