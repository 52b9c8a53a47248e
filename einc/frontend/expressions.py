"""The values of expressions outside index equations: arithmetic where no tensor is involved, operators where one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.constants import Static
from einc.frontend.findings import Findings, each
from einc.frontend.walk import chain

INFIX = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow",
    "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
"""The operator of the library that infix syntax stands for."""
NEGATION = "neg"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph, by name."""

    name: str
    desc: TensorDesc


@dataclass(frozen=True, slots=True)
class Several:
    """What a call returns that has not one result.

    Where one value is asked for, the first of an operator's outputs stands for all; a block's values are all wanted.
    """

    values: tuple[Static | Tensor, ...]
    first_alone: bool = False


Value = Static | Tensor


@dataclass(frozen=True, slots=True)
class Application:
    """A call with its arguments evaluated. `wishes` are the names that its results should have; a part has none."""

    function: str
    arguments: tuple[Value, ...]
    keywords: Mapping[str, Value]
    syntax: ast.Expression
    wishes: tuple[str, ...] = ()

    def span_of(self, argument: int | str | None) -> SourceSpan:
        """Where an argument stands, by position or keyword; the whole application where there is none such."""
        match self.syntax:
            case ast.Call(arguments=given, keywords=keywords):
                if isinstance(argument, int) and 0 <= argument < len(given):
                    return given[argument].span
                return next((k.span for k in keywords if k.name.text == argument), self.syntax.span)
            case ast.Binary(left=left, right=right):
                return left.span if argument == 0 else right.span if argument == 1 else self.syntax.span
            case _:
                return self.syntax.span


class Expressions:
    """Evaluates expressions over the names that `look_up` knows; `apply` makes what is called on tensors.

    Both report errors to the findings and raise Reported.
    """

    def __init__(
        self,
        findings: Findings,
        look_up: Callable[[ast.Name], Value],
        apply: Callable[[Application], Value | Several],
    ) -> None:
        self._findings = findings
        self._look_up = look_up
        self._apply = apply
        self._depth = 0

    def value(self, expression: ast.Expression, wishes: tuple[str, ...] = ()) -> Value:
        """The one value of an expression; a new tensor is named as wished."""
        result = self.results(expression, wishes)
        if isinstance(result, Several) and result.first_alone:
            return result.values[0]
        if isinstance(result, Several):
            message = f"expected one value, found a call that returns {len(result.values)}"
            raise self._findings.fail(message, expression.span, "give each a name: `a, b = ...`")
        return result

    def results(self, expression: ast.Expression, wishes: tuple[str, ...] = ()) -> Value | Several:
        """What an expression evaluates to; only a call may have several results."""
        self.enter(expression.span)
        try:
            return self._results(expression, wishes)
        finally:
            self.leave()

    def enter(self, span: SourceSpan) -> None:
        """One level deeper, in an expression or in a body that one leads to; fails where that is too deep."""
        self._depth += 1
        if self._depth > limits.DEPTH:
            message = f"blocks, repeats and expressions nest too deeply; at most {limits.DEPTH} levels are allowed"
            self.leave()
            raise self._findings.fail(message, span)

    def leave(self) -> None:
        self._depth -= 1

    def _results(self, expression: ast.Expression, wishes: tuple[str, ...]) -> Value | Several:
        match expression:
            case ast.Literal():
                return expression.value
            case ast.Name():
                return self._look_up(expression)
            case ast.List():
                return self._list(expression)
            case ast.Negative():
                operand = self.value(expression.operand)
                return self._operate(expression, NEGATION, (operand,), wishes)
            case ast.Binary():
                return self._binary(expression, wishes)
            case ast.Call():
                return self._call(expression, wishes)
            case ast.Indexed() | ast.Aggregate():
                raise self._findings.fail(
                    "indices stand in index equations only, and here the result has none",
                    expression.span,
                    "name the result's indices: `y[i, j] = ...`, or `y[] = ...` for a single number",
                )

    def number(self, expression: ast.Expression, what: str) -> int:
        """An expression that must be an integer, such as the extent of a dim."""
        value = self.value(expression)
        if isinstance(value, bool) or not isinstance(value, int):
            found = f"the tensor '{value.name}'" if isinstance(value, Tensor) else constants.described(value)
            hint = "`//` divides integers" if isinstance(value, float) else None
            raise self._findings.fail(f"expected an integer for {what}, found {found}", expression.span, hint)
        return value

    def _list(self, expression: ast.List) -> Static:
        items = []
        for syntax, value in zip(expression.items, each(self.value, expression.items), strict=True):
            if isinstance(value, Tensor):
                raise self._findings.fail("a list holds numbers, found a tensor", syntax.span)
            if isinstance(value, tuple):
                raise self._findings.fail("a list cannot hold lists", syntax.span, "join lists with +")
            items.append(value)
        return tuple(items)

    def _binary(self, expression: ast.Binary, wishes: tuple[str, ...]) -> Value | Several:
        links = chain(expression)
        first, *others = each(self.value, [links[0].left, *(link.right for link in links)])
        result: Value | Several = first
        for link, other in zip(links, others, strict=True):
            assert not isinstance(result, Several)  # infix operators have one result
            named = wishes if link is expression else ()
            result = self._operate(link, INFIX[link.operator], (result, other), named)
        return result

    def _call(self, expression: ast.Call, wishes: tuple[str, ...]) -> Value | Several:
        given = each(self.value, [*expression.arguments, *(keyword.value for keyword in expression.keywords)])
        arguments = tuple(given[: len(expression.arguments)])
        keywords: dict[str, Value] = {}
        for keyword, value in zip(expression.keywords, given[len(arguments) :], strict=True):
            if keyword.name.text in keywords:
                raise self._findings.fail(f"argument '{keyword.name.text}' is given twice", keyword.span)
            keywords[keyword.name.text] = value
        name = expression.function.text
        if name in constants.FUNCTIONS and not keywords:
            return self._operate(expression, name, arguments, wishes)
        return self._apply(Application(name, arguments, keywords, expression, wishes))

    def _operate(
        self, syntax: ast.Expression, function: str, operands: Sequence[Value], wishes: tuple[str, ...]
    ) -> Value | Several:
        """Arithmetic on static operands, else the operator of the library."""
        application = Application(function, tuple(operands), {}, syntax, wishes)
        statics = [operand for operand in operands if not isinstance(operand, Tensor)]
        if len(statics) < len(operands):
            return self._apply(application)
        try:
            match syntax:
                case ast.Binary():
                    return constants.binary(syntax.operator, *statics)
                case ast.Negative():
                    return constants.negative(*statics)
                case _:
                    return constants.function(function, statics)
        except OperatorError as error:
            raise self._findings.fail(error.message, application.span_of(error.argument), error.hint) from None
