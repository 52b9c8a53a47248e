"""Recurrences: `h[t, d] = a[t, d] * h[t - 1, d, outside = 0] + x[t, d]`, and several equations in `scan t { ... }`.

An equation that reads its own value at the step before is a recurrence along that index. In `scan`, equations read each
other's values: at this step behind their equations, at the step before anywhere. All of them become one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from einc.core.tensor import TensorDesc
from einc.errors import SourceSpan
from einc.frontend import ast
from einc.frontend.assembly import apply_equations
from einc.frontend.ast import iterate_parts
from einc.frontend.context import LoweringContext, list_reads
from einc.frontend.equation_indices import list_result, note_extents
from einc.frontend.equations import lower_equation
from einc.frontend.expressions import TensorValue
from einc.frontend.index_positions import OUTSIDE, ReadContext, place_items
from einc.frontend.joins import EquationScope, Join, RecurrenceParts
from einc.frontend.recurrence_equations import make_scope
from einc.ops.recurrence import build_recurrence, renumber_reads
from einc_runtime.plan.recurrences import OperandRead, RecurrenceEquation


def lower_recurrence(context: LoweringContext, statement: ast.EquationStmt) -> None:
    """One equation that reads its own value at the step before."""
    name = statement.target.text
    steps = {
        step.text
        for part in list_reads(statement)
        if isinstance(part.base, ast.Name) and part.base.text == name
        for item in part.indices
        if (step := _find_step(item)) is not None
    }
    if len(steps) != 1:
        message = f"'{name}' is not defined, and is not read at the step before along one index"
        hint = f"a recurrence reads its own value at the step before: `{name}[t - 1, ..., outside = 0]`"
        raise context.findings.fail(message, statement.span, hint)
    _lower(context, RecurrenceParts(steps.pop()), [statement], statement.span)


def lower_scan(context: LoweringContext, statement: ast.ScanStmt) -> None:
    """Equations that are computed together at each position of an index."""
    equations = []
    for inner in statement.body:
        if not isinstance(inner, ast.EquationStmt):
            message = "expected an index equation: nothing else may stand in 'scan'"
            raise context.findings.fail(message, inner.span)
        context.count_steps(inner)
        equations.append(inner)
    if not equations:
        raise context.findings.fail("'scan' has no equation", statement.span)
    _lower(context, RecurrenceParts(statement.along.text), equations, statement.span)


def _find_step(item: ast.IndexItem) -> ast.Name | None:
    """The index t of `t - 1`."""
    match item.value:
        case ast.BinaryExpr("-", ast.Name() as name, ast.LiteralExpr(1)):
            return name
        case _:
            return None


def _lower(
    context: LoweringContext, recurrence: RecurrenceParts, statements: Sequence[ast.EquationStmt], span: SourceSpan
) -> None:
    """Adds the operator of these equations to the graph, and defines their names."""
    scope = context.scope
    for statement in statements:
        context.check_new(statement.target)
        name = statement.target.text
        if name in recurrence.values:
            raise context.findings.fail(f"'{name}' has two equations", statement.target.span)
        _declare_value(context, recurrence, statement)
    named: dict[str, ast.Name] = {}
    for statement in statements:
        name = statement.target.text
        context.start_statement(scope.full_name(name))
        value = lower_equation(context, statement, name, recurrence)
        if recurrence.has(value):
            recurrence.values[name] = value
            named[name] = statement.target
        else:  # it reads no values: an operator of its own
            _require_unread(context, recurrence, statement)
            del recurrence.values[name]
            context.define(statement.target, value)
    if not named:
        message = "no equation reads a value of the step before"
        raise context.findings.fail(message, span, f"such as `h[{recurrence.along} - 1, outside = 0]`")
    context.start_statement(scope.full_name(next(iter(named))))
    _apply(context, recurrence, named, span)


def _require_unread(context: LoweringContext, recurrence: RecurrenceParts, statement: ast.EquationStmt) -> None:
    """Fails where an equation before this one has read its value, though it reads none itself."""
    number = list(recurrence.steps).index(f"@{statement.target.text}")
    read = [value.source for part in recurrence.equations for value in part.equation.value_reads]
    if number in read:
        message = f"'{statement.target.text}' reads no value of the step before, but is read before its equation"
        raise context.findings.fail(message, statement.span, "write its equation before those that read it")


def _declare_value(context: LoweringContext, recurrence: RecurrenceParts, statement: ast.EquationStmt) -> None:
    """Finds the form of a value from the tensors that its equation reads: extents by indices, and the type of the
    first one that is floating, or of what is found before the first step."""
    scope = make_scope(statement, None)
    note_extents(context, scope, statement.indices)
    known: dict[str, int] = {}
    read: list[TensorDesc] = []
    for part in list_reads(statement):
        tensor = _find_tensor(context, recurrence, part.base)
        if tensor is not None:
            read.append(tensor.desc)
            _note_places(context, scope, tensor.desc, part, known)
    indices = list_result(context, Join(scope), statement.indices)
    extents = {**context.parameters.dims, **known, **scope.extents}
    for index in indices:
        if index.index not in extents:
            message = f"the extent of index '{index.index}' is not known: no tensor is read at it alone"
            raise context.findings.fail(
                message, index.span, f"give it where the index stands alone: `{index.index} = 8`"
            )
    names = [index.index for index in indices]
    if recurrence.along not in names:
        message = f"'{statement.target.text}' has no index '{recurrence.along}', along which its recurrence runs"
        raise context.findings.fail(message, statement.span)
    steps = recurrence.loops.setdefault(recurrence.along, extents[recurrence.along])
    if steps != extents[recurrence.along]:
        message = (
            f"index '{recurrence.along}' is {extents[recurrence.along]:,} here, and {steps:,} in an equation before"
        )
        raise context.findings.fail(message, statement.span)
    starts = [start.desc.dtype for part in list_reads(statement) if (start := _find_start(context, part)) is not None]
    types = [*starts, *(desc.dtype for desc in read if desc.dtype.is_float), *(desc.dtype for desc in read)]
    if not types:
        message = f"the type of '{statement.target.text}' is not known: its equation reads no tensor before its value"
        raise context.findings.fail(message, statement.span)
    desc = TensorDesc(tuple(index.dim for index in indices), tuple(extents[name] for name in names), types[0])
    value = TensorValue(f"@{statement.target.text}", desc)
    recurrence.values[statement.target.text] = value
    recurrence.steps[value.name] = names.index(recurrence.along)


def _find_tensor(context: LoweringContext, recurrence: RecurrenceParts, syntax: ast.Expression) -> TensorValue | None:
    if not isinstance(syntax, ast.Name):
        return None
    value = recurrence.find(syntax.text) or context.scope.owner(syntax.text).values.get(syntax.text)
    return value if isinstance(value, TensorValue) else None


def _find_start(context: LoweringContext, read: ast.IndexedExpr) -> TensorValue | None:
    """The tensor with which a value starts, in `outside = h0[d]`."""
    for item in read.indices:
        if item.extent is not None and item.name is not None and item.name.text == OUTSIDE:
            for part in iterate_parts(item.extent):
                if isinstance(part, ast.Name):
                    value = context.scope.owner(part.text).values.get(part.text)
                    if isinstance(value, TensorValue):
                        return value
    return None


def _note_places(
    context: LoweringContext, scope: EquationScope, desc: TensorDesc, read: ast.IndexedExpr, known: dict[str, int]
) -> None:
    """Keeps the extents of indices at which a tensor is read alone, and what `...` stands for."""
    reading = ReadContext(context, Join(scope), _evaluate_nothing, _evaluate_nothing)
    items = [item for item in read.indices if item.extent is None]
    for dim, item in enumerate(place_items(reading, desc, items, read)):
        if item.value is None:
            known.setdefault(scope.spread_over(desc.dims[dim]), desc.shape[dim])
        elif isinstance(item.value, ast.Name) and item.value.text in scope.indices:
            known.setdefault(item.value.text, desc.shape[dim])


def _evaluate_nothing(*_: object) -> Any:
    raise AssertionError("positions are not evaluated here")


def _apply(context: LoweringContext, recurrence: RecurrenceParts, named: dict[str, ast.Name], span: SourceSpan) -> None:
    """The operator of all equations in the graph, with those that have a name as its results."""
    order = list(recurrence.steps)
    numbers = {k: recurrence.numbers[name] for k, name in enumerate(order) if name in recurrence.numbers}
    operands: dict[str, TensorValue] = {}
    equations: list[RecurrenceEquation] = []
    carried = {read.source for part in recurrence.equations for read in part.equation.value_reads if read.before}
    names = {number: name for name, number in recurrence.numbers.items()}

    def place(tensor: TensorValue) -> int:
        operands.setdefault(tensor.name, tensor)
        return list(operands).index(tensor.name)

    for number, part in enumerate(recurrence.equations):
        places = [place(tensor) for tensor in part.operands]
        equations.append(renumber_reads(part.equation, places.__getitem__, numbers.__getitem__))
        start = recurrence.starts.get(names[number])
        if start is None or order.index(names[number]) not in carried:
            continue
        initial: str | OperandRead = start.literal
        if start.tensor is not None:
            initial = OperandRead(place(start.tensor), tuple(part.equation.loops[dim] for dim in start.dims))
        equations[-1] = replace(equations[-1], initial=initial)
    extents = recurrence.loops
    used = [recurrence.along, *(name for equation in equations for name in equation.all_loops)]
    loops = [(name, extents[name]) for name in dict.fromkeys(used)]
    results = sorted((recurrence.numbers[f"@{name}"], name) for name in named)
    dims = [dim for _, name in results for dim in recurrence.values[name].desc.dims]
    with context.findings.locate_errors(span):
        operator = build_recurrence(
            [tensor.desc for tensor in operands.values()], loops, equations, [number for number, _ in results], dims
        )
    full_names = tuple(context.scope.full_name(name) for _, name in results)
    values = apply_equations(context, operator, list(operands.values()), full_names, span)
    for (_, name), value in zip(results, values, strict=True):
        context.define(named[name], value)
