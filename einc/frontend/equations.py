"""Index equations: from `y[i, k] = sum[j](a[i, j] * b[j, k])` to joins, each with one aggregation.

One equation becomes one operator. An aggregation inside its expression becomes an operator before it, and so does a
call or infix expression that is indexed (paper, Section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.assembly import apply_equation, resolve_dtype
from einc.frontend.ast import iterate_parts, unfold_chain
from einc.frontend.constants import Static
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import INFIX, NEGATION, TensorValue, evaluate_integer, evaluate_value
from einc.frontend.findings import evaluate_each
from einc.frontend.index_positions import CONDITIONS, ReadContext, find_dimension, name_dimension, read_element
from einc.frontend.joins import Element, EquationScope, Join, RecurrenceParts, ResultIndex, build_join_operator
from einc.frontend.recurrence_equations import add_equation, find_value, make_scope, reads_values
from einc.ops import registry
from einc.ops.functions import AGGREGATIONS, CALL_SIGNATURES, COMPOSED, find_identity
from einc.ops.scalar import resolve_program
from einc_runtime.plan.index_programs import MAX_NUMBER, Position
from einc_runtime.plan.scalar_programs import Operand, ScalarInput
from einc_runtime.text import did_you_mean, format_count


def lower_equation(
    context: LoweringContext, statement: ast.EquationStmt, name: str, recurrence: RecurrenceParts | None = None
) -> TensorValue:
    """The tensor that an equation defines, with this preferred name; or the value that it is in a recurrence."""
    value = statement.value
    scope = make_scope(statement, recurrence)
    note_extents(context, scope, statement.indices)
    if isinstance(value, ast.AggregateExpr):
        return _aggregate(context, scope, value, statement.indices, (name,), statement.span)
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
    return _apply(context, join, element, result, "sum" if missing else None, (name,), statement.span)


def _aggregate(
    context: LoweringContext,
    scope: EquationScope,
    syntax: ast.AggregateExpr,
    items: Sequence[ast.IndexItem] | None,
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue:
    """An aggregation as an operator. Where `items` do not name its result, that has all other indices, in order."""
    operation = syntax.operation
    if operation.text not in AGGREGATIONS:
        raise context.findings.fail(
            f"there is no aggregation '{operation.text}'",
            operation.span,
            did_you_mean(operation.text, AGGREGATIONS) or f"use one of {', '.join(AGGREGATIONS)}",
        )
    if not syntax.indices:
        raise context.findings.fail(f"expected indices to aggregate over, found '{operation.text}[]'", operation.span)
    note_extents(context, scope, syntax.indices)
    aggregated = _list_aggregated(context, syntax.indices)
    conditions = [item.value for item in syntax.indices if isinstance(item.value, ast.BinaryExpr)]
    join = Join(scope, operation.text == "sum" and not conditions and _is_product(syntax.body))
    element = _evaluate(context, join, syntax.body)
    for condition in conditions:
        element = _add_condition(context, join, element, condition, operation.text)
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
    if items is None:
        return _apply(context, join, element, join.name_result(left, span), operation.text, result_names, span)
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
    return _apply(context, join, element, result, operation.text, result_names, span)


def note_extents(context: LoweringContext, scope: EquationScope, items: Sequence[ast.IndexItem]) -> None:
    """Keeps the extents that items give."""
    for item in items:
        if item.extent is not None and item.name is not None:
            extent = evaluate_integer(context, item.extent, "an extent")
            if not 1 <= extent < MAX_NUMBER:
                raise context.findings.fail(f"an extent is at least 1, found {extent:,}", item.extent.span)
            if scope.extents.setdefault(item.name.text, extent) != extent:
                raise context.findings.fail(f"index '{item.name.text}' has two extents", item.span)


def _list_aggregated(context: LoweringContext, items: Sequence[ast.IndexItem]) -> list[ast.Name]:
    """The indices that are aggregated over: alone, with an extent, or with a condition."""
    names = []
    for item in items:
        condition = item.value if isinstance(item.value, ast.BinaryExpr) else None
        name = condition.left if condition is not None and condition.operator in CONDITIONS else item.value
        if not isinstance(name, ast.Name) or item.dimension is not None:
            message = "expected an index to aggregate over"
            raise context.findings.fail(message, item.span, "such as `k`, `k = 8` or `k <= t`")
        names.append(name)
    _check_unique(context, names)
    return names


def list_result(context: LoweringContext, join: Join, items: Sequence[ast.IndexItem]) -> list[ResultIndex]:
    """The indices of a result. With `...`, they are in the order of the dimensions of the first tensor that is read
    with it, and an index that stands for one of these dimensions takes its place."""
    scope = join.scope
    reference = scope.reference if any(item.value is None for item in items) else None
    result: list[ResultIndex] = []
    placed: dict[str, ResultIndex] = {}
    for item in items:
        if item.value is None:
            continue
        if item.name is None:
            hint = "the left side has names, `name = extent`, or `dimension: name`"
            raise context.findings.fail("expected an index of the result", item.span, hint)
        index = ResultIndex(item.name.text, item.name.text, item.span)
        if item.dimension is None:
            result.append(index)
        elif reference is None:
            result.append(replace(index, dim=name_dimension(context, item.dimension)))
        else:
            place = find_dimension(context, item.dimension, reference.dims)
            placed[reference.dims[place]] = replace(index, dim=reference.dims[place])
            scope.extents.setdefault(index.index, reference.shape[place])
    if reference is not None:
        at = next(place for place, item in enumerate(items) if item.value is None)
        before = sum(item.dimension is None for item in items[:at])
        result[before:before] = _spread_result(scope, reference, placed, items[at].span)
    for k, index in enumerate(result):
        if index.index in {earlier.index for earlier in result[:k]}:
            message = f"index '{index.index}' stands twice here"
            raise context.findings.fail(message, index.span, "each index may stand once")
    return result


def _spread_result(
    scope: EquationScope, reference: TensorDesc, placed: Mapping[str, ResultIndex], span: SourceSpan
) -> list[ResultIndex]:
    """What `...` stands for in a result: the dimensions of its tensor, then those of others that are read with it."""
    indices = {dim: name for name, dim in scope.spread.items()}
    result = []
    for dim in (*reference.dims, *(dim for dim in indices if dim not in reference.dims)):
        if dim in placed:
            result.append(placed[dim])
        elif dim in indices:
            result.append(ResultIndex(indices[dim], dim, span))
    return result


def _apply(
    context: LoweringContext,
    join: Join,
    element: Element,
    result: Sequence[ResultIndex],
    aggregation: str | None,
    result_names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue:
    """The operator of a join in the graph."""
    if not join.reads:
        raise context.findings.fail("expected a tensor with indices on the right of '='", span)
    if reads_values(join):
        return add_equation(context, join, element, result, aggregation, result_names, span)
    operator, tensors = build_join_operator(context, join, element, result, aggregation, span)
    return apply_equation(context, operator, tensors, result_names, span)


def _apply_position(context: LoweringContext, join: Join, element: Element, span: SourceSpan) -> TensorValue:
    """A join whose result has all its indices: positions that are read afterwards."""
    return _apply(context, join, element, join.name_result(join.indices(), span), None, (), span)


def _add_condition(
    context: LoweringContext, join: Join, element: Element, condition: ast.BinaryExpr, aggregation: str
) -> Element:
    """The element where a condition holds, else what changes no aggregate."""
    if not isinstance(element, Operand):
        raise context.findings.fail("expected a tensor with indices in what is aggregated", condition.span)
    holds = _evaluate(context, join, condition)
    if isinstance(condition.right, ast.Name) and isinstance(condition.left, ast.Name):
        join.scope.alike.setdefault(condition.right.text, condition.left.text)
    join.program.arity = len(join.reads)
    types = [DType.I64 if read.tensor is None else read.tensor.desc.dtype for read in join.reads]
    try:
        dtype = resolve_program(join.program.program(element), types)[1][-1]
        return join.program.add("where", _require_number(holds), element, find_identity(aggregation, dtype))
    except OperatorError as error:
        raise context.findings.fail(error.message, condition.span, error.hint) from None


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
    inner = replace(join.scope, extents=dict(join.scope.extents), spread=dict(join.scope.spread))
    value = _aggregate(context, inner, syntax, None, (), syntax.span)
    if join.scope.reference is None:
        join.scope.reference = inner.reference
    indices = {dim: name for name, dim in inner.spread.items()}
    join.scope.spread.update({indices[dim]: dim for dim in value.desc.dims if dim in indices})
    positions = tuple(Position(((indices.get(dim, dim), 1),)) for dim in value.desc.dims)
    return join.read(value, positions, syntax.span)


def _read(context: LoweringContext, join: Join, syntax: ast.IndexedExpr) -> ScalarInput:
    """An element of a tensor."""
    base = find_value(join, syntax.base) or evaluate_value(context, syntax.base)
    if not isinstance(base, TensorValue):
        found = constants.describe_value(base)
        raise context.findings.fail(f"expected a tensor, found {found}", syntax.base.span)
    return read_element(ReadContext(context, join, _evaluate, _apply_position), base, syntax)


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
    if not any(
        isinstance(part, ast.IndexedExpr | ast.AggregateExpr)
        or (isinstance(part, ast.Name) and _is_index(context, join, part))
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
    result, *others = operands
    for step, operand in zip(COMPOSED[function], others, strict=True):
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
