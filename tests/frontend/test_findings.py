"""The findings of every bad model under `bad/`: where they stand, what they name, and what they advise.

A golden file has a line per finding: its place, what its message quotes, and what its hint quotes. So it holds what was
found and expected, and no wording. `pytest --update-golden` writes these files. One whole text, `syntax.txt`, shows how
findings look.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from einc.errors import Diagnostic, ModelError
from einc.frontend import build
from einc.frontend.findings import FOREIGN_CALLS

BAD = sorted((Path(__file__).parent / "bad").glob("*.ein"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_findings_of_bad_models(path: Path, update_golden: bool) -> None:
    with pytest.raises(ModelError) as caught:
        build(path.read_text(encoding="utf-8"), path.name)
    rendered = caught.value.render() + "\n"
    text = rendered if path.stem == "syntax" else "".join(f"{summarize(d)}\n" for d in caught.value.diagnostics)
    golden = path.with_suffix(".txt")
    if update_golden:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    assert len(rendered.splitlines()) <= 75, "more than a screen"


def summarize(diagnostic: Diagnostic) -> str:
    """The place of a finding, the facts of its message, and those of its hint."""
    assert diagnostic.span is not None
    location = f"{diagnostic.span.line}:{diagnostic.span.column}-{diagnostic.span.end_column}"
    hint = "" if diagnostic.hint is None else f" | hint: {facts(diagnostic.hint)}"
    return f"{location}: {facts(diagnostic.message)}{hint}"


def facts(text: str) -> str:
    """What a text quotes, its numbers and the words that connect them; the whole text if it quotes nothing."""
    words = "expected|found|defined|already|twice|given|not|no|only|must|most|more|operator|block|index|name"
    pattern = rf"""`[^`]+`|'[^']+'(?!\w)|"[^"]+"|\w+\[[^]]*\]|[-\d][\d,.*]+|\d|\b(?:{words})\b"""
    matches = re.findall(pattern, text)
    return " ".join(matches) if any(not word.isalpha() for word in matches) else text


def messages(text: str, **options: object) -> list[str]:
    """All findings of a model as `line: message`."""
    with pytest.raises(ModelError) as caught:
        build(text, "m.ein", **options)  # type: ignore[arg-type]
    return [f"{d.span.line if d.span else 0}: {d.message}" for d in caught.value.diagnostics]


def test_a_block_is_defined_once() -> None:
    text = "block twice(a) { return a }\n"
    assert messages(f"dim n = 2\ninput x : f32[n]\n{text * 2}output y = twice(x)")[0].startswith("4: ")


def test_lists_are_no_elements() -> None:
    text = "dim n = 2\nparam some = [1, 2]\ninput x : f32[n]\ny[i] = x[i] * some\noutput y"
    assert messages(text) == ["4: expected a number, found a list of 2 items"]


@pytest.mark.parametrize(
    ("statement", "column", "shown"),
    [
        ("y[i] = sum[j](c[i, j, k])", 15, "index 'k' stands only on the right of '='"),
        ("y = relu(unbind(c))", 10, "expected one value, found a call that returns 3"),
        ('y = softmax(x, over="n", over="n")', 26, "argument 'over' is given twice"),
        ("y[i] = x[i] + relu([1, 2])", 20, "relu: operand 1 is [1, 2], not a tensor or number"),
    ],
)
def test_the_part_at_fault_is_pointed_at(statement: str, column: int, shown: str) -> None:
    head = "dim n = 2\ndim m = 3\ninput x : f32[n]\ninput c : f32[n, m, n]\nblock unbind(a) { return a, a, a }\n"
    with pytest.raises(ModelError) as caught:
        build(f"{head}{statement}\noutput y", "m.ein")
    first = caught.value.diagnostics[0]
    assert (first.message, first.span and (first.span.line, first.span.column)) == (shown, (6, column))


def test_an_unknown_character_is_shown_as_text() -> None:
    assert messages("dim n = 4\x1a\n") == ["1: unexpected character '\\x1a'"]


def test_what_no_plan_can_hold_is_no_name() -> None:
    """Plans have printable names of at most 1024 characters."""
    head = "dim n = 2\ninput x : f32[n]\n"
    for stored in ("\x1b[31m", "", "w" * 1001, "{i}" * 600):
        text = head + f'repeat 11 as i {{ weight w : f32[n] from "{stored}"; x = x + w }}\noutput y = x'
        assert all("name" in message and message.startswith("3: ") for message in messages(text))
    assert messages(head + f'weight w : f32[n] from "{"w" * 1001}"\noutput y = x + w') == [
        "3: this name has more than 1,000 characters"
    ]
    names = [f"{'b' * 98}{k:02}" for k in range(12)]
    calls = [f"block {a}(x) {{ return {b}(x) }}\n" for a, b in itertools.pairwise(names)]
    for body in ("weight w : f32[n]; return x + w", "return relu(softmax(x))"):
        text = head + "".join(calls) + f"block {names[-1]}(x) {{ {body} }}\noutput y = {names[0]}(x)"
        assert all("a name of 1,2" in message for message in messages(text))


def test_a_name_of_an_iteration_is_pointed_to() -> None:
    text = "dim n = 2\ninput x : f32[n]\nrepeat 2 {\n  h = relu(x)\n}\noutput y = h"
    with pytest.raises(ModelError) as caught:
        build(text, "m.ein")
    assert "local to the repeat around line 4" in (caught.value.hint or "")


@pytest.mark.parametrize("number", ["500_", "1__0", "1e5_", "1_.5", "7_x"])
def test_underscores_stand_between_digits_only(number: str) -> None:
    (message,) = messages(f"model m\ndim n = {number}\ninput x : f32[n]\noutput y = relu(x)\n")
    assert message.startswith(("2: expected", "2: unexpected character"))
    assert not messages("model m\ndim n = 1_000\ninput x : f32[n]\noutput y = relu(z)\n")[0].startswith("2")


def test_what_hints_propose_is_the_language() -> None:
    text = """
dim nodes = 3
dim edges = 5
dim width = 2
input x  : f32[edges, width]
input u  : f32[edges]
input to : i64[edges]
input at : i64[nodes]
input place : i64[edges]
input zeros : f32[nodes, width]
weight w : f32[width, width]
scattered[n, width] = sum[e](where(to[e] == at[n], x[e, width], 0.0))
running[i] = sum[j](where(place[j] <= place[i], u[j], 0.0))
convolved = matmul(slice(x, edges=[1, 4]), w)
clipped = clip(x, 0.0, 1.0)
angle = atan2(u, u) + atan(u) + round(u) + trunc(u)
bits = bitxor(bitor(bitand(to, place), to), shiftright(shiftleft(to, place), 2))
hit = cast(u > 0.0, "f32")
masked = softmax(where(u > 0.0, u, -1e30))
padded = concat(x, zeros, over="edges")
""" + "".join(
        f"output {name}\n"
        for name in ["scattered", "running", "convolved", "clipped", "angle", "bits", "hit", "masked", "padded"]
    )
    assert len(build(text, "m.ein").outputs) == 9


def test_hints_name_what_the_user_can_write() -> None:
    def hint(statement: str) -> str:
        with pytest.raises(ModelError) as caught:
            build(f"dim n = 4\ndim m = 2\ninput x : f32[n, n]\ninput q : f32[m, n, n]\n{statement}", "m.ein")
        return caught.value.hint or ""

    assert hint("output y = slice(x, b=[0, 2])") == "its dimensions are n, n"
    assert hint("output y = slice(x, n=[0, 2])") == "name the dimensions apart with an index equation"
    assert hint("output y = attention(q, q, q, windows=3)").endswith("softcap, mask, positions, blocks, spans")


@pytest.mark.parametrize("name", FOREIGN_CALLS)
def test_functions_of_other_libraries_get_their_hint(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(f"dim n = 2\ninput x : f32[n]\noutput y = {name}(x)", "m.ein")
    assert caught.value.diagnostics[0].hint == FOREIGN_CALLS[name]
