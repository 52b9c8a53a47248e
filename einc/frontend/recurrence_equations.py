"""The equations of a recurrence, as those of its operator: each reads operands and values at single indices.

What reads neither its values nor the step before is an operator of its own, computed before the recurrence. So is what
is read at more than single indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast
from einc.frontend.assembly import apply_equation
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import TensorValue
from einc.frontend.index_positions import ELEMENT, find_index_names, name_items, note_start
from einc.frontend.joins import (
    Element,
    EquationScope,
    Join,
    JoinRead,
    PartialEquation,
    RecurrenceParts,
    ResultIndex,
    Start,
    build_join_operator,
    find_extents,
)
from einc.ops.scalar import resolve_program
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, Position
from einc_runtime.plan.recurrences import OperandRead, RecurrenceEquation, RecurrenceRead, ValueRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput


def make_scope(statement: ast.EquationStmt, recurrence: RecurrenceParts | None) -> EquationScope:
    names = find_index_names(statement.value) | frozenset(name_items(statement.indices))
    scope = EquationScope(names, recurrence=recurrence)
    if recurrence is not None and recurrence.along in recurrence.loops:
        scope.extents[recurrence.along] = recurrence.loops[recurrence.along]
    return scope


def find_value(join: Join, syntax: ast.Expression) -> TensorValue | None:
    """The value of the recurrence that an equation belongs to, if a name stands for one."""
    recurrence = join.scope.recurrence
    return recurrence.find(syntax.text) if recurrence is not None and isinstance(syntax, ast.Name) else None


def reads_values(join: Join) -> bool:
    """Whether an equation reads values of the recurrence that it belongs to."""
    recurrence = join.scope.recurrence
    return recurrence is not None and any(recurrence.has(read.tensor) for read in join.reads)


def add_equation(
    context: LoweringContext,
    join: Join,
    element: Element,
    result: Sequence[ResultIndex],
    aggregation: str | None,
    names: tuple[str, ...],
    span: SourceSpan,
) -> TensorValue:
    """Adds an equation to its recurrence, under its name if it has one. Returns its value, as others read it."""
    recurrence = join.scope.recurrence
    assert recurrence is not None
    along = recurrence.along
    if along not in {index.index for index in result}:
        message = f"'{along}' is aggregated within its recurrence"
        raise context.findings.fail(message, span, "aggregate over it in an equation of its own, behind the recurrence")
    extents = find_extents(context, join, result, span)
    for name, extent in extents.items():
        if recurrence.loops.setdefault(name, extent) != extent:
            message = f"index '{name}' has extent {recurrence.loops[name]:,} in another equation, and {extent:,} here"
            raise context.findings.fail(message, join.first_place(name, span), "give one of them another name")
    operands: list[TensorValue] = []
    reads = tuple(_find_read(context, recurrence, join, read, extents, operands) for read in join.reads)
    join.program.arity = len(reads)
    with context.findings.locate_errors(join.locate_argument(span)):
        if not isinstance(element, Operand):
            raise OperatorError("expected a value of the recurrence in its equation")
        program = join.program.program(element)
        types = [original.tensor.desc.dtype if original.tensor is not None else DType.I64 for original in join.reads]
        dtype = resolve_program(program, types)[1][-1]
    loops = tuple(index.index for index in result)
    gone = aggregation if aggregation is not None and len(extents) > len(loops) else ""
    name = f"@{names[0]}" if names else f"@{len(recurrence.equations)}"
    desc = TensorDesc(tuple(index.dim for index in result), tuple(extents[name] for name in loops), dtype)
    if names and name in recurrence.steps:
        declared = next(value.desc for value in recurrence.values.values() if value.name == name)
        if declared.dtype is not dtype:
            message = f"its equation results in {dtype}, but it is read as {declared.dtype}"
            raise context.findings.fail(message, span, f'convert the result: cast(..., "{declared.dtype}")')
    recurrence.steps[name] = loops.index(along)
    recurrence.numbers[name] = len(recurrence.equations)
    equation = RecurrenceEquation(dtype.value, loops, reads, program.text, gone)
    recurrence.equations.append(PartialEquation(equation, tuple(operands)))
    return TensorValue(name, desc)


def _find_read(
    context: LoweringContext,
    recurrence: RecurrenceParts,
    join: Join,
    read: JoinRead,
    extents: Mapping[str, int],
    operands: list[TensorValue],
) -> RecurrenceRead:
    """A read of an operand, or of a value of the recurrence, whose number stands for its name until all are known."""
    if recurrence.has(read.tensor):
        return _find_value_read(context, recurrence, read, extents)
    tensor, names = read.tensor, read.labels
    if tensor is None or names is None or len(set(names)) < len(names) or tensor.desc.shape != _measure(names, extents):
        tensor, names = _compute_before(context, join, read, extents)
    if tensor not in operands:
        operands.append(tensor)
    return OperandRead(operands.index(tensor), tuple(names))


def _measure(names: Sequence[str], extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extents[name] for name in names)


def _find_value_read(
    context: LoweringContext, recurrence: RecurrenceParts, read: JoinRead, extents: Mapping[str, int]
) -> ValueRead:
    value = read.tensor
    assert value is not None
    step, title = recurrence.steps[value.name], value.name[1:]
    before = read.positions[step] == Position(((recurrence.along, 1),), -1)
    if not before and read.positions[step] != Position(((recurrence.along, 1),)):
        raise context.findings.fail(
            f"'{title}' is read at '{read.positions[step]}', and its recurrence runs along '{recurrence.along}'",
            read.span,
            f"read it at '{recurrence.along} - 1', or at '{recurrence.along}' behind its equation",
        )
    names = [position.loop for position in read.positions]
    plain = all(
        name is not None and p.constant == 0
        for k, (name, p) in enumerate(zip(names, read.positions, strict=True))
        if k != step
    )
    if not plain or len(set(names)) < len(names):
        message = f"'{title}' is read at more than single indices within its recurrence"
        raise context.findings.fail(message, read.span, "read it so in an equation behind the recurrence")
    for name, extent in zip(names, value.desc.shape, strict=True):
        if name is not None and extents[name] != extent:
            message = f"index '{name}' is {extents[name]:,} elsewhere, but {value.desc} has {extent:,}"
            raise context.findings.fail(message, read.span)
    if before and not read.outside:
        message = f"it is not said what '{title}' is before the first step"
        raise context.findings.fail(message, read.span, "say it as the last item in brackets: `outside = 0`")
    if before and read.outside == NEAREST_ELEMENT:
        raise context.findings.fail("nothing is nearest before the first step", read.span, "give a number or a tensor")
    if before and read.outside != ELEMENT:
        note_start(context, recurrence, value, Start(read.outside), read.span)
    if not before and value.name not in recurrence.numbers:
        message = f"'{title}' is not known at this step yet: its equation stands further down"
        raise context.findings.fail(message, read.span, f"read the step before: '{recurrence.along} - 1'")
    number = list(recurrence.steps).index(value.name)
    return ValueRead(number, tuple(str(name) for name in names), before, recurrence.along)


def _compute_before(
    context: LoweringContext, join: Join, read: JoinRead, extents: Mapping[str, int]
) -> tuple[TensorValue, tuple[str, ...]]:
    """A tensor that has what a read finds at each index vector on which it depends."""
    inner = Join(replace(join.scope, extents=dict(extents), recurrence=None))
    numbers: dict[int, int] = {}

    def copy(original: JoinRead) -> ScalarInput:
        if original.tensor is None:
            return inner.read_index(original.positions[0].loops[0], original.span)
        for position in original.positions:
            for number in position.elements:
                numbers[number] = copy(join.reads[number]).position
        positions = tuple(
            replace(
                position,
                terms=tuple((f"@{numbers[int(n[1:])]}" if n[0] == "@" else n, factor) for n, factor in position.terms),
            )
            for position in original.positions
        )
        return inner.read(original.tensor, positions, original.span, original.outside)

    element = copy(read)
    names = inner.indices()
    result = inner.name_result(names, read.span)
    operator, tensors = build_join_operator(context, inner, element, result, None, read.span)
    return apply_equation(context, operator, tensors, (), read.span), names
