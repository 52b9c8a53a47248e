"""Scans in blocks whose carries are exchanged: a recurrence, or a running aggregate, as several operators.

A scan is whole along the index of its steps. In blocks, it is cut there: what the steps of a block do to a value that
is carried through them is computed for each block, then what is carried to each block, and then the steps of all blocks
from there. These are recurrences and index programs, of which blocks are an index.

A recurrence must be affine in each value that it carries, `a[t] * h[t - 1] + b[t]`, at the same position: the steps of
a block are one such pair (a, b). Results differ from those of whole scans by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from einc.core.tensor import DType, TensorDesc
from einc.ops.affine_steps import split_affine
from einc.ops.base import Operator
from einc.ops.index_operator import IndexOperator, build_index_operator
from einc.ops.recurrence import RecurrenceOperator, build_recurrence, renumber_reads
from einc.ops.running_blocks import block_running_aggregate
from einc.ops.scalar import ProgramBuilder
from einc.ops.scan_parts import (
    BlockedSteps,
    PartInput,
    ScanPart,
    copy_program,
    join_blocks,
    list_new_reads,
    replace_name,
)
from einc_runtime.plan.index_programs import IndexProgram, IndexRead, Position, Read, TensorRead
from einc_runtime.plan.recurrences import OperandRead, RecurrenceEquation, ValueRead
from einc_runtime.plan.scalar_programs import ScalarInput, ScalarLiteral

PAIR_AGGREGATE = (
    "affine [1.0 0.0]: t0 = eq x1 0.0; t1 = mul x2 x1; t2 = where t0 0.0 t1; t3 = mul x2 x0; t4 = add t2 x3"
)
"""First h becomes x0 * h + x1, then x2 * that + x3: the pair of both is (x2 * x0, x2 * x1 + x3). Nothing comes of 0,
also where factors have no finite product."""

CARRY_ON = "t0 = mul x0 x1; t1 = eq x1 0.0; t2 = where t1 0.0 t0; t3 = add t2 x2"
"""What a block makes of the value before it, with nothing of 0 again."""

START_PART = "starts"
"""The part that has the value before the first step of each block."""


def _name(part: str, number: int) -> str:
    return f"{part}{number + 1}" if number else part


def block_scan(operator: Operator, blocks: int) -> tuple[ScanPart, ...] | None:
    """The parts of a scan in so many blocks, or in a few less; None where an operator has no blocks."""
    if isinstance(operator, RecurrenceOperator):
        return _block_recurrence(operator, blocks)
    return block_running_aggregate(operator, blocks) if isinstance(operator, IndexOperator) else None


def _block_recurrence(operator: RecurrenceOperator, blocks: int) -> tuple[ScanPart, ...] | None:
    program = operator.program
    steps = BlockedSteps.of(program.extents, program.along, blocks)
    axes = _find_axes(operator)
    if steps is None or axes is None:
        return None
    parts: list[ScanPart] = []
    for number in program.carried:
        pairs = _sum_up(operator, number, steps)
        if pairs is None:
            return None
        parts += [pairs, _carry_on(operator, number, pairs, steps)]
    for number, axis in enumerate(axes):
        if axis >= 0:
            parts.append(_split_operand(operator.operands[number], number, axis, steps))
    return (*parts, *_compute_blocks(operator, axes, steps))


def _find_axes(operator: RecurrenceOperator) -> list[int] | None:
    """The dimension of each operand that runs along the steps, -1 if it has none; None where reads of one differ."""
    program, axes = operator.program, list[int]()
    for number in range(len(operator.operands)):
        reads = [read.loops for read in program.operand_reads if read.source == number]
        places = {names.index(program.along) if program.along in names else -1 for names in reads}
        if len(places) > 1:
            return None
        axes.append(places.pop())
    return axes


def _sum_up(operator: RecurrenceOperator, number: int, steps: BlockedSteps) -> ScanPart | None:
    """What the steps of each block do to a value that is carried through them, as a pair of a factor and a term."""
    program = operator.program
    equation = program.equations[number]
    affine = split_affine(program, number)
    if affine is None:
        return None
    sources = sorted({read.source for read in affine.reads})
    reads: list[Read] = []
    for read in affine.reads:
        moves = program.along in read.loops
        positions = tuple(steps.position() if n == program.along else Position(((n, 1),)) for n in read.loops)
        reads.append(TensorRead(sources.index(read.source), positions, steps.outside if moves else ""))
    reads += [IndexRead(steps.block), IndexRead(steps.step)]
    builder, count = ProgramBuilder(len(reads)), len(affine.reads)
    pair = builder.insert_all(affine.program, list(map(ScalarInput, range(count))))[-2:]
    values = [
        steps.mask(builder, value, ScalarLiteral.of(identity), count)
        for value, identity in zip(pair, (1.0, 0.0), strict=True)
    ]
    names = [name for name in equation.loops if name != program.along]
    loops = [(steps.block, steps.count), *((name, program.extents[name]) for name in names), (steps.step, steps.size)]
    pruned, kept = list_new_reads(builder.program(*values), reads)
    summed = IndexProgram(tuple(loops), len(loops) - 1, kept, pruned.text, PAIR_AGGREGATE)
    part = build_index_operator([operator.operands[k] for k in sources], summed, pruned, (steps.block, *names))
    return ScanPart(_name("pairs", program.carried.index(number)), part, tuple(sources))


def _carry_on(operator: RecurrenceOperator, number: int, pairs: ScanPart, steps: BlockedSteps) -> ScanPart:
    """The value before the first step of each block."""
    program = operator.program
    equation = program.equations[number]
    names = tuple(name for name in equation.loops if name != program.along)
    loops = (steps.block, *names)
    before = ValueRead(0, loops, True, steps.block)
    operands, inputs = list(pairs.operator.outputs), list[PartInput]([(pairs.name, 0), (pairs.name, 1)])
    initial = equation.initial
    if isinstance(initial, OperandRead):
        operands.append(operator.operands[initial.source])
        inputs.append(initial.source)
        initial = OperandRead(2, initial.loops)
    reads = (OperandRead(0, loops), before, OperandRead(1, loops))
    carried = RecurrenceEquation(equation.dtype, loops, reads, CARRY_ON, "", initial)
    shown = RecurrenceEquation(equation.dtype, loops, (before,), "t0 = copy x0")
    extents = [(steps.block, steps.count), *((name, program.extents[name]) for name in names)]
    part = build_recurrence(operands, extents, [carried, shown], [1], loops)
    return ScanPart(_name(START_PART, program.carried.index(number)), part, tuple(inputs))


def _split_operand(desc: TensorDesc, number: int, axis: int, steps: BlockedSteps) -> ScanPart:
    """An operand with two dimensions, of blocks and of steps, in place of that of all steps."""
    names = [f"i{dim}" for dim in range(desc.rank)]
    positions = [Position(((name, 1),)) for name in names]
    positions[axis] = steps.position()
    extents = list(zip(names, desc.shape, strict=True))
    loops = [*extents[:axis], (steps.block, steps.count), (steps.step, steps.size), *extents[axis + 1 :]]
    read = TensorRead(0, tuple(positions), steps.outside)
    program = IndexProgram(tuple(loops), len(loops), (read,), copy_program().text, "")
    part = build_index_operator([desc], program, copy_program(), steps.split_dims(desc.dims, axis))
    return ScanPart(f"operand{number}", part, (number,))


def _compute_blocks(operator: RecurrenceOperator, axes: Sequence[int], steps: BlockedSteps) -> Iterator[ScanPart]:
    """All steps, from where each block starts, and the results with one dimension of steps again."""
    program = operator.program
    along, count = program.along, len(operator.operands)
    starts = {number: count + k for k, number in enumerate(program.carried)}
    extents = {**program.extents, along: steps.size, steps.block: steps.count}
    operands: list[TensorDesc] = []
    inputs: list[PartInput] = []
    for number, (desc, axis) in enumerate(zip(operator.operands, axes, strict=True)):
        operands.append(desc if axis < 0 else steps.split(desc, axis))
        inputs.append(number if axis < 0 else (f"operand{number}", 0))
    equations = []
    for number, equation in enumerate(program.equations):
        loops = (steps.block, *equation.loops)
        initial: str | OperandRead = equation.initial
        if number in starts:
            names = tuple(name for name in loops if name != along)
            initial = OperandRead(starts[number], names)
            operands.append(TensorDesc(names, tuple(extents[name] for name in names), DType(equation.dtype)))
            inputs.append((_name(START_PART, program.carried.index(number)), 0))
        reads = tuple(
            replace(read, loops=(steps.block, *read.loops)) if isinstance(read, ValueRead)
            else OperandRead(read.source, replace_name(read.loops, along, steps.block, along))
            for read in equation.reads
        )  # fmt: skip
        equations.append(replace(equation, loops=loops, reads=reads, initial=initial))
    used = sorted({read.source for equation in equations for read in equation.operand_reads})
    moved = [renumber_reads(equation, used.index) for equation in equations]
    names_of_loops = (along, steps.block, *(name for name, _ in program.loops[1:]))
    dims = [dim for output in operator.outputs for dim in steps.split_dims(output.dims, -output.rank)]
    computed = build_recurrence(
        [operands[k] for k in used], [(name, extents[name]) for name in names_of_loops], moved, program.results, dims
    )
    yield ScanPart("steps", computed, tuple(inputs[k] for k in used))
    for position, (number, output) in enumerate(zip(program.results, operator.outputs, strict=True)):
        axis = program.equations[number].loops.index(along)
        part = (computed.outputs[position], (-1, *range(output.rank)))
        joined = join_blocks([part], output, axis, steps, copy_program())
        yield ScanPart(f"result{position}", joined, (("steps", position),), position)
