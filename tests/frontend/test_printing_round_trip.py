"""Printing and parsing: the text of any AST parses to that AST, and printing is stable."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.frontend import ast
from einc.frontend.parser import parse
from einc.frontend.printer import print_expression, print_model
from tests.support.property_examples import examples

WORDS = {
    "model", "param", "dim", "input", "weight", "output", "return", "block", "repeat", "preset",
    "from", "as", "true", "false", "use",
}  # fmt: skip
INFIX = ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">="]

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True).filter(lambda n: n not in WORDS).map(ast.Name)
strings = st.text(st.characters(blacklist_characters='"\n\r', blacklist_categories=["Cs"]), max_size=12).map(
    ast.LiteralExpr
)
literals = (
    st.integers(0, 2**63 - 1).map(ast.LiteralExpr)
    | st.floats(0, allow_nan=False, allow_infinity=False).map(lambda x: ast.LiteralExpr(abs(x)))
    | st.booleans().map(ast.LiteralExpr)
    | strings
)


def lists(items: st.SearchStrategy, least: int = 0) -> st.SearchStrategy:
    return st.lists(items, min_size=least, max_size=3).map(tuple)


def chains(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Operators in operators, on both sides: where parentheses matter."""
    infix = st.sampled_from(INFIX)
    pairs = st.builds(ast.BinaryExpr, infix, inner, inner)
    return st.builds(ast.BinaryExpr, infix, pairs | st.builds(ast.NegativeExpr, pairs), pairs | inner)


def items(inner: st.SearchStrategy) -> st.SearchStrategy:
    """What stands between the commas of brackets."""
    of_dimension = st.builds(ast.IndexItem, inner, names)
    with_extent = st.builds(ast.IndexItem, names, st.none() | names, inner)
    return lists(st.builds(ast.IndexItem, names | inner) | of_dimension | with_extent | st.just(ast.IndexItem(None)))


def larger(inner: st.SearchStrategy) -> st.SearchStrategy:
    calls = st.builds(ast.CallExpr, names, lists(inner), lists(st.builds(ast.KeywordArgument, names, inner)))
    return (
        lists(inner).map(ast.ListExpr)
        | st.builds(ast.NegativeExpr, inner)
        | chains(inner)
        | calls
        | st.builds(ast.IndexedExpr, inner, items(inner))
        | st.builds(ast.AggregateExpr, names, items(inner), inner)
    )


expressions = st.recursive(names | literals, larger, max_leaves=12)
assigns = st.builds(ast.AssignStmt, lists(names, 1), expressions)
equations = st.builds(ast.EquationStmt, names, items(expressions), expressions)
simple = st.one_of(
    st.builds(ast.ModelDecl, names),
    st.builds(ast.ParamDecl, names, expressions),
    st.builds(ast.DimDecl, names, expressions),
    st.builds(ast.InputDecl, names, names, items(expressions)),
    st.builds(ast.WeightDecl, names, names, items(expressions), st.none() | strings),
    assigns,
    equations,
    st.builds(ast.OutputStmt, lists(names, 1)),
    st.builds(lambda n, e: ast.OutputStmt((n,), ast.AssignStmt((n,), e)), names, expressions),
    equations.map(lambda e: ast.OutputStmt((e.target,), e)),
    st.builds(ast.ReturnStmt, lists(expressions, 1)),
    st.builds(ast.UseStmt, strings),
)


def with_bodies(inner: st.SearchStrategy) -> st.SearchStrategy:
    return (
        st.builds(ast.BlockDecl, names, lists(st.builds(ast.Parameter, names, st.none() | expressions)), lists(inner))
        | st.builds(ast.RepeatStmt, expressions, st.none() | names, lists(inner))
        | st.builds(ast.PresetDecl, names, lists(inner))
    )


models = st.lists(st.recursive(simple, with_bodies, max_leaves=4), max_size=5).map(lambda s: ast.ModelSyntax(tuple(s)))


@given(models)
@examples(50)
def test_parsing_what_was_printed_gives_the_same_model(model: ast.ModelSyntax) -> None:
    text = print_model(model)
    again = parse(text, "printed.ein")
    assert again == model
    assert print_model(again) == text


@given(expressions)
@examples(200)
def test_parsing_a_printed_expression_gives_the_same_expression(expression: ast.Expression) -> None:
    statement = parse(f"y = {print_expression(expression)}", "printed.ein").statements[0]
    assert statement == ast.AssignStmt((ast.Name("y"),), expression)


@pytest.mark.parametrize("path", sorted(Path("models").glob("*.ein")), ids=lambda p: p.stem)
def test_shipped_models_survive_printing(path: Path) -> None:
    model = parse(path.read_text(encoding="utf-8"), str(path))
    assert parse(print_model(model), "printed.ein") == model


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("((a + b)) + c", "a + b + c"),
        ("a + (b + c)", "a + (b + c)"),
        ("(a - b) * -c ** -d ** e", "(a - b) * -c ** -d ** e"),
        ("(-a) ** b", "(-a) ** b"),
        ("(a ** b) ** c", "(a ** b) ** c"),
        ("-(-a)", "--a"),
        ("-(a * b)", "-(a * b)"),
        ("(a < b) == (c < d)", "(a < b) == (c < d)"),
        ("((a + b) * c + d) / e", "((a + b) * c + d) / e"),
        ("(f(x,))[i,]", "f(x)[i]"),
        ("(a + b)[i]", "(a + b)[i]"),
        ("1_000 + 1.50 + 1e3", "1000 + 1.5 + 1000.0"),
    ],
)
def test_parentheses_stand_where_they_must(text: str, printed: str) -> None:
    statement = parse(f"y = {text}", "t.ein").statements[0]
    assert isinstance(statement, ast.AssignStmt)
    assert print_expression(statement.value) == printed


def test_one_and_one_point_zero_and_true_are_three_literals() -> None:
    integer, point, true = map(ast.LiteralExpr, (1, 1.0, True))
    assert integer != point != true != integer
    assert len({integer, point, true}) == 3


def test_a_long_sum_prints_and_parses() -> None:
    text = "y = " + " + ".join(["a"] * 5_000) + "\n"
    assert print_model(parse(text, "t.ein")) == text
