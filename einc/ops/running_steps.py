"""Running aggregates as recurrences, which carry what all earlier tokens add up to."""

from __future__ import annotations

from collections.abc import Mapping

from einc.core.tensor import DType
from einc.ops.index_operator import IndexOperator
from einc.ops.recurrence import RecurrenceOperator, build_recurrence
from einc.ops.scalar import ProgramBuilder
from einc_runtime.plan.index_patterns import RunningAggregate, find_identity
from einc_runtime.plan.index_programs import Position, TensorRead
from einc_runtime.plan.recurrences import OperandRead, RecurrenceEquation, ValueRead
from einc_runtime.plan.scalar_programs import ScalarInput, ScalarLiteral, ScalarProgram

_COMBINING: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def write_recurrence(operator: IndexOperator, running: RunningAggregate, tokens: int) -> RecurrenceOperator | None:
    """The recurrence that computes a running aggregate over so many tokens, up to each or up to the one before; None
    where it reads other places than the token's own, or not all operands."""
    values, dtype = running.values, operator.outputs[0].dtype
    extents, reads = dict(values.loops), []
    for read in values.reads:
        at = [] if not isinstance(read, TensorRead) else [position.loop for position in read.positions]
        names = [name for name in at if name is not None]
        if not isinstance(read, TensorRead) or read.positions != tuple(Position(((name, 1),)) for name in names):
            return None
        if len(set(names)) < len(names) or [extents[name] for name in names] != [
            *operator.operands[read.operand].shape
        ]:
            return None
        reads.append(OperandRead(read.operand, tuple(names)))
    is_whole = extents[running.loop] == operator.program.extents[running.along] == tokens
    every = {read.source for read in reads} == set(range(len(operator.operands)))
    fits = is_whole and every and not values.reduced and running.shift in (0, -1) and not running.is_behind
    if not fits or dtype is DType.BOOL:
        return None
    builder, loops = ProgramBuilder(len(reads) + 1), values.result
    scalar = ScalarProgram.parse(values.program, len(reads))
    value = builder.insert(scalar, [ScalarInput(k) for k in range(len(reads))])
    program = builder.program(builder.add(_COMBINING[operator.program.aggregation], ScalarInput(len(reads)), value))
    initial = str(ScalarLiteral.of(find_identity(operator.program.aggregation, dtype.value)))
    before = ValueRead(0, loops, True, running.loop)
    equations = [RecurrenceEquation(dtype.value, loops, (*reads, before), program.text, "", initial)]
    if running.shift:
        equations.append(RecurrenceEquation(dtype.value, loops, (before,), "t0 = copy x0"))
    order = [(running.loop, tokens), *((name, extents[name]) for name in loops if name != running.loop)]
    return build_recurrence(operator.operands, order, equations, [len(equations) - 1], operator.dims)
