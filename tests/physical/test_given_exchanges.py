"""A person's own exchange programs in a plan: used where they are right, and refused with the place of the mistake."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from einc.errors import EincError
from einc.exchange.language.printer import print_program
from einc.exchange.language.resolve import read_program
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.machines.load import load_machine
from einc.options import GivenExchange
from einc.report.exchanges import describe_exchange
from einc_runtime.execution.session import Session
from tests.support.layered_model import compile_layers, exchanges_of
from tests.support.preambles import read_preamble

MACHINE = load_machine("dgx-v100").restrict(range(4)).ideal()


@functools.cache
def naive_plan():
    return compile_layers().bundle


@functools.cache
def preamble_of(name="x.0"):
    return describe_exchange(naive_plan(), name)["preamble"]


def relayed():
    """All parts of an atom gather at site 3, whatever the atom, and the sums go out from there by way of site 0."""
    lines = []
    for k in range(1, 5):
        lines += [f"X{k} @ 0 -> 3", f"Y{k} @ 1 -> 3", f"Z{k} @ 2 -> 3", f"A{k}+X{k}+Y{k}+Z{k} @ 3 -> 0 -> {(k - 1)}"]
    return preamble_of() + "\n".join(lines) + "\n"


@functools.cache
def searched(name="x.0"):
    result = synthesize(
        read_preamble(preamble_of(name), name, MACHINE), MACHINE, SynthesisOptions(iterations=0, max_actions=80)
    )
    assert result.splits, "pieces are what this is about"
    return print_program(result.program)


def compile_given(*texts, **options):
    return compile_layers(exchanges=tuple(GivenExchange(name, text, "mine") for name, text in texts), **options)


def run(bundle):
    with Session(bundle, backend="cpu") as session:
        session.load_weights("rand:3")
        session.load("x", np.random.default_rng(5).standard_normal((24, 40)).astype("f4"))
        session.execute()
        return session.offload("y")


@pytest.mark.parametrize("text", [relayed, searched])
def test_a_given_program_is_what_the_plan_does(text):
    compiled = compile_given(("x.1", text()))
    used, before = exchanges_of(compiled), {operation.name: operation.exchange for operation in naive_plan().operations}
    assert [name for name, exchange in used.items() if exchange.author == "user"] == ["x.1"]
    assert used["x.1"].naive_ms == before["x.1"].naive_ms
    assert used["x.1"].bound_ms <= used["x.1"].completion_ms
    body = read_program(text(), "mine", MACHINE).actions
    assert read_program(used["x.1"].program, "plan", MACHINE).actions == body
    assert compiled.remarks[0].startswith("x.1: mine takes ")
    for name in used.keys() - {"x.1"}:
        assert used[name] == before[name]
    np.testing.assert_allclose(run(compiled.bundle), run(naive_plan()), rtol=1e-5)


def test_equal_layers_share_a_program_and_a_name_counts_before_a_pattern():
    compiled = compile_given(("x.*", relayed()), ("x.2", searched()), ("layer.[12].h.?", searched("layer.1.h.1")))
    used = exchanges_of(compiled)
    assert {exchange.author for exchange in used.values()} == {"user"}
    assert used["x.0"] == used["x.1"] != used["x.2"]
    assert used["x.2"].splits
    assert used["layer.1.h.1"] == used["layer.2.h.1"]
    assert len(compiled.remarks) == len(used)


def test_a_program_beside_synthesized_ones_and_of_other_sites():
    """With other sites for the functions, the preamble is another one too: what lies where it is needed is left out."""
    turned = relayed().replace("S1 {0} S2 {1} S3 {2} S4 {3}", "S1 {1} S2 {2} S3 {3} S4 {0}")
    for old, new in (("-> 0 -> 0", "-> 1"), ("-> 0 -> 3", "-> 0"), ("-> 0 -> 2", "-> 3"), ("-> 0 -> 1", "-> 2")):
        turned = turned.replace(old, new)
    turned = turned.replace("A3+X3+Y3+Z3 @ 3 -> 3", "A3+X3+Y3+Z3 @ 3")
    compiled = compile_given(("x.2", turned), schedule="synthesized")
    used = exchanges_of(compiled)["x.2"]
    assert used.author == "user"
    assert used.bound_ms is not None
    (node,) = [operation for operation in compiled.bundle.operations if operation.name == "x.2"]
    assert [function.site for function in node.functions] == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("x.9", lambda text: text, "no operator 'x.9'"),
        ("out*", lambda text: text, "'out*' stands for has an exchange"),
        ("y", lambda text: text, "nothing that has to move"),
        ("x.1", lambda text: text + "A @@ 1", "mine:"),
        (
            "x.1",
            lambda text: text.replace("X1 @ 0 (size: 960 B)", "X1 @ 0 (size: 961 B)"),
            "with 961 B, and in the plan",
        ),
        ("x.1", lambda text: text.replace("X1 @ 0 (size: 960 B)", "X1 @ 1 (size: 960 B)"), "IN has X1 at site 1"),
        ("x.1", lambda text: text.replace("IN:  X1 @ 0 (size: 960 B);\n", "IN: "), "IN lacks X1 @ 0"),
        ("x.1", lambda text: text.replace("@ S1;", "@ S1, 3;"), "OUT has A1+X1+Y1+Z1 at site 3"),
        ("x.1", lambda text: text.replace("OUT: A1+X1+Y1+Z1 @ S1;\n", "OUT: "), "OUT lacks A1+X1+Y1+Z1 @ 0"),
        ("x.1", lambda text: text.replace("X2 @ 0 -> 3\n", ""), "never enabled"),
        ("x.1", lambda text: preamble_of(), "required at site"),
        ("x.1", lambda text: text + "X1+X2 @ 0 -> 1\n", "are parts of different blocks"),
        ("x.1", lambda text: text.replace("S1 {0}", "S9 {0}").replace("@ S1", "@ S9"), "4 function specifications"),
        ("x.1", lambda text: text.replace("GPUS: 0, 1, 2, 3\n", "GPUS: 0, 1, 2\n"), "not among GPUS"),
        ("x.1", lambda text: text.replace("@ 0 -> 3", "@ 0 -> 7"), "no site 7"),
        ("layer.1.h.1", lambda text: text, "layer.1.h.1: IN has"),
    ],
)
def test_what_is_wrong_is_said(name, change, words):
    with pytest.raises(EincError) as caught:
        compile_given((name, change(relayed())))
    assert caught.value.exit_code in (2, 65)
    assert words in caught.value.render()


def test_more_pieces_than_a_block_has_are_refused():
    names = dict.fromkeys(("A1", "X1", "Y1", "Z1"), 300)
    lines = preamble_of().replace("GPUS: 0, 1, 2, 3\n", "").splitlines()
    text = ""
    for line in lines:
        body = line.replace("IN:", "").replace("OUT:", "").strip(" ;")
        atoms = body.split(" @")[0].split("+")
        if set(atoms) <= names.keys():
            pieces = [("+".join(f"{atom}.{k}" for atom in atoms)) for k in range(1, 301)]
            tail = body[body.index(" @") :].replace("960 B", "3 B")
            head = line[: line.index(body)]
            line = head + "; ".join(piece + tail for piece in pieces) + ";"
        text += line + "\n"
    with pytest.raises(EincError, match=r"its block \[0:6, 0:40\] can be cut into 240"):
        compile_given(("x.0", text))
