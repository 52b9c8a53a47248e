"""Hostile texts are read or end in a clear error, in bounded time and memory and without a traceback."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.errors import MAX_FINDINGS, ModelError
from einc.frontend import build, limits
from einc.frontend.parser import parse
from einc.graph.graph import verify_graph
from tests.support.paced import within
from tests.support.property_examples import examples
from tests.support.sampling import one_in

HEAD = "dim n = 4\ninput x : f32[n]\n"


def long_texts(many: int, some: int) -> dict[str, str]:
    """Texts with `many` or `some` of everything that there may be too much of."""
    return {
        "parentheses": f"y = {'(' * many}x{')' * many}",
        "open parentheses": f"y = {'(' * many}",
        "closing parentheses": f"y = {')' * some}",
        "brackets": f"param p = {'[' * some}{']' * some}",
        "braces": "repeat 1 {" * some,
        "closing braces": "}" * some,
        "calls": f"y = {'relu(' * some}x{')' * some}",
        "sum": f"y = {' + '.join(['x'] * many)}",
        "equation": f"y[i] = {' + '.join(['x[i]'] * some)}",
        "constant sum": f"param p = {' + '.join(['1'] * some)}\ny = x * p",
        "minus": f"y = {'-' * many}x",
        "powers": f"y = {' ** '.join(['x'] * many)}",
        "comparisons": f"y = {' < '.join(['x'] * some)}",
        "name": f"{'y' * many} = x",
        "integer": f"param p = {'9' * many}",
        "float": f"param p = 0.{'9' * many}",
        "exponent": "param p = 1e999999999",
        "string": f'weight w : f32[n] from "{"w" * many}"',
        "arguments": f"y = relu({', '.join(['x'] * some)})",
        "indices": f"y[i] = x[{', '.join(['i'] * some)}]",
        "rank": f"input z : f32[{', '.join(['n'] * some)}]",
        "params in a row": "".join(f"param p{k} = p{k + 1}\n" for k in range(some // 4)) + f"param p{some // 4} = 1",
        "params in a circle": "".join(f"param p{k} = p{(k + 1) % (some // 4)}\n" for k in range(some // 4)),
        "undefined names": "y = " + " + ".join(f"x{k}" for k in range(many)),
        "errors": "y = = x\n" * some,
        "blocks in a row": "".join(f"block b{k}(x) {{ return b{k + 1}(x) }}\n" for k in range(1_000)) + "y = b0(x)",
        "doubling blocks": "block b0(x) { return x }\n"
        + "".join(f"block b{k + 1}(x) {{ return b{k}(b{k}(x)) }}\n" for k in range(40)) + "y = b40(x)",
        "blocks in deep bodies": "".join(
            f"block b{k}(x) {{ {'repeat 1 { ' * 22}x = {'relu(' * 22}b{k + 1}(x){')' * 22} {'}' * 22}; return x }}\n"
            for k in range(90)
        ) + "y = b0(x)",
        "blocks in deep equations": "".join(
            f"block b{k}(x) {{ y[] = {'max[i](' * 22}b{k + 1}(x)[i]{' + x[i])' * 22}; return y }}\n" for k in range(90)
        ) + "y = b0(x)",
        "nested repeats": "repeat 100 {" * 40 + "}" * 40,
        "outer products": "y[a, b, c, d, e] = " + " * ".join(f"x[{i}]" for i in "abcde") + "\n" + "".join(
            f"z{k}[{', '.join(f'i{k}_{j}' for j in range(40))}] = "
            + " * ".join(f"x[i{k}_{j}]" for j in range(40)) + "\n"
            for k in range(3)
        ),
        "NUL bytes": "\0" * 1000,
        "control characters": "".join(map(chr, range(32))) * 100,
        "surrogates and beyond": "y = \U0001f600 + \u202e\ufeff\u2028x",
        "empty": "",
        "spaces": " " * some + "\n" * some,
        "separators": ";" * some,
        "comment": "#" * some,
    }  # fmt: skip


LONG = long_texts(5_000, 3_500)


@pytest.mark.parametrize("kind", one_in(3, LONG))
def test_long_texts_end_in_an_error_that_fits_a_terminal(kind: str) -> None:
    check_long_text(LONG[kind], 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_longer_texts_do_so_too(kind: str) -> None:
    check_long_text(long_texts(30_000, 20_000)[kind], 20)


def check_long_text(text: str, seconds: float) -> None:
    with within(seconds):
        with pytest.raises(ModelError) as caught:
            build(HEAD + text, "long.ein")
        message = caught.value.render()
    assert len(message) < 30_000
    assert len(caught.value.diagnostics) <= MAX_FINDINGS + 1
    assert "Traceback" not in message


@pytest.mark.parametrize("value", ["list", "text"])
@pytest.mark.parametrize(
    "call",
    ["matmul(x, V)", "add(x, V)", "where(x, V, x)", "cast(x, V)", "sum(x, V)", "softmax(x, over=V)", "topk(x, V)",
     "rope(x, positions=V)", "rope(x, scaling=V)", "reshape(x, a=V)", "slice(x, n=V)", "concat(x, x, over=V)",
     "transpose(x, dims=V)", "rmsnorm(x, x, eps=V)", "meanpool(V, x)", "V + x", "relu(V)"],
)  # fmt: skip
def test_what_a_long_value_is_refused_with_is_short(call: str, value: str) -> None:
    params = 'param list = [12345] * 90000\nparam text = "ab" * 4000\n'
    with pytest.raises(ModelError) as caught:
        build(f"{HEAD}{params}output y = {call.replace('V', value)}\n", "long.ein")
    assert len(caught.value.render()) < 400


def test_a_sum_of_many_terms_is_a_model() -> None:
    terms = 2_000
    graph = build(HEAD + f"output y = {' + '.join(['x'] * terms)}\n", "sum.ein")
    assert len(graph.nodes) == terms - 1
    assert graph.outputs == ("y",)


def test_nesting_within_the_limit_is_no_error() -> None:
    most = limits.NESTING - 2
    graph = build(HEAD + f"output y = {'relu(' * most}x{')' * most}\n", "deep.ein")
    assert len(graph.nodes) == most
    build(HEAD + f"output y = {'(' * most}x{')' * most} + x\n", "deep.ein")


def test_a_long_text_is_refused_before_it_is_parsed() -> None:
    text = "#" * (limits.TEXT_CHARACTERS + 1)
    with pytest.raises(ModelError, match="longer than"):
        parse(text, "big.ein")


def test_a_byte_order_mark_and_foreign_line_ends_are_read() -> None:
    plain = "dim n = 4\ninput x : f32[n]\ny = relu(\n  x)\noutput y\n"
    for text in (plain, plain.replace("\n", "\r\n"), plain.replace("\n", "\r"), plain.rstrip("\n")):
        for mark in ("", "\ufeff"):
            assert parse(mark + text, "m.ein") == parse(plain, "m.ein")


VALID = (Path(__file__).parent / "good.ein").read_text(encoding="utf-8")


@pytest.mark.parametrize("position", range(0, len(VALID), 47))
def test_every_truncation_is_read_or_refused(position: int) -> None:
    read_or_refuse(VALID[:position])


def read_or_refuse(text: str) -> None:
    """Nothing but a graph or a ModelError may come of any text."""
    with contextlib.suppress(ModelError):
        verify_graph(build(text, "any.ein"))


PIECES = st.sampled_from(
    [
        "model ",
        "param ",
        "dim ",
        "input ",
        "weight ",
        "output ",
        "block ",
        "repeat ",
        "preset ",
        "return ",
        "as ",
        "from ",
        "n",
        "x",
        "y",
        "i",
        "f32",
        "relu",
        "matmul",
        "sum",
        "max",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "=",
        "==",
        "+",
        "-",
        "*",
        "**",
        "/",
        "//",
        "%",
        "<",
        "1",
        "2.5",
        "10**10",
        '"',
        '"w{i}"',
        "true",
        "\n",
        ";",
        "#",
        " ",
        "\x00",
        "é",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join))
@examples(150)
def test_any_mixture_of_tokens_is_read_or_refused(text: str) -> None:
    read_or_refuse(HEAD + text)


@given(st.data())
@examples(60)
def test_a_model_with_random_damage_is_read_or_refused(data: st.DataObject) -> None:
    text = VALID
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(PIECES) + text[stop:]
    read_or_refuse(text)
