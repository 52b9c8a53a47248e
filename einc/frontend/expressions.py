"""The values of expressions outside index equations.

Where no tensor is involved, an expression is computed here; where one is, its operators go into the graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from einc.core.tensor import TensorDesc
from einc.errors import SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.ast import unfold_chain
from einc.frontend.constants import Static
from einc.frontend.findings import Findings, evaluate_each

INFIX = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
    "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
"""The operator of the library that each infix operator stands for."""
NEGATION = "neg"


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor of the graph, by name."""

    name: str
    desc: TensorDesc


@dataclass(frozen=True, slots=True)
class MultipleResults:
    """The results of a call that returns several values.

    With `first_stands_for_all`, as for operators and the library's blocks, the first result is used where one value is
    asked for. The results of any other block must all be named.
    """

    values: tuple[Static | TensorValue, ...]
    first_stands_for_all: bool = False


Value = Static | TensorValue


@dataclass(frozen=True, slots=True)
class EvaluatedCall:
    """A call with its arguments evaluated. `result_names` are the preferred names of its results, if it has any."""

    function: str
    arguments: tuple[Value, ...]
    keywords: Mapping[str, Value]
    syntax: ast.Expression
    result_names: tuple[str, ...] = ()

    def span_of(self, argument: int | str | None) -> SourceSpan:
        """Where an argument stands, by position or keyword; the whole call if it has no such argument."""
        match self.syntax:
            case ast.CallExpr(arguments=arguments, keywords=keywords):
                if isinstance(argument, int) and 0 <= argument < len(arguments):
                    return arguments[argument].span
                return next((k.span for k in keywords if k.name.text == argument), self.syntax.span)
            case ast.BinaryExpr(left=left, right=right):
                return left.span if argument == 0 else right.span if argument == 1 else self.syntax.span
            case _:
                return self.syntax.span


@dataclass(slots=True, kw_only=True)
class EvaluationContext(ABC):
    """What the evaluation of expressions needs: the meaning of names and calls, and where errors are collected."""

    findings: Findings
    depth: int = 0

    @abstractmethod
    def look_up(self, name: ast.Name) -> Value:
        """The value of a name. Reports a name without one, and raises AlreadyReported."""

    @abstractmethod
    def apply(self, call: EvaluatedCall) -> Value | MultipleResults:
        """The results of a call of an operator or block. Reports a call that fails, and raises AlreadyReported."""

    def enter(self, span: SourceSpan) -> None:
        """Goes one level deeper, into an expression or the body of a repeat; fails where that is too deep."""
        if self.depth == limits.MAX_NESTING:
            message = (
                f"blocks, repeats and expressions nest too deeply; at most {limits.MAX_NESTING} levels are allowed"
            )
            raise self.findings.fail(message, span)
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1


def evaluate_value(context: EvaluationContext, syntax: ast.Expression, result_names: tuple[str, ...] = ()) -> Value:
    """The one value of an expression; `result_names` has the preferred name of a new tensor."""
    result = evaluate_results(context, syntax, result_names)
    if isinstance(result, MultipleResults) and result.first_stands_for_all:
        return result.values[0]
    if isinstance(result, MultipleResults):
        message = f"expected one value, found a call that returns {len(result.values)}"
        raise context.findings.fail(message, syntax.span, "give each a name: `a, b = ...`")
    return result


def evaluate_results(
    context: EvaluationContext, syntax: ast.Expression, result_names: tuple[str, ...] = ()
) -> Value | MultipleResults:
    """What an expression evaluates to; only a call may have several results."""
    context.enter(syntax.span)
    try:
        return _evaluate(context, syntax, result_names)
    finally:
        context.leave()


def evaluate_integer(context: EvaluationContext, syntax: ast.Expression, meaning: str) -> int:
    """The value of an expression that must be an integer; `meaning` says in errors what it is for."""
    value = evaluate_value(context, syntax)
    if isinstance(value, bool) or not isinstance(value, int):
        described = f"the tensor '{value.name}'" if isinstance(value, TensorValue) else constants.describe_value(value)
        hint = "`//` divides integers" if isinstance(value, float) else None
        raise context.findings.fail(f"expected an integer for {meaning}, found {described}", syntax.span, hint)
    return value


def _evaluate(
    context: EvaluationContext, syntax: ast.Expression, result_names: tuple[str, ...]
) -> Value | MultipleResults:
    match syntax:
        case ast.LiteralExpr():
            return syntax.value
        case ast.Name():
            return context.look_up(syntax)
        case ast.ListExpr():
            return _evaluate_list(context, syntax)
        case ast.NegativeExpr():
            operand = evaluate_value(context, syntax.operand)
            return _operate(context, EvaluatedCall(NEGATION, (operand,), {}, syntax, result_names))
        case ast.BinaryExpr():
            return _evaluate_chain(context, syntax, result_names)
        case ast.CallExpr():
            return _evaluate_call(context, syntax, result_names)
        case ast.IndexedExpr() | ast.AggregateExpr():
            raise context.findings.fail(
                "indices are allowed in index equations only, and here the result has none",
                syntax.span,
                "name the result's indices: `y[i, j] = ...`, or `y[] = ...` for a number; for a part of a tensor, "
                "`slice(x, rows=[0, 1])`",
            )


def _evaluate_list(context: EvaluationContext, syntax: ast.ListExpr) -> Static:
    items = []
    values = evaluate_each(partial(evaluate_value, context), syntax.items)
    for item, value in zip(syntax.items, values, strict=True):
        if isinstance(value, TensorValue):
            raise context.findings.fail("a list holds numbers, found a tensor", item.span)
        if isinstance(value, tuple):
            raise context.findings.fail("a list cannot hold lists", item.span, "join lists with +")
        items.append(value)
    return tuple(items)


def _evaluate_chain(
    context: EvaluationContext, syntax: ast.BinaryExpr, result_names: tuple[str, ...]
) -> Value | MultipleResults:
    links = unfold_chain(syntax)
    operands = [links[0].left, *(link.right for link in links)]
    first, *further_operands = evaluate_each(partial(evaluate_value, context), operands)
    result: Value | MultipleResults = first
    for link, operand in zip(links, further_operands, strict=True):
        assert not isinstance(result, MultipleResults)  # infix operators have one result
        names = result_names if link is syntax else ()
        result = _operate(context, EvaluatedCall(INFIX[link.operator], (result, operand), {}, link, names))
    return result


def _evaluate_call(
    context: EvaluationContext, syntax: ast.CallExpr, result_names: tuple[str, ...]
) -> Value | MultipleResults:
    expressions = [*syntax.arguments, *(keyword.value for keyword in syntax.keywords)]
    values = evaluate_each(partial(evaluate_value, context), expressions)
    arguments = tuple(values[: len(syntax.arguments)])
    keywords: dict[str, Value] = {}
    for keyword, value in zip(syntax.keywords, values[len(arguments) :], strict=True):
        if keyword.name.text in keywords:
            raise context.findings.fail(f"argument '{keyword.name.text}' is given twice", keyword.span)
        keywords[keyword.name.text] = value
    call = EvaluatedCall(syntax.function.text, arguments, keywords, syntax, result_names)
    if call.function in constants.LIST_FUNCTIONS and not keywords:
        return _operate(context, call)
    return context.apply(call)


def _operate(context: EvaluationContext, call: EvaluatedCall) -> Value | MultipleResults:
    """The result of an operation: computed if no operand is a tensor, else the operator of the library."""
    statics = [operand for operand in call.arguments if not isinstance(operand, TensorValue)]
    if len(statics) < len(call.arguments):
        return context.apply(call)
    with context.findings.locate_errors(call.span_of):
        match call.syntax:
            case ast.BinaryExpr():
                return constants.apply_infix(call.syntax.operator, *statics)
            case ast.NegativeExpr():
                return constants.negate(*statics)
            case _:
                return constants.apply_function(call.function, statics)
