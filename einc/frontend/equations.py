"""Index equations: from `y[i, k] = sum[j](a[i, j] * b[j, k])` to joins, each with one aggregation.

One equation becomes one operator. An aggregation inside its expression becomes an operator before it, and so does a
call or infix expression that is indexed (paper, Section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from einc.core.tensor import DType
from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.aggregates import define, find_aggregate, list_aggregates
from einc.frontend.assembly import apply_equation, apply_equations, resolve_dtype
from einc.frontend.ast import iterate_parts, unfold_chain
from einc.frontend.constants import Static
from einc.frontend.context import LoweringContext
from einc.frontend.equation_indices import list_aggregated, list_result, note_extents
from einc.frontend.expressions import INFIX, NEGATION, TensorValue, evaluate_value
from einc.frontend.findings import AlreadyReported, evaluate_each
from einc.frontend.index_positions import ReadContext, read_element
from einc.frontend.joins import (
    Element,
    EquationScope,
    Join,
    RecurrenceParts,
    ResultIndex,
    build_aggregate_operator,
    build_join_operator,
)
from einc.frontend.list_reads import list_conditions, read_list_item
from einc.frontend.recurrence_equations import add_equation, find_value, make_scope, reads_values
from einc.ops import registry
from einc.ops.functions import AGGREGATIONS, CALL_SIGNATURES, COMPOSED, find_identity
from einc.ops.scalar import resolve_program
from einc_runtime.plan.aggregate_definitions import AggregateDefinition
from einc_runtime.plan.index_programs import Position
from einc_runtime.plan.scalar_programs import Operand, ScalarInput
from einc_runtime.text import did_you_mean, format_count


def lower_equation(
    context: LoweringContext, statement: ast.EquationStmt, name: str, recurrence: RecurrenceParts | None = None
) -> TensorValue:
    """The tensor that an equation defines, with this preferred name; or the value that it is in a recurrence."""
    return lower_equations(context, statement, (name,), recurrence)[0]


def lower_equations(
    context: LoweringContext,
    statement: ast.EquationStmt,
    names: tuple[str, ...],
    recurrence: RecurrenceParts | None = None,
) -> tuple[TensorValue, ...]:
    """The tensors that an equation defines, one for each name on its left side."""
    value = statement.value
    scope = make_scope(statement, recurrence)
    note_extents(context, scope, statement.indices)
    for target in statement.further_targets:
        if target.indices != statement.indices:
            written = target.span.text[target.span.column - 1 : target.span.end_column - 1]
            message = f"'{written}' has other indices than '{statement.target.text}'"
            raise context.findings.fail(message, target.span, "what is aggregated together has the same indices")
    if isinstance(value, ast.AggregateExpr):
        values = _aggregate(context, scope, value, statement.indices, names, statement.span)
        if len(values) < len(names):
            message = f"expected {format_count(len(names), 'value')}, found {len(values)}"
            raise context.findings.fail(message, value.span)
        return values[: len(names)]
    if statement.further_targets:
        message = f"expected an aggregation of {len(names)} values, which is alone on the right of '='"
        raise context.findings.fail(message, value.span, "write an equation for each")
    (name,) = names
    join = Join(scope, _is_product(value))
    element = _evaluate(context, join, value)
    result = list_result(context, join, statement.indices)
    left = {index.index for index in result}
    missing = [index for index in join.indices() if index not in left]
    if missing and not _is_product(value):
        raise context.findings.fail(
            f"index '{missing[0]}' stands only on the right of '=', which is not one product",
            join.first_place(missing[0], statement.span),
            f"write the aggregation out, such as `sum[{', '.join(missing)}](...)` around what it covers",
        )
    return (_apply(context, join, element, result, "sum" if missing else None, (name,), statement.span),)


def _aggregate(
    context: LoweringContext,
    scope: EquationScope,
    syntax: ast.AggregateExpr,
    items: Sequence[ast.IndexItem] | None,
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> tuple[TensorValue, ...]:
    """An aggregation as an operator. Where `items` do not name its result, that has all other indices, in order."""
    operation = syntax.operation
    aggregate = None if operation.text in AGGREGATIONS else find_aggregate(context, operation.text)
    if operation.text not in AGGREGATIONS and aggregate is None:
        if context.may_be_lost(operation.text):
            raise AlreadyReported
        known = (*AGGREGATIONS, *list_aggregates(context))
        raise context.findings.fail(
            f"there is no aggregation '{operation.text}'",
            operation.span,
            did_you_mean(operation.text, known) or f"use one of {', '.join(AGGREGATIONS)}, or define it: `aggregate`",
        )
    count = 1 if aggregate is None else aggregate.count
    if len(syntax.values) != count:
        message = f"{operation.text} aggregates {format_count(count, 'value')}, found {len(syntax.values)}"
        raise context.findings.fail(message, syntax.span)
    if not syntax.indices:
        raise context.findings.fail(f"expected indices to aggregate over, found '{operation.text}[]'", operation.span)
    note_extents(context, scope, syntax.indices)
    aggregated = list_aggregated(context, syntax.indices)
    conditions = list_conditions(context, scope, syntax.indices)
    join = Join(scope, operation.text == "sum" and not conditions and _is_product(syntax.body))
    elements = evaluate_each(partial(_evaluate, context, join), syntax.values)
    definition = None
    if aggregate is not None:
        operands, definition = define(context, aggregate, join, elements, aggregated[0], _evaluate, syntax.span)
        elements = [*operands]
    for condition in conditions:
        elements = _add_condition(context, join, elements, condition, definition or operation.text)
    for index in aggregated:
        if index.text not in join.indices():
            if index.text in scope.extents:
                join.read_index(index.text, index.span)
                continue
            hint = did_you_mean(index.text, join.indices())
            message = f"index '{index.text}' does not occur in what is aggregated"
            raise context.findings.fail(message, index.span, hint)
    gone = {index.text for index in aggregated}
    left = [name for name in join.indices() if name not in gone]

    def apply(result: Sequence[ResultIndex]) -> tuple[TensorValue, ...]:
        if definition is not None:
            return _apply_definition(context, join, elements, result, definition, result_names, span)
        return (_apply(context, join, elements[0], result, operation.text, result_names, span),)

    if items is None:
        return apply(join.name_result(left, span))
    result = list_result(context, join, items)
    named = {named_index.index for named_index in result}
    for named_index in result:
        if named_index.index in gone:
            message = f"index '{named_index.index}' is aggregated and cannot be in the result"
            raise context.findings.fail(message, named_index.span)
    missing = [name for name in left if name not in named]
    if missing:
        together = ", ".join([*(index.text for index in aggregated), *missing])
        raise context.findings.fail(
            f"index '{missing[0]}' stands only on the right of '='",
            join.first_place(missing[0], syntax.span),
            f"aggregate over it too, `{operation.text}[{together}]`, or name it on the left",
        )
    return apply(result)


def _apply(
    context: LoweringContext,
    join: Join,
    element: Element,
    result: Sequence[ResultIndex],
    aggregation: str | None,
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue:
    if not join.reads:
        raise context.findings.fail("expected a tensor with indices on the right of '='", span)
    if reads_values(join):
        return add_equation(context, join, element, result, aggregation, result_names, span)
    operator, tensors = build_join_operator(context, join, element, result, aggregation, span)
    return apply_equation(context, operator, tensors, result_names, span)


def _apply_definition(
    context: LoweringContext,
    join: Join,
    elements: Sequence[Element],
    result: Sequence[ResultIndex],
    definition: AggregateDefinition,
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> tuple[TensorValue, ...]:
    """The operator of a join that is aggregated by a definition, in the graph: one tensor for each value."""
    if reads_values(join):
        message = f"aggregate '{definition.name}' reads values of a recurrence"
        raise context.findings.fail(message, span, "aggregate in an equation of its own, before or behind it")
    operands = [element for element in elements if isinstance(element, Operand)]
    operator, tensors = build_aggregate_operator(context, join, operands, result, definition, span)
    return apply_equations(context, operator, tensors, result_names, span)


def _apply_position(context: LoweringContext, join: Join, element: Element, span: SourceSpan) -> TensorValue:
    """A join whose result has all its indices: positions that are read afterwards."""
    return _apply(context, join, element, join.name_result(join.indices(), span), None, (), span)


def _add_condition(
    context: LoweringContext,
    join: Join,
    elements: Sequence[Element],
    condition: ast.BinaryExpr,
    aggregation: str | AggregateDefinition,
) -> list[Element]:
    """The elements where a condition holds, else what changes no aggregate."""
    operands = [element for element in elements if isinstance(element, Operand)]
    if len(operands) < len(elements):
        raise context.findings.fail("expected a tensor with indices in what is aggregated", condition.span)
    holds = _evaluate(context, join, condition)
    if isinstance(condition.right, ast.Name) and isinstance(condition.left, ast.Name):
        join.scope.extents_from.setdefault(condition.right.text, condition.left.text)
    join.program.arity = len(join.reads)
    types = [DType.I64 if read.tensor is None else read.tensor.desc.dtype for read in join.reads]
    with context.findings.locate_errors(condition.span):
        if isinstance(aggregation, AggregateDefinition):
            identity = [literal.value for literal in aggregation.identity]
        else:
            identity = [find_identity(aggregation, resolve_program(join.program.program(*operands), types)[1][-1])]
        selector = _require_number(holds)
        return [join.program.add("where", selector, *pair) for pair in zip(operands, identity, strict=True)]


# -- expressions at one index vector ----------------------------------------------------------------------------------


def _evaluate(context: LoweringContext, join: Join, syntax: ast.Expression) -> Element:
    """The value of an expression at one index vector; what it reads is added to the join."""
    context.enter(syntax.span)
    try:
        match syntax:
            case ast.IndexedExpr():
                return _read(context, join, syntax)
            case ast.AggregateExpr():
                return _read_aggregate(context, join, syntax)
            case ast.Name() if syntax.text in join.names:
                return join.names[syntax.text]
            case ast.Name() if _is_index(context, join, syntax):
                return join.read_index(syntax.text, syntax.span)
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


def _is_index(context: LoweringContext, join: Join, name: ast.Name) -> bool:
    """Whether a name stands for the value of an index: params and dims stand for their numbers."""
    return name.text in join.scope.indices and name.text not in context.parameters.values


def _read_aggregate(context: LoweringContext, join: Join, syntax: ast.AggregateExpr) -> ScalarInput:
    """The element of an aggregation, which has a scope of its own for what `...` stands for and for extents."""
    scope = join.scope
    inner = replace(
        scope, extents=dict(scope.extents), spread=dict(scope.spread), list_extents=dict(scope.list_extents)
    )
    value = _aggregate(context, inner, syntax, None, (), syntax.span)[0]
    if join.scope.reference is None:
        join.scope.reference = inner.reference
    indices = {dim: name for name, dim in inner.spread.items()}
    join.scope.spread.update({indices[dim]: dim for dim in value.desc.dims if dim in indices})
    positions = tuple(Position(((indices.get(dim, dim), 1),)) for dim in value.desc.dims)
    return join.read(value, positions, syntax.span)


def _read(context: LoweringContext, join: Join, syntax: ast.IndexedExpr) -> Element:
    base = find_value(join, syntax.base) or evaluate_value(context, syntax.base)
    if isinstance(base, tuple):
        return read_list_item(context, join, base, syntax, _apply_position)
    if not isinstance(base, TensorValue):
        described = constants.describe_value(base)
        raise context.findings.fail(f"expected a tensor, found {described}", syntax.base.span)
    return read_element(ReadContext(context, join, _evaluate, _apply_position), base, syntax)


def _evaluate_chain(context: LoweringContext, join: Join, syntax: ast.BinaryExpr) -> Element:
    links = unfold_chain(syntax)
    operands = [links[0].left, *(link.right for link in links)]
    result, *further = evaluate_each(partial(_evaluate, context, join), operands)
    for link, operand in zip(links, further, strict=True):
        fold = partial(constants.apply_infix, link.operator)
        result = _add_step(context, join, link, INFIX[link.operator], [result, operand], fold)
    return result


def _evaluate_call(context: LoweringContext, join: Join, syntax: ast.CallExpr) -> Element:
    """A scalar function of elements, or a call without any element, which is a number."""
    name = syntax.function.text
    if syntax.keywords:
        message = f"functions in an index equation have no named arguments; '{name}' has one"
        raise context.findings.fail(message, syntax.keywords[0].span)
    if not any(
        isinstance(part, ast.IndexedExpr | ast.AggregateExpr)
        or (isinstance(part, ast.Name) and (part.text in join.names or _is_index(context, join, part)))
        for part in iterate_parts(syntax)
    ):
        return _evaluate_literal(context, syntax)
    operands = evaluate_each(partial(_evaluate, context, join), syntax.arguments)
    function = name
    if (
        name not in CALL_SIGNATURES and operands and isinstance(last := operands[-1], str)
    ):  # an element type, as in a cast
        function = f"{name}:{resolve_dtype(context, last)}"
        operands.pop()
    signature = CALL_SIGNATURES.get(function)
    if signature is None:
        raise context.findings.fail(*_describe_unknown_function(syntax))
    if signature.arity != len(operands):
        expected = format_count(signature.arity, "operand")
        hint = f"to aggregate, name the indices: `{name}[i](...)`" if name in AGGREGATIONS else None
        raise context.findings.fail(f"{name} takes {expected}, found {len(operands)}", syntax.span, hint)
    if function not in COMPOSED:
        return _add_step(context, join, syntax, function, operands)
    result, *further = operands
    for step, operand in zip(COMPOSED[function], further, strict=True):
        result = _add_step(context, join, syntax, step, [result, operand])
    return result


def _describe_unknown_function(syntax: ast.CallExpr) -> tuple[str, SourceSpan, str | None]:
    """The error for a call of something that is no scalar function."""
    name = syntax.function.text
    message = f"there is no scalar function '{name}' for index equations"
    if name in AGGREGATIONS:
        return message, syntax.span, f"to aggregate, name the indices: `{name}[i](...)`"
    types = [function.partition(":")[2] for function in CALL_SIGNATURES if function.startswith(f"{name}:")]
    if types:
        return f"{name} takes an element type last", syntax.span, f"the element types are {', '.join(types)}"
    if registry.is_callable(name) or registry.is_custom(name):
        hint = f"'{name}' takes whole tensors: index its result, `{name}(...)[i, j]`, or name it in a line before"
        return message, syntax.span, hint
    return message, syntax.span, did_you_mean(name, [function for function in CALL_SIGNATURES if ":" not in function])


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
    with context.findings.locate_errors(syntax.span):
        if fold is not None and not any(isinstance(operand, Operand) for operand in operands):
            value = fold(*operands)
            assert not isinstance(value, tuple)
            return value
        return join.program.add(function, *map(_require_number, operands))


def _evaluate_literal(context: LoweringContext, syntax: ast.Expression) -> bool | int | float | str:
    """The value of an expression without elements, which must be no tensor and no list."""
    value = evaluate_value(context, syntax)
    if isinstance(value, TensorValue):
        described, hint = "a whole tensor", None
        if isinstance(syntax, ast.Name):
            described = f"the tensor '{syntax.text}'"
            hint = f"write its indices: `{syntax.text}[{', '.join(value.desc.dims)}]`"
        raise context.findings.fail(f"expected an indexed tensor or a number, found {described}", syntax.span, hint)
    if isinstance(value, tuple):
        raise context.findings.fail(f"expected a number, found {constants.describe_value(value)}", syntax.span)
    return value


def _require_number(operand: Element) -> Operand | bool | int | float:
    if isinstance(operand, str):
        raise OperatorError(f'expected a number, found the string "{operand[:40]}"')
    return operand


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
