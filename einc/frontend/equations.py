"""Index equations: from `y[i, k] = sum[j](a[i, j] * b[j, k])` to joins with an aggregation each.

One equation becomes one operator; an aggregation inside its expression becomes an operator of its own before it, as
does a call or infix expression that is indexed (paper, Section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.assembly import Assembly
from einc.frontend.constants import Static
from einc.frontend.depth import operands
from einc.frontend.expressions import INFIX, NEGATION, Expressions, Tensor
from einc.frontend.findings import Findings, Reported, counted, did_you_mean
from einc.ops import registry
from einc.ops.equation import index_equation
from einc.ops.functions import AGGREGATIONS, FUNCTIONS
from einc.ops.scalar import Input, Operand, ProgramBuilder

Element = Operand | bool | int | float | str
"""The value of an expression at one index vector: a step of the program, or a literal."""


@dataclass(slots=True)
class Join:
    """The tensors that an expression reads, each with its indices, and the scalar program over their elements."""

    inputs: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    labels: list[tuple[str, ...]] = field(default_factory=list)
    spans: list[SourceSpan] = field(default_factory=list)
    program: ProgramBuilder = field(default_factory=lambda: ProgramBuilder(0))
    terms: int = 0

    def read(self, tensor: Tensor, labels: tuple[str, ...], span: SourceSpan) -> Input:
        """The element of a tensor at these indices; read twice, it is one input."""
        key = tensor.name, labels
        if key not in self.inputs:
            self.inputs[key] = len(self.tensors)
            self.tensors.append(tensor)
            self.labels.append(labels)
            self.spans.append(span)
        return Input(self.inputs[key])

    def indices(self) -> tuple[str, ...]:
        """All indices, in the order in which they first stand in the expression."""
        return tuple(dict.fromkeys(label for labels in self.labels for label in labels))


class Equations:
    """Lowers index equations. `dims` are the extents of the declared dimensions."""

    def __init__(
        self, expressions: Expressions, assembly: Assembly, dims: Mapping[str, int], findings: Findings
    ) -> None:
        self._expressions = expressions
        self._assembly = assembly
        self._dims = dims
        self._findings = findings

    def tensor(self, statement: ast.Equation, wish: str) -> Tensor:
        """The tensor that an equation defines."""
        value = statement.value
        self._check_unique(statement.indices)
        if isinstance(value, ast.Aggregate):
            return self._aggregate(value, statement.indices, (wish,), statement.span)
        join = Join()
        element = self._element(value, join)
        missing = [name for name in join.indices() if name not in {index.text for index in statement.indices}]
        if missing and not _is_product(value):
            raise self._findings.fail(
                f"index '{missing[0]}' stands only on the right of '=', which is not one product",
                self._place_of(missing[0], join, statement.span),
                f"write the aggregation out, such as `sum[{', '.join(missing)}](...)` around what it covers",
            )
        result = [(index.text, index.span) for index in statement.indices]
        return self._apply(join, element, result, "sum" if missing else None, (wish,), statement.span)

    def _aggregate(
        self,
        syntax: ast.Aggregate,
        result: Sequence[ast.Name] | None,
        wishes: tuple[str, ...],
        span: SourceSpan,
    ) -> Tensor:
        """An aggregation as an operator; with no result given, that has all indices which are left, in order."""
        operation = syntax.operation
        if operation.text not in AGGREGATIONS:
            raise self._findings.fail(
                f"there is no aggregation '{operation.text}'",
                operation.span,
                did_you_mean(operation.text, AGGREGATIONS) or f"use one of {', '.join(AGGREGATIONS)}",
            )
        if not syntax.indices:
            raise self._findings.fail(f"expected indices to aggregate over, found '{operation.text}[]'", operation.span)
        self._check_unique(syntax.indices)
        join = Join()
        element = self._element(syntax.body, join)
        present, gone = join.indices(), [index.text for index in syntax.indices]
        for index in syntax.indices:
            if index.text not in present:
                hint = did_you_mean(index.text, present)
                raise self._findings.fail(
                    f"index '{index.text}' does not stand in what is aggregated", index.span, hint
                )
        left = [name for name in present if name not in gone]
        if result is None:
            named = [(name, self._place_of(name, join, syntax.span)) for name in left]
        else:
            named = [(index.text, index.span) for index in result]
            names = [index.text for index in result]
            for name, place in named:
                if name in gone:
                    raise self._findings.fail(f"index '{name}' is aggregated and cannot stand in the result", place)
            missing = [name for name in left if name not in names]
            if missing:
                place = self._place_of(missing[0], join, syntax.span)
                hint = (
                    f"aggregate over it too, `{operation.text}[{', '.join([*gone, *missing])}]`, or name it on the left"
                )
                raise self._findings.fail(f"index '{missing[0]}' stands only on the right of '='", place, hint)
        return self._apply(join, element, named, operation.text, wishes, span)

    def _apply(
        self,
        join: Join,
        element: Element,
        result: Sequence[tuple[str, SourceSpan]],
        aggregation: str | None,
        wishes: tuple[str, ...],
        span: SourceSpan,
    ) -> Tensor:
        present = join.indices()
        if not join.tensors:
            raise self._findings.fail("expected a tensor with indices on the right of '='", span)
        for name, place in result:
            if name not in present:
                hint = did_you_mean(name, present)
                message = f"index '{name}' of the result stands in no tensor on the right of '='"
                raise self._findings.fail(message, place, hint)
        try:
            if isinstance(element, str):
                raise OperatorError(f'expected numbers, found the string "{element[:40]}"')
            join.program.arity = len(join.tensors)
            first = element if isinstance(element, Operand) else join.program.add("copy", element)
            operator = index_equation(
                [(tensor.desc, labels) for tensor, labels in zip(join.tensors, join.labels, strict=True)],
                [(name, name) for name, _ in result],
                join.program.program(first),
                aggregation,
            )
        except OperatorError as error:
            place = join.spans[error.argument] if isinstance(error.argument, int) else span
            raise self._findings.fail(error.message, place, error.hint) from None
        return self._assembly.equation(operator, join.tensors, wishes, span)

    # -- the expression at one index vector --

    def _element(self, expression: ast.Expression, join: Join) -> Element:
        match expression:
            case ast.Indexed():
                return self._indexed(expression, join)
            case ast.Aggregate():
                inner = self._aggregate(expression, None, (), expression.span)
                return join.read(inner, inner.desc.dims, expression.span)
            case ast.Negative():
                operand = self._element(expression.operand, join)
                return self._step(join, expression, NEGATION, [operand], lambda: constants.negative(_static(operand)))
            case ast.Binary():
                return self._binary(expression, join)
            case ast.Call():
                return self._call(expression, join)
            case _:
                return self._literal(expression)

    def _indexed(self, expression: ast.Indexed, join: Join) -> Input:
        base = self._expressions.value(expression.base)
        if not isinstance(base, Tensor):
            raise self._findings.fail(f"expected a tensor, found {constants.described(base)}", expression.base.span)
        desc = base.desc
        if len(expression.indices) != desc.rank:
            raise self._findings.fail(
                f"expected {counted(desc.rank, 'index') if desc.rank == 1 else f'{desc.rank} indices'} "
                f"for {desc}, found {len(expression.indices)}",
                expression.span,
                "write one index per dimension",
            )
        for position, (index, dim, extent) in enumerate(zip(expression.indices, desc.dims, desc.shape, strict=True), 1):
            declared = self._dims.get(index.text)
            if declared is not None and declared != extent:
                raise self._findings.fail(
                    f"index '{index.text}' has extent {declared:,}, but dimension {position} of {desc} has {extent:,}",
                    index.span,
                    f"use '{dim}' here, or an index that is not declared" if index.text != dim else None,
                )
        return join.read(base, tuple(index.text for index in expression.indices), expression.span)

    def _binary(self, expression: ast.Binary, join: Join) -> Element:
        """Long chains lean to the left; they are walked in a loop."""
        chain = [expression]
        while isinstance(chain[-1].left, ast.Binary):
            chain.append(chain[-1].left)
        chain.reverse()
        result, *others = self._elements([chain[0].left, *(link.right for link in chain)], join)
        for link, other in zip(chain, others, strict=True):
            result = self._combine(link, result, other, join)
        return result

    def _combine(self, link: ast.Binary, left: Element, right: Element, join: Join) -> Element:
        def fold() -> Static:
            return constants.binary(link.operator, _static(left), _static(right))

        return self._step(join, link, INFIX[link.operator], [left, right], fold)

    def _call(self, expression: ast.Call, join: Join) -> Element:
        name = expression.function.text
        if expression.keywords:
            message = f"functions in an index equation have no named arguments; '{name}' has one"
            raise self._findings.fail(message, expression.keywords[0].span)
        if not any(_holds_index(argument) for argument in expression.arguments):
            return self._literal(expression)
        given = self._elements(expression.arguments, join)
        function = name
        if given and isinstance(last := given[-1], str):  # a function that is told an element type
            function = f"{name}:{self._assembly.element_type(last)}"
            given.pop()
        signature = FUNCTIONS.get(function)
        if signature is None:
            raise self._findings.fail(*self._no_function(expression))
        if signature.arity != len(given):
            expected = counted(signature.arity, "operand")
            hint = f"to aggregate, name the indices: `{name}[i](...)`" if name in AGGREGATIONS else None
            raise self._findings.fail(f"{name} takes {expected}, found {len(given)}", expression.span, hint)
        return self._step(join, expression, function, given, None)

    def _no_function(self, expression: ast.Call) -> tuple[str, SourceSpan, str | None]:
        name = expression.function.text
        message = f"there is no scalar function '{name}' to stand in an index equation"
        if name in AGGREGATIONS:
            return message, expression.span, f"to aggregate, name the indices: `{name}[i](...)`"
        if name in registry.names():
            hint = f"'{name}' takes whole tensors: index its result, `{name}(...)[i, j]`, or name it in a line before"
            return message, expression.span, hint
        plain = [function for function in FUNCTIONS if ":" not in function]
        return message, expression.span, did_you_mean(name, plain)

    def _step(
        self,
        join: Join,
        expression: ast.Expression,
        function: str,
        operands: Sequence[Element],
        fold: Callable[[], Static] | None,
    ) -> Element:
        """A step of the program, or the literal that it comes to where all operands are literals."""
        join.terms += 1
        if join.terms > limits.EQUATION_TERMS:
            message = f"this index equation has more than {limits.EQUATION_TERMS:,} operations, the most allowed"
            raise self._findings.fail(message, expression.span, "split it into several equations")
        try:
            if fold is not None and all(not isinstance(operand, Operand) for operand in operands):
                value = fold()
                assert not isinstance(value, tuple)
                return value
            return join.program.add(function, *(_number(operand) for operand in operands))
        except OperatorError as error:
            raise self._findings.fail(error.message, expression.span, error.hint) from None

    def _literal(self, expression: ast.Expression) -> bool | int | float | str:
        value = self._expressions.value(expression)
        if isinstance(value, Tensor):
            names = ", ".join(value.desc.dims)
            found = f"the tensor '{expression.text}'" if isinstance(expression, ast.Name) else "a whole tensor"
            hint = f"write its indices: `{expression.text}[{names}]`" if isinstance(expression, ast.Name) else None
            raise self._findings.fail(f"expected an indexed tensor or a number, found {found}", expression.span, hint)
        if isinstance(value, tuple):
            raise self._findings.fail(f"expected a number, found {constants.described(value)}", expression.span)
        return value

    def _elements(self, expressions: Sequence[ast.Expression], join: Join) -> list[Element]:
        """The elements of several expressions; all of them report their errors."""
        elements: list[Element] = []
        for expression in expressions:
            try:
                elements.append(self._element(expression, join))
            except Reported:
                continue
        if len(elements) < len(expressions):
            raise Reported
        return elements

    def _check_unique(self, indices: Sequence[ast.Name]) -> None:
        for k, index in enumerate(indices):
            if index.text in {other.text for other in indices[:k]}:
                raise self._findings.fail(f"index '{index.text}' stands twice here", index.span, "each may stand once")

    def _place_of(self, index: str, join: Join, otherwise: SourceSpan) -> SourceSpan:
        """Where the first tensor with an index stands."""
        places = (span for labels, span in zip(join.labels, join.spans, strict=True) if index in labels)
        return next(places, otherwise)


def _static(operand: Element) -> Static:
    assert not isinstance(operand, Operand)
    return operand


def _number(operand: Element) -> Operand | bool | int | float:
    if isinstance(operand, str):
        raise OperatorError(f'expected a number, found the string "{operand[:40]}"')
    return operand


def _is_product(expression: ast.Expression) -> bool:
    """Whether an expression multiplies indexed tensors and numbers, and does nothing else."""
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        if isinstance(current, ast.Binary) and current.operator == "*":
            waiting += [current.left, current.right]
        elif not isinstance(current, ast.Indexed | ast.Literal | ast.Name):
            return False
    return True


def _holds_index(expression: ast.Expression) -> bool:
    """Whether an expression has an indexed tensor in it, and so a value per index vector."""
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        if isinstance(current, ast.Indexed | ast.Aggregate):
            return True
        waiting += operands(current)
    return False
