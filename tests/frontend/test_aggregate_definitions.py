"""Aggregations that a text defines: where they may stand, what is wrong with them, and laws that do not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from einc.errors import ModelError
from einc.frontend import build

HEAD = "model m\ndim n = 5\ndim k = 7\ninput x : f32[n, k]\ninput c : i32[n, k]\n"
SUM = "aggregate plus(a, b) { identity 0; return a + b }\n"
FIRST = "aggregate first((a, i), (b, j)) { identity inf, -1; low = a <= b; return min(a, b), where(low, i, j) }\n"


def message(text: str) -> str:
    with pytest.raises(ModelError) as caught:
        build(HEAD + text + "output q = x + 1.0\n", "m.ein")
    return caught.value.render()


def use(definition: str, call: str = "odd[k](x[n, k])") -> str:
    return message(f"{definition}\ny[n] = {call}\n")


def test_one_name_takes_the_first_of_several_values() -> None:
    pair = "aggregate low((a, i), (b, j)) { identity inf, inf; return min(a, b), "
    pair += "where(a < b, i, where(b < a, j, min(i, j))) }\n"
    graph = build(f"{HEAD}{pair}y[n] = low[k](x[n, k], k)\noutput z[n] = low[k](x[n, k], k) * 2 + y[n]\n", "m.ein")
    assert [len(node.operator.outputs) for node in graph.nodes] == [2, 2, 1]
    assert str(graph.tensors[-1].desc) == "f32[n=5]"


def test_a_block_of_another_file_uses_the_aggregates_of_files(tmp_path: Path) -> None:
    (tmp_path / "mine.ein").write_text(SUM + "block total(x) { y[n] = plus[k](x[n, k]); return y }\n")
    text = f'use "mine.ein"\n{HEAD}y = total(x)\noutput z[n] = plus[k](x[n, k]) + y[n]\n'
    graph = build(text, str(tmp_path / "m.ein"))
    assert [node.operator.title.split("(")[0] for node in graph.nodes][:2] == ["plus", "plus"]


@pytest.mark.parametrize(
    ("definition", "law", "example"),
    [
        ("aggregate odd(a, b) { identity 0; return a - b }", "its identity 0 changes values", "combined with it gives"),
        ("aggregate odd(a, b) { identity 0; return (a + b) / 2 }", "its identity 0 changes values", "alone gives"),
        ("aggregate odd(a, b) { identity 1; return a + b }", "its identity 1 changes values", "for a = "),
        (
            "aggregate odd(a, b) { identity 0; return a + b + 0.5 * a * a * b * b }",
            "not associative",
            "a, (b, c) gives",
        ),
        ("aggregate odd(a, b) { identity 0; return where(a == 0, b, a) }", "not commutative", "b, a gives"),
        (
            "aggregate odd(a, b, exact = true) { identity 0; return a + b }",
            "not associative",
            "leave out `exact = true`",
        ),
    ],
)
def test_a_law_that_does_not_hold_is_shown_by_an_example(definition: str, law: str, example: str) -> None:
    shown = use(definition)
    assert law in shown
    assert example in shown
    assert "m.ein:6" in shown


def test_laws_are_those_of_the_values_that_are_aggregated() -> None:
    """What keeps the first of equal values commutes only as long as positions do not tell which one it was."""
    assert "aggregate 'first' is not commutative" in message(f"{FIRST}y[n], p[n] = first[j](x[n, j], j)\n")
    build(f"{HEAD}{FIRST}y[n], p[n] = first[j](x[n, j], 0 * j)\noutput z = y + 1.0\n", "m.ein")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y[n] = plus[k](x[n, k])\n", "there is no aggregation 'plus'"),
        (f"{SUM}y[n] = pluss[k](x[n, k])\n", "plus"),
        (f"{SUM}y[n] = plus[k](x[n, k], k)\n", "plus aggregates 1 value, found 2"),
        (f"{SUM}y[n], z[n] = plus[k](x[n, k])\n", "expected 2 values, found 1"),
        (f"{SUM}y[n], z[k] = plus[k](x[n, k])\n", "'z[k]' has other indices than 'y'"),
        ("y[n], z[n] = sum[k](x[n, k]) + 1\n", "expected an aggregation of 2 values"),
        (f"{SUM}{SUM}", "'plus' is defined already"),
        ("aggregate sum(a, b) { identity 0; return a + b }\n", "'sum' is an aggregation of the language"),
        ("identity 0\n", "'identity' is allowed in an aggregate only"),
        (
            "block b(x) { aggregate plus(a, b) { identity 0; return a }; return x }\ny = b(x)\n",
            "not allowed in a block",
        ),
        ('aggregate plus(a, b) { identity 0; return a + b }\ny[n] = plus[k]("f32")\n', "expected a tensor"),
        (f"{SUM}h[k, n] = plus[j](x[n, j] * h[k - 1, n, outside = 0])\n", "reads values of a recurrence"),
    ],
)
def test_a_use_that_is_wrong(text: str, expected: str) -> None:
    assert expected in message(text)


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("aggregate odd(a) { identity 0; return a }", "combines two values"),
        ("aggregate odd((a, b), c) { identity 0; return a }", "combines two values"),
        ("aggregate odd(a, a) { identity 0; return a }", "'a' stands twice here"),
        ("aggregate odd(a, b) { identity 0 }", "does not end with 'return'"),
        ("aggregate odd(a, b) { return a + b }", "has 0 values in its identity"),
        ("aggregate odd(a, b) { identity 0, 1; return a + b }", "has 2 values in its identity"),
        ("aggregate odd(a, b) { identity 0; return a, b }", "has 2 values in its return"),
        ("aggregate odd(a, b) { identity 0; a = b; return a }", "definitions of new names"),
        ("aggregate odd(a, b) { identity 0; weight w : f32[n]; return a }", "definitions of new names"),
        ("aggregate odd(a, b) { identity x; return a + b }", "expected a number, found a tensor"),
        ("aggregate odd(a, b) { identity true; return a + b }", "does not fit f32"),
        ("aggregate odd(a, b) { identity 0; return 1 }", "what it makes of its operands"),
        ("aggregate odd(a, b) { identity 0; return a < b }", "returns bool for value 1"),
        ("aggregate odd(a, b) { identity 0; return a + cast(b, \"f64\") }", "add: operand 2 is f64"),
        ("aggregate odd(a, b) { identity 0; return a + x }", "found the tensor 'x'"),
        ("aggregate odd(a, b) { identity 0; return a + odd(a, b) }", "no scalar function 'odd'"),
        ("aggregate odd(a, b, ordered = true) { identity 0; return a + b }", "no property 'ordered'"),
        ("aggregate odd(a, b, exact = 1) { identity 0; return a + b }", "'exact' is true or false"),
        ("aggregate odd(a, b) { identity 0; return a" + " + b" * 1001 + " }", "more than 1,000 operations"),
        (f"aggregate odd(({', '.join(f'a{k}' for k in range(9))}), ({', '.join(f'b{k}' for k in range(9))})) "
         "{ identity 0; return a0 }", "at most 8 values"),
    ],
)  # fmt: skip
def test_a_definition_that_is_wrong(definition: str, expected: str) -> None:
    assert expected in use(definition)
