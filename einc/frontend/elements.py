"""Expressions at one index vector: the elements of indexed tensors and the scalar program over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.assembly import Assembly
from einc.frontend.constants import Static
from einc.frontend.expressions import INFIX, NEGATION, Expressions, Tensor
from einc.frontend.findings import Findings, each
from einc.frontend.walk import chain, parts
from einc.ops import registry
from einc.ops.functions import AGGREGATIONS, FUNCTIONS
from einc.ops.scalar import Operand, ProgramBuilder, ScalarInput
from einc_runtime.text import counted, did_you_mean

Element = Operand | bool | int | float | str
"""The value of an expression at one index vector: a step of the program, or a literal."""


@dataclass(slots=True)
class Join:
    """The tensors that an expression reads, each with its indices, and the scalar program over their elements.

    In a `product` every factor is an operand of its own, for kernels of contractions take them so.
    """

    product: bool = False
    inputs: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    labels: list[tuple[str, ...]] = field(default_factory=list)
    spans: list[SourceSpan] = field(default_factory=list)
    program: ProgramBuilder = field(default_factory=lambda: ProgramBuilder(0))
    terms: int = 0

    def read(self, tensor: Tensor, labels: tuple[str, ...], span: SourceSpan) -> ScalarInput:
        """The element of a tensor at these indices; read twice, it is one input, but for products."""
        key = tensor.name, labels
        if key not in self.inputs or self.product:
            self.inputs[key] = len(self.tensors)
            self.tensors.append(tensor)
            self.labels.append(labels)
            self.spans.append(span)
        return ScalarInput(self.inputs[key])

    def indices(self) -> tuple[str, ...]:
        """All indices, in the order in which they first stand in the expression."""
        return tuple(dict.fromkeys(label for labels in self.labels for label in labels))


class Elements:
    """Lowers the expressions of index equations.

    `dims` are the extents of the declared dimensions; `aggregate` makes an inner aggregation a tensor of its own.
    """

    def __init__(
        self,
        expressions: Expressions,
        assembly: Assembly,
        dims: Mapping[str, int],
        findings: Findings,
        aggregate: Callable[[ast.Aggregate], Tensor],
    ) -> None:
        self._expressions = expressions
        self._assembly = assembly
        self._dims = dims
        self._findings = findings
        self._aggregate = aggregate

    def element(self, expression: ast.Expression, join: Join) -> Element:
        """The value of an expression at one index vector; what it reads is added to the join."""
        self._expressions.enter(expression.span)
        try:
            return self._element(expression, join)
        finally:
            self._expressions.leave()

    def _element(self, expression: ast.Expression, join: Join) -> Element:
        match expression:
            case ast.Indexed():
                return self._indexed(expression, join)
            case ast.Aggregate():
                inner = self._aggregate(expression)
                return join.read(inner, inner.desc.dims, expression.span)
            case ast.Negative():
                operand = self.element(expression.operand, join)
                return self._step(join, expression, NEGATION, [operand], constants.negative)
            case ast.Binary():
                return self._binary(expression, join)
            case ast.Call():
                return self._call(expression, join)
            case _:
                return self._literal(expression)

    def _indexed(self, expression: ast.Indexed, join: Join) -> ScalarInput:
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
        links = chain(expression)
        result, *others = self._elements([links[0].left, *(link.right for link in links)], join)
        for link, other in zip(links, others, strict=True):
            fold = partial(constants.binary, link.operator)
            result = self._step(join, link, INFIX[link.operator], [result, other], fold)
        return result

    def _call(self, expression: ast.Call, join: Join) -> Element:
        name = expression.function.text
        if expression.keywords:
            message = f"functions in an index equation have no named arguments; '{name}' has one"
            raise self._findings.fail(message, expression.keywords[0].span)
        indexed = (isinstance(part, ast.Indexed | ast.Aggregate) for part in parts(expression))
        if not any(indexed):  # known without any element
            return self._literal(expression)
        given = self._elements(expression.arguments, join)
        function = name
        if name not in FUNCTIONS and given and isinstance(last := given[-1], str):  # it is told an element type
            function = f"{name}:{self._assembly.element_type(last)}"
            given.pop()
        signature = FUNCTIONS.get(function)
        if signature is None:
            raise self._findings.fail(*self._no_function(expression))
        if signature.arity != len(given):
            expected = counted(signature.arity, "operand")
            hint = f"to aggregate, name the indices: `{name}[i](...)`" if name in AGGREGATIONS else None
            raise self._findings.fail(f"{name} takes {expected}, found {len(given)}", expression.span, hint)
        return self._step(join, expression, function, given)

    def _no_function(self, expression: ast.Call) -> tuple[str, SourceSpan, str | None]:
        name = expression.function.text
        message = f"there is no scalar function '{name}' to stand in an index equation"
        if name in AGGREGATIONS:
            return message, expression.span, f"to aggregate, name the indices: `{name}[i](...)`"
        types = [function.partition(":")[2] for function in FUNCTIONS if function.startswith(f"{name}:")]
        if types:
            return f"{name} takes an element type last", expression.span, f"the element types are {', '.join(types)}"
        if registry.is_callable(name):
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
        fold: Callable[..., Static] | None = None,
    ) -> Element:
        """A step of the program, or what `fold` makes of the operands where all of them are literals."""
        join.terms += 1
        if join.terms > limits.EQUATION_TERMS:
            message = f"this index equation has more than {limits.EQUATION_TERMS:,} operations, the most allowed"
            raise self._findings.fail(message, expression.span, "split it into several equations")
        try:
            if fold is not None and not any(isinstance(operand, Operand) for operand in operands):
                value = fold(*operands)
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
        return each(lambda expression: self.element(expression, join), expressions)


def _number(operand: Element) -> Operand | bool | int | float:
    if isinstance(operand, str):
        raise OperatorError(f'expected a number, found the string "{operand[:40]}"')
    return operand
