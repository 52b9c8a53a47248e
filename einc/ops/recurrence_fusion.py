"""Elementwise operators before a recurrence, and what reads its result step by step, as equations of the recurrence.

So a selective scan keeps its states where they are computed: only what they add up to is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc.core.tensor import DType
from einc.ops.base import Operator
from einc.ops.equation import MAX_FUSED_STEPS, Equation
from einc.ops.recurrence import RecurrenceOperator, build_recurrence, renumber_reads
from einc.ops.scalar import ProgramBuilder
from einc_runtime.plan.recurrences import MAX_EQUATIONS, OperandRead, RecurrenceEquation, RecurrenceRead, ValueRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput

NARROW = (DType.F16, DType.BF16)


def fuse_recurrences(consumer: Operator, k: int, producer: Operator) -> Operator | None:
    """`consumer` with `producer` computed in place of its input `k`, where one of them is a recurrence and nothing is
    computed more often than before; None where that is impossible.

    The inputs are the consumer's, with input `k` replaced by the producer's in place.
    """
    if isinstance(consumer, RecurrenceOperator) and isinstance(producer, Equation):
        return _compute_before(consumer, k, producer)
    if isinstance(consumer, Equation) and isinstance(producer, RecurrenceOperator):
        return _compute_behind(consumer, k, producer)
    return None


def _compute_before(consumer: RecurrenceOperator, k: int, producer: Equation) -> Operator | None:
    """An elementwise operator whose result a recurrence reads: within the equation that reads it at all its loops, else
    as an equation of its own, which is computed once at each step."""
    program, along = consumer.program, consumer.program.along
    readers = [
        number
        for number, equation in enumerate(program.equations)
        if k in [read.source for read in equation.operand_reads]
    ]
    reads = [read for equation in program.equations for read in equation.operand_reads if read.source == k]
    starts = any(
        isinstance(equation.initial, OperandRead) and equation.initial.source == k for equation in program.equations
    )
    if producer.aggregation is not None or producer.windows or starts or len({read.loops for read in reads}) != 1:
        return None
    if any(len(set(labels)) < len(labels) for labels in producer.labels):
        return None
    if producer.dtype in NARROW and any(program.equations[number].scalar.is_discontinuous for number in readers):
        return None
    names = dict(zip(producer.result, reads[0].loops, strict=True))
    inner = [OperandRead(k + j, tuple(names[n] for n in labels)) for j, labels in enumerate(producer.labels)]
    added = len(producer.operands) - 1
    moved = [renumber_reads(equation, lambda source: source + added * (source > k)) for equation in program.equations]
    operands = (*consumer.operands[:k], *producer.operands, *consumer.operands[k + 1 :])
    reader = program.equations[readers[0]]
    if len(reads) == 1 and set(reads[0].loops) == set(reader.all_loops):
        if len(reader.scalar.steps) + len(producer.program.steps) > MAX_FUSED_STEPS:
            return None
        position = reader.reads.index(reads[0])
        moved[readers[0]] = _read_through(moved[readers[0]], position, inner, producer)
        return build_recurrence(operands, program.loops, moved, program.results, consumer.dims)
    if along not in reads[0].loops or len(moved) == MAX_EQUATIONS:
        return None
    value = ValueRead(0, reads[0].loops, False, along)

    def replace_read(read: RecurrenceRead, number: int, position: int) -> RecurrenceRead:
        return value if program.equations[number].reads[position] == reads[0] else read

    shifted = [renumber_reads(equation, int, lambda source: source + 1) for equation in moved]
    behind = [
        replace(equation, reads=tuple(replace_read(read, n, position) for position, read in enumerate(equation.reads)))
        for n, equation in enumerate(shifted)
    ]
    first = RecurrenceEquation(producer.dtype.value, reads[0].loops, tuple(inner), producer.program.text)
    results = [number + 1 for number in program.results]
    return build_recurrence(operands, program.loops, [first, *behind], results, consumer.dims)


def _read_through(
    equation: RecurrenceEquation, position: int, inner: Sequence[OperandRead], producer: Equation
) -> RecurrenceEquation:
    """The equation in which a producer is computed in place of a read."""
    reads = (*equation.reads[:position], *inner, *equation.reads[position + 1 :])
    builder = ProgramBuilder(len(reads))
    passed = builder.insert(producer.program, [ScalarInput(position + j) for j in range(len(inner))])
    inputs: list[Operand] = [ScalarInput(j if j < position else j + len(inner) - 1) for j in range(len(equation.reads))]
    inputs[position] = passed
    return replace(equation, reads=reads, program=builder.program(builder.insert(equation.scalar, inputs)).text)


def _compute_behind(consumer: Equation, k: int, producer: RecurrenceOperator) -> Operator | None:
    """What reads the only result of a recurrence at each step, and aggregates over no other loops than those of the
    result: so no product of matrices, which is faster over all steps together."""
    program, labels = producer.program, consumer.labels[k]
    (number,) = program.results
    result = program.equations[number]
    names: Mapping[str, str] = dict(zip(labels, result.loops, strict=True))
    if len(names) < len(labels) or consumer.windows or not {n for each in consumer.labels for n in each} <= set(names):
        return None
    if any(len(set(each)) < len(each) for each in consumer.labels) or not set(consumer.result) <= set(names):
        return None
    loops = tuple(names[name] for name in consumer.result)
    if program.along not in loops or len(program.equations) == MAX_EQUATIONS:
        return None
    if producer.outputs[0].dtype in NARROW and consumer.program.is_discontinuous:
        return None
    added = len(producer.operands) - 1
    reads: list[RecurrenceRead] = [
        OperandRead(j + added * (j > k), tuple(names[name] for name in each)) for j, each in enumerate(consumer.labels)
    ]
    reads[k] = ValueRead(number, result.loops, False, program.along)
    last = RecurrenceEquation(
        consumer.dtype.value, loops, tuple(reads), consumer.program.text, consumer.aggregation or ""
    )
    moved = [renumber_reads(equation, lambda source: source + k) for equation in program.equations]
    operands = (*consumer.operands[:k], *producer.operands, *consumer.operands[k + 1 :])
    return build_recurrence(operands, program.loops, [*moved, last], [len(moved)], consumer.dims)
