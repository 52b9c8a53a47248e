"""Elementwise operators and index programs that become one index program, so that no data moves between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from einc.core.tensor import DType, TensorDesc
from einc.ops.base import Operator
from einc.ops.equation import MAX_FUSED_STEPS, Equation
from einc.ops.index_operator import IndexOperator, build_index_operator, find_parts
from einc.ops.scalar import ProgramBuilder
from einc_runtime.plan.index_programs import IndexProgram, Position, Read, TensorRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarProgram


def fuse_index_programs(consumer: Operator, k: int, producer: Operator) -> Operator | None:
    """`consumer` with `producer` computed in place of its input `k`, where one of them is an index program, neither
    aggregates, and nothing is computed more often than before; None where that is impossible.

    The inputs are the consumer's, with input `k` replaced by the producer's in place.
    """
    if isinstance(consumer, IndexOperator) and isinstance(producer, Equation):
        if consumer.program.is_expert_product:
            return _pick_transposed(consumer, k, producer)
        return _read_through(consumer, k, producer)
    if isinstance(consumer, Equation) and isinstance(producer, IndexOperator):
        return _compute_behind(consumer, k, producer)
    return None


def _pick_transposed(consumer: IndexOperator, k: int, producer: Equation) -> Operator | None:
    """A product with picked experts whose matrices are read as they lie before they are transposed."""
    moved = producer.title == "transpose" and producer.dtype is producer.operands[0].dtype
    if k != 1 or not moved:
        return None
    matrices, *reads = consumer.program.reads
    assert isinstance(matrices, TensorRead)
    at = dict(zip(producer.result, matrices.positions, strict=True))
    program = replace(
        consumer.program, reads=(replace(matrices, positions=tuple(at[name] for name in producer.labels[0])), *reads)
    )
    operands = (consumer.operands[0], producer.operands[0], consumer.operands[2])
    fused = build_index_operator(operands, program, consumer.scalar, consumer.dims)
    return fused if program.is_expert_product else None


def _read_through(consumer: IndexOperator, k: int, producer: Equation) -> Operator | None:
    """An elementwise operator at each position where an index program reads its result."""
    program, size = consumer.program, math.prod(consumer.operands[k].shape)
    if program.aggregation or producer.aggregation is not None or producer.windows:
        return None
    through = [
        number for number, read in enumerate(program.reads) if isinstance(read, TensorRead) and read.operand == k
    ]
    named = {n for read in program.reads if isinstance(read, TensorRead) for p in read.positions for n in p.elements}
    vectors = len(through) * math.prod(extent for _, extent in program.loops)
    if vectors > size or named.intersection(through) or _has_many_steps(consumer.scalar, producer.program):
        return None
    reads: list[Read] = []
    places: list[list[int]] = []  # for each read of the consumer, the reads in its place
    for number, read in enumerate(program.reads):
        if not isinstance(read, TensorRead) or number not in through:
            places.append([len(reads)])
            reads.append(_move_operand(read, k, len(producer.operands) - 1))
            continue
        if read.outside:
            return None
        at = dict(zip(producer.result, read.positions, strict=True))
        places.append(list(range(len(reads), len(reads) + len(producer.operands))))
        reads += [TensorRead(k + j, tuple(at[name] for name in names)) for j, names in enumerate(producer.labels)]
    builder = ProgramBuilder(len(reads))
    rounding = _find_rounding(consumer.scalar, producer.dtype)
    inputs: list[Operand] = []
    for number, (first, *_) in enumerate(places):
        if number not in through:
            inputs.append(ScalarInput(first))
            continue
        passed = builder.insert(producer.program, [ScalarInput(number) for number in places[number]])
        inputs.append(passed if rounding is None else builder.add(rounding, passed))
    moved = tuple(_renumber_elements(read, [first for first, *_ in places]) for read in reads)
    scalar = builder.program(builder.insert(consumer.scalar, inputs))
    operands = (*consumer.operands[:k], *producer.operands, *consumer.operands[k + 1 :])
    return _build(operands, program.loops, moved, scalar, consumer.dims)


def _compute_behind(consumer: Equation, k: int, producer: IndexOperator) -> Operator | None:
    """An elementwise operator of what an index program results in."""
    label, program = consumer.labels[k], producer.program
    # A lookup is a kernel of its own anyway, and alone its table may be cut along its rows; parts are copied.
    if program.lookup is not None or find_parts(producer) is not None:
        return None
    if consumer.aggregation is not None or program.aggregation or consumer.windows:
        return None
    if sorted(label) != sorted(consumer.result) or _has_many_steps(consumer.program, producer.scalar):
        return None
    renamed = dict(zip(program.result, label, strict=True))
    extents = dict(zip(label, producer.outputs[0].shape, strict=True))
    reads: list[Read] = []
    inputs: list[Operand] = []
    builder = ProgramBuilder(len(program.reads) + len(consumer.operands) - 1)
    for number, names in enumerate(consumer.labels):
        if number == k:
            first = len(reads)
            within = range(first, first + len(program.reads))
            for read in program.reads:
                reads.append(_renumber_elements(_rename_loops(_move_operand(read, 0, k), renamed), within))
            passed = builder.insert(producer.scalar, [ScalarInput(first + j) for j in range(len(program.reads))])
            rounding = _find_rounding(consumer.program, producer.outputs[0].dtype)
            inputs.append(passed if rounding is None else builder.add(rounding, passed))
            continue
        operand = number if number < k else number + len(producer.operands) - 1
        inputs.append(ScalarInput(len(reads)))
        reads.append(TensorRead(operand, tuple(Position(((name, 1),)) for name in names)))
    scalar = builder.program(builder.insert(consumer.program, inputs))
    operands = (*consumer.operands[:k], *producer.operands, *consumer.operands[k + 1 :])
    loops = tuple((name, extents[name]) for name in consumer.result)
    return _build(operands, loops, reads, scalar, consumer.dims)


def _build(
    operands: Sequence[TensorDesc],
    loops: Sequence[tuple[str, int]],
    reads: Sequence[Read],
    scalar: ScalarProgram,
    dims: Sequence[str],
) -> Operator:
    return build_index_operator(operands, IndexProgram(tuple(loops), len(loops), tuple(reads), "", ""), scalar, dims)


def _has_many_steps(consumer: ScalarProgram, producer: ScalarProgram) -> bool:
    return len(consumer.steps) + len(producer.steps) > MAX_FUSED_STEPS


def _find_rounding(consumer: ScalarProgram, dtype: DType) -> str | None:
    """The conversion of what is passed on, where a comparison or the like could depend on the rounding to 16 bits."""
    return f"cast:{dtype}" if dtype in (DType.F16, DType.BF16) and consumer.is_discontinuous else None


def _move_operand(read: Read, k: int, by: int) -> Read:
    """The read where `by` more operands stand before those behind operand `k`."""
    if not isinstance(read, TensorRead) or read.operand < k:
        return read
    return TensorRead(read.operand + by, read.positions, read.outside)


def _rename_loops(read: Read, names: dict[str, str]) -> Read:
    if not isinstance(read, TensorRead):
        return type(read)(names[read.loop])
    positions = tuple(
        Position(
            tuple((names.get(name, name), factor) for name, factor in position.terms),
            position.constant,
            position.divisor,
            position.modulus,
        )
        for position in read.positions
    )
    return TensorRead(read.operand, positions, read.outside)


def _renumber_elements(read: Read, places: Sequence[int]) -> Read:
    """The read whose positions name elements of reads that are at other places now."""
    if not isinstance(read, TensorRead):
        return read
    return _rename_loops(read, {f"@{number}": f"@{new_number}" for number, new_number in enumerate(places)})
