"""Index equations: from `y[i, k] = sum[j](a[i, j] * b[j, k])` to joins, each with one aggregation.

One equation becomes one operator. An aggregation inside its expression becomes an operator before it, and so does a
call or infix expression that is indexed (paper, Section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.assembly import apply_equation, resolve_dtype
from einc.frontend.ast import iterate_parts, unfold_chain
from einc.frontend.constants import Static
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import INFIX, NEGATION, TensorValue, evaluate_value
from einc.frontend.findings import evaluate_each
from einc.ops import registry
from einc.ops.equation import build_equation
from einc.ops.functions import AGGREGATIONS
from einc.ops.scalar import ProgramBuilder
from einc_runtime.plan.scalar_functions import SCALAR_FUNCTIONS
from einc_runtime.plan.scalar_programs import Operand, ScalarInput
from einc_runtime.text import did_you_mean, format_count

Element = Operand | bool | int | float | str
"""The value of an expression at one index vector: an operand of the scalar program, or a literal."""


@dataclass(slots=True)
class Join:
    """The tensors that an expression reads, each with its indices, and the scalar program over their elements.

    In a `product` every factor is an operand of its own, because the kernels of contractions expect that.
    """

    product: bool = False
    inputs: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    tensors: list[TensorValue] = field(default_factory=list)
    labels: list[tuple[str, ...]] = field(default_factory=list)
    spans: list[SourceSpan] = field(default_factory=list)
    program: ProgramBuilder = field(default_factory=lambda: ProgramBuilder(0))
    step_count: int = 0

    def read(self, tensor: TensorValue, labels: tuple[str, ...], span: SourceSpan) -> ScalarInput:
        """The element of a tensor at these indices. Except in a product, a tensor read twice alike is one input."""
        key = tensor.name, labels
        if key not in self.inputs or self.product:
            self.inputs[key] = len(self.tensors)
            self.tensors.append(tensor)
            self.labels.append(labels)
            self.spans.append(span)
        return ScalarInput(self.inputs[key])

    def indices(self) -> tuple[str, ...]:
        """All indices, in the order in which the expression first mentions them."""
        return tuple(dict.fromkeys(label for labels in self.labels for label in labels))

    def first_place(self, index: str, otherwise: SourceSpan) -> SourceSpan:
        """Where the first tensor with an index stands."""
        places = (span for labels, span in zip(self.labels, self.spans, strict=True) if index in labels)
        return next(places, otherwise)


def lower_equation(context: LoweringContext, statement: ast.EquationStmt, name: str) -> TensorValue:
    """The tensor that an equation defines, with this preferred name."""
    value = statement.value
    _check_unique(context, statement.indices)
    if isinstance(value, ast.AggregateExpr):
        return _aggregate(context, value, statement.indices, (name,), statement.span)
    join = Join(_is_product(value))
    element = _evaluate(context, join, value)
    left = {index.text for index in statement.indices}
    missing = [index for index in join.indices() if index not in left]
    if missing and not _is_product(value):
        raise context.findings.fail(
            f"index '{missing[0]}' stands only on the right of '=', which is not one product",
            join.first_place(missing[0], statement.span),
            f"write the aggregation out, such as `sum[{', '.join(missing)}](...)` around what it covers",
        )
    result = [(index.text, index.span) for index in statement.indices]
    return _apply(context, join, element, result, "sum" if missing else None, (name,), statement.span)


def _aggregate(
    context: LoweringContext,
    syntax: ast.AggregateExpr,
    result: Sequence[ast.Name] | None,
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue:
    """An aggregation as an operator. Without a given result, its result has all other indices, in order."""
    operation = syntax.operation
    if operation.text not in AGGREGATIONS:
        raise context.findings.fail(
            f"there is no aggregation '{operation.text}'",
            operation.span,
            did_you_mean(operation.text, AGGREGATIONS) or f"use one of {', '.join(AGGREGATIONS)}",
        )
    if not syntax.indices:
        raise context.findings.fail(f"expected indices to aggregate over, found '{operation.text}[]'", operation.span)
    _check_unique(context, syntax.indices)
    join = Join(operation.text == "sum" and _is_product(syntax.body))
    element = _evaluate(context, join, syntax.body)
    present, aggregated = join.indices(), [index.text for index in syntax.indices]
    for index in syntax.indices:
        if index.text not in present:
            hint = did_you_mean(index.text, present)
            message = f"index '{index.text}' does not occur in what is aggregated"
            raise context.findings.fail(message, index.span, hint)
    left = [name for name in present if name not in aggregated]
    if result is None:
        named = [(name, join.first_place(name, syntax.span)) for name in left]
    else:
        named = [(index.text, index.span) for index in result]
        for name, place in named:
            if name in aggregated:
                raise context.findings.fail(f"index '{name}' is aggregated and cannot be in the result", place)
        missing = [name for name in left if name not in {index.text for index in result}]
        if missing:
            together = ", ".join([*aggregated, *missing])
            raise context.findings.fail(
                f"index '{missing[0]}' stands only on the right of '='",
                join.first_place(missing[0], syntax.span),
                f"aggregate over it too, `{operation.text}[{together}]`, or name it on the left",
            )
    return _apply(context, join, element, named, operation.text, result_names, span)


def _apply(
    context: LoweringContext,
    join: Join,
    element: Element,
    result: Sequence[tuple[str, SourceSpan]],
    aggregation: str | None,
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue:
    """The operator of a join; `result` lists the indices of its result, and where they stand."""
    present = join.indices()
    if not join.tensors:
        raise context.findings.fail("expected a tensor with indices on the right of '='", span)
    for name, place in result:
        if name not in present:
            message = f"index '{name}' of the result is in no tensor on the right of '='"
            raise context.findings.fail(message, place, did_you_mean(name, present))
    try:
        if isinstance(element, str):
            raise OperatorError(f'expected numbers, found the string "{element[:40]}"')
        join.program.arity = len(join.tensors)
        last = element if isinstance(element, Operand) else join.program.add("copy", element)
        operator = build_equation(
            [(tensor.desc, labels) for tensor, labels in zip(join.tensors, join.labels, strict=True)],
            [(name, name) for name, _ in result],
            join.program.program(last),
            aggregation,
        )
    except OperatorError as error:
        place = join.spans[error.argument] if isinstance(error.argument, int) else span
        raise context.findings.fail(error.message, place, error.hint) from None
    return apply_equation(context, operator, join.tensors, result_names, span)


# -- expressions at one index vector ----------------------------------------------------------------------------------


def _evaluate(context: LoweringContext, join: Join, syntax: ast.Expression) -> Element:
    """The value of an expression at one index vector; what it reads is added to the join."""
    context.enter(syntax.span)
    try:
        match syntax:
            case ast.IndexedExpr():
                return _read(context, join, syntax)
            case ast.AggregateExpr():
                inner = _aggregate(context, syntax, None, (), syntax.span)
                return join.read(inner, inner.desc.dims, syntax.span)
            case ast.NegativeExpr():
                operand = _evaluate(context, join, syntax.operand)
                return _add_step(context, join, syntax, NEGATION, [operand], constants.negate)
            case ast.BinaryExpr():
                return _evaluate_chain(context, join, syntax)
            case ast.CallExpr():
                return _evaluate_call(context, join, syntax)
            case _:
                return _evaluate_literal(context, syntax)
    finally:
        context.leave()


def _read(context: LoweringContext, join: Join, syntax: ast.IndexedExpr) -> ScalarInput:
    """An element of a tensor; indices with the name of a declared dim must have its extent."""
    base = evaluate_value(context, syntax.base)
    if not isinstance(base, TensorValue):
        found = constants.describe_value(base)
        raise context.findings.fail(f"expected a tensor, found {found}", syntax.base.span)
    desc = base.desc
    if len(syntax.indices) != desc.rank:
        expected = format_count(desc.rank, "index", "indices")
        message = f"expected {expected} for {desc}, found {len(syntax.indices)}"
        raise context.findings.fail(message, syntax.span, "write one index per dimension")
    for position, (index, dim, extent) in enumerate(zip(syntax.indices, desc.dims, desc.shape, strict=True), 1):
        declared = context.parameters.dims.get(index.text)
        if declared is not None and declared != extent:
            raise context.findings.fail(
                f"index '{index.text}' has extent {declared:,}, but dimension {position} of {desc} has {extent:,}",
                index.span,
                f"use '{dim}' here, or an index that is not declared" if index.text != dim else None,
            )
    return join.read(base, tuple(index.text for index in syntax.indices), syntax.span)


def _evaluate_chain(context: LoweringContext, join: Join, syntax: ast.BinaryExpr) -> Element:
    links = unfold_chain(syntax)
    operands = [links[0].left, *(link.right for link in links)]
    result, *others = evaluate_each(partial(_evaluate, context, join), operands)
    for link, other in zip(links, others, strict=True):
        fold = partial(constants.apply_infix, link.operator)
        result = _add_step(context, join, link, INFIX[link.operator], [result, other], fold)
    return result


def _evaluate_call(context: LoweringContext, join: Join, syntax: ast.CallExpr) -> Element:
    """A scalar function of elements, or a call without any element, which is a number."""
    name = syntax.function.text
    if syntax.keywords:
        message = f"functions in an index equation have no named arguments; '{name}' has one"
        raise context.findings.fail(message, syntax.keywords[0].span)
    if not any(isinstance(part, ast.IndexedExpr | ast.AggregateExpr) for part in iterate_parts(syntax)):
        return _evaluate_literal(context, syntax)
    operands = evaluate_each(partial(_evaluate, context, join), syntax.arguments)
    function = name
    if (
        name not in SCALAR_FUNCTIONS and operands and isinstance(last := operands[-1], str)
    ):  # an element type, as in a cast
        function = f"{name}:{resolve_dtype(context, last)}"
        operands.pop()
    signature = SCALAR_FUNCTIONS.get(function)
    if signature is None:
        raise context.findings.fail(*_describe_unknown_function(syntax))
    if signature.arity != len(operands):
        expected = format_count(signature.arity, "operand")
        hint = f"to aggregate, name the indices: `{name}[i](...)`" if name in AGGREGATIONS else None
        raise context.findings.fail(f"{name} takes {expected}, found {len(operands)}", syntax.span, hint)
    return _add_step(context, join, syntax, function, operands)


def _describe_unknown_function(syntax: ast.CallExpr) -> tuple[str, SourceSpan, str | None]:
    """The error for a call of something that is no scalar function."""
    name = syntax.function.text
    message = f"there is no scalar function '{name}' for index equations"
    if name in AGGREGATIONS:
        return message, syntax.span, f"to aggregate, name the indices: `{name}[i](...)`"
    types = [function.partition(":")[2] for function in SCALAR_FUNCTIONS if function.startswith(f"{name}:")]
    if types:
        return f"{name} takes an element type last", syntax.span, f"the element types are {', '.join(types)}"
    if registry.is_callable(name):
        hint = f"'{name}' takes whole tensors: index its result, `{name}(...)[i, j]`, or name it in a line before"
        return message, syntax.span, hint
    return message, syntax.span, did_you_mean(name, [function for function in SCALAR_FUNCTIONS if ":" not in function])


def _add_step(
    context: LoweringContext,
    join: Join,
    syntax: ast.Expression,
    function: str,
    operands: Sequence[Element],
    fold: Callable[..., Static] | None = None,
) -> Element:
    """A step of the program; where all operands are literals, what `fold` makes of them instead."""
    join.step_count += 1
    if join.step_count > limits.EQUATION_TERMS:
        message = f"this index equation has more than {limits.EQUATION_TERMS:,} operations, the most allowed"
        raise context.findings.fail(message, syntax.span, "split it into several equations")
    try:
        if fold is not None and not any(isinstance(operand, Operand) for operand in operands):
            value = fold(*operands)
            assert not isinstance(value, tuple)
            return value
        return join.program.add(function, *map(_require_number, operands))
    except OperatorError as error:
        raise context.findings.fail(error.message, syntax.span, error.hint) from None


def _evaluate_literal(context: LoweringContext, syntax: ast.Expression) -> bool | int | float | str:
    """The value of an expression without elements, which must be no tensor and no list."""
    value = evaluate_value(context, syntax)
    if isinstance(value, TensorValue):
        found, hint = "a whole tensor", None
        if isinstance(syntax, ast.Name):
            found = f"the tensor '{syntax.text}'"
            hint = f"write its indices: `{syntax.text}[{', '.join(value.desc.dims)}]`"
        raise context.findings.fail(f"expected an indexed tensor or a number, found {found}", syntax.span, hint)
    if isinstance(value, tuple):
        raise context.findings.fail(f"expected a number, found {constants.describe_value(value)}", syntax.span)
    return value


def _require_number(operand: Element) -> Operand | bool | int | float:
    if isinstance(operand, str):
        raise OperatorError(f'expected a number, found the string "{operand[:40]}"')
    return operand


def _check_unique(context: LoweringContext, indices: Sequence[ast.Name]) -> None:
    for k, index in enumerate(indices):
        if index.text in {other.text for other in indices[:k]}:
            message = f"index '{index.text}' stands twice here"
            raise context.findings.fail(message, index.span, "each index may stand once")


def _is_product(syntax: ast.Expression) -> bool:
    """Whether an expression multiplies indexed tensors and numbers, and does nothing else."""
    waiting = [syntax]
    while waiting:
        current = waiting.pop()
        if isinstance(current, ast.BinaryExpr) and current.operator == "*":
            waiting += [current.left, current.right]
        elif isinstance(current, ast.NegativeExpr) and isinstance(current.operand, ast.LiteralExpr):
            continue  # a negative number
        elif not isinstance(current, ast.IndexedExpr | ast.LiteralExpr | ast.Name):
            return False
    return True
