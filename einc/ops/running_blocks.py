"""Running aggregates in blocks: within each block, of whole blocks, and over all blocks before each one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc.ops.base import Operator
from einc.ops.index_operator import IndexOperator, build_index_operator
from einc.ops.scalar import ProgramBuilder
from einc.ops.scan_parts import BlockedSteps, PartInput, ScanPart, join_blocks, list_new_reads, replace_name
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.index_patterns import find_identity
from einc_runtime.plan.index_programs import IndexProgram, IndexRead, Position, Read, TensorRead
from einc_runtime.plan.scalar_programs import EarlierStep, Operand, ScalarInput, ScalarLiteral, ScalarProgram

COMBINING = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""The scalar function that combines two results of an aggregation."""


@dataclass(frozen=True, slots=True)
class _Running:
    """At each `along` of the result, values are aggregated over `loop` up to there. `program` computes the values of
    `reads`, none of which depends on `along`."""

    operator: IndexOperator
    loop: str
    along: str
    reads: tuple[Read, ...]
    program: ScalarProgram
    identity: tuple[ScalarLiteral, ...]

    @property
    def count(self) -> int:
        return len(self.identity)


def block_running_aggregate(operator: IndexOperator, blocks: int) -> tuple[ScanPart, ...] | None:
    """The parts; None for an operator that is no running aggregate up to each position of an index, itself included."""
    running = _find_running(operator)
    if running is None:
        return None
    steps = BlockedSteps.of(operator.program.extents, running.along, blocks)
    if steps is None:
        return None
    within = ScanPart("within", _aggregate_within(running, steps), tuple(range(len(operator.operands))))
    totals = ScanPart("totals", _aggregate_blocks(running, steps), tuple(range(len(operator.operands))))
    links = tuple((totals.name, k) for k in range(running.count))
    before = ScanPart("before", _aggregate_before(running, totals.operator, steps), links)
    return (within, totals, before, *_join(running, within, before, steps))


def _find_running(operator: IndexOperator) -> _Running | None:
    program, scalar = operator.program, operator.scalar
    definition = find_definition(program.aggregation)
    positions = [position for read in program.reads if isinstance(read, TensorRead) for position in read.positions]
    if len(program.reduced) != 1 or any(position.elements for position in positions):
        return None
    (loop,) = program.reduced
    count = 1 if definition is None else definition.count
    lasts = [_follow_copies(scalar, EarlierStep(len(scalar.steps) - count + k)) for k in range(count)]
    steps = [scalar.steps[last.position] if isinstance(last, EarlierStep) else None for last in lasts]
    literals: tuple[ScalarLiteral, ...]
    if definition is None:
        literals = (ScalarLiteral.of(find_identity(program.aggregation, operator.outputs[0].dtype.value)),)
    else:
        literals = definition.identity
    along = None
    for step, literal in zip(steps, literals, strict=True):
        if step is None or step.function != "where":
            return None
        condition, _, neutral = step.operands
        bound = _find_bound(program, scalar, condition, loop)
        same = isinstance(neutral, ScalarLiteral) and neutral.value == literal.value
        if bound is None or not same or along not in (None, bound):
            return None
        along = bound
    builder = ProgramBuilder(scalar.arity)
    results = builder.insert_all(scalar, list(map(ScalarInput, range(scalar.arity))))

    def find(x: Operand) -> Operand:
        return results[x.position] if isinstance(x, EarlierStep) else x

    values = [find(step.operands[1]) for step in steps if step is not None]
    if any(isinstance(value, ScalarLiteral) for value in values):
        return None
    pruned, reads = list_new_reads(_program_of(builder, values), program.reads)
    extents = program.extents
    if any(along in program.loops_of(read) for read in reads) or along is None or extents[along] != extents[loop]:
        return None
    return _Running(operator, loop, along, reads, pruned, literals)


def _program_of(builder: ProgramBuilder, values: Sequence[Operand]) -> ScalarProgram:
    """The program whose last steps are the values, each one its own."""
    if len(values) > 1 or isinstance(values[0], EarlierStep):
        return builder.program(*values)
    return builder.program(values[0])


def _follow_copies(scalar: ScalarProgram, operand: Operand) -> Operand:
    while isinstance(operand, EarlierStep) and scalar.steps[operand.position].function == "copy":
        (operand,) = scalar.steps[operand.position].operands
    return operand


def _find_bound(program: IndexProgram, scalar: ScalarProgram, condition: Operand, loop: str) -> str | None:
    """The loop of the result up to which the condition counts positions of `loop`."""
    if not isinstance(condition, EarlierStep):
        return None
    step = scalar.steps[condition.position]
    reads = [program.reads[x.position] if isinstance(x, ScalarInput) else None for x in step.operands]
    ordered = reads if step.function == "le" else reads[::-1] if step.function == "ge" else []
    names = [read.loop for read in ordered if isinstance(read, IndexRead)]
    return names[1] if len(names) == 2 and names[0] == loop and names[1] in program.result else None


def _read_in_blocks(
    running: _Running, steps: BlockedSteps, step: str
) -> tuple[ProgramBuilder, list[Operand], list[Read]]:
    """The values at a step of a block: behind their reads stand the values of the loops of blocks and of steps."""

    def move(position: Position) -> Position:
        terms = [(name, factor) for name, factor in position.terms if name != running.loop]
        for factor in (factor for name, factor in position.terms if name == running.loop):
            terms += [(steps.block, factor * steps.size), (step, factor)]
        return replace(position, terms=tuple(terms))

    reads: list[Read] = []
    moved = [not isinstance(read, TensorRead) and read.loop == running.loop for read in running.reads]
    for read in running.reads:
        if isinstance(read, TensorRead):
            changes = any(name == running.loop for p in read.positions for name in p.loops)
            outside = read.outside or (steps.outside if changes else "")
            reads.append(TensorRead(read.operand, tuple(map(move, read.positions)), outside))
        else:
            reads.append(IndexRead(step) if read.loop == running.loop else read)
    count = len(reads)
    reads += [IndexRead(steps.block), IndexRead(step)]
    builder = ProgramBuilder(len(reads))
    inputs: list[Operand] = []
    for number, is_loop in enumerate(moved):
        first = builder.add("mul", ScalarInput(count), steps.size) if is_loop else None
        inputs.append(ScalarInput(number) if first is None else builder.add("add", first, ScalarInput(number)))
    return builder, builder.insert_all(running.program, inputs)[-running.count :], reads


def _build(
    running: _Running,
    builder: ProgramBuilder,
    values: Sequence[Operand],
    reads: Sequence[Read],
    result: Sequence[tuple[str, int]],
    reduced: tuple[str, int],
    dims: Sequence[str],
) -> IndexOperator:
    program, kept = list_new_reads(builder.program(*values), reads)
    aggregation = running.operator.program.aggregation
    loops = (*result, reduced)
    return build_index_operator(
        running.operator.operands, IndexProgram(loops, len(result), kept, program.text, aggregation), program, dims
    )


def _aggregate_within(running: _Running, steps: BlockedSteps) -> IndexOperator:
    program = running.operator.program
    inner = running.loop
    builder, values, reads = _read_in_blocks(running, steps, inner)
    reads.append(IndexRead(steps.step))
    builder.arity = len(reads)
    condition = builder.add("le", ScalarInput(len(reads) - 2), ScalarInput(len(reads) - 1))
    chosen = [
        builder.add("where", condition, value, identity)
        for value, identity in zip(values, running.identity, strict=True)
    ]
    extents = {**program.extents, steps.block: steps.count, steps.step: steps.size}
    names = replace_name(program.result, running.along, steps.block, steps.step)
    axis = program.result.index(running.along)
    dims = steps.split_dims(running.operator.outputs[0].dims, axis)
    return _build(running, builder, chosen, reads, [(n, extents[n]) for n in names], (inner, steps.size), dims)


def _aggregate_blocks(running: _Running, steps: BlockedSteps) -> IndexOperator:
    program = running.operator.program
    builder, values, reads = _read_in_blocks(running, steps, steps.step)
    chosen = [
        steps.mask(builder, value, identity, len(reads) - 2)
        for value, identity in zip(values, running.identity, strict=True)
    ]
    extents = {**program.extents, steps.block: steps.count}
    names = (steps.block, *(name for name in program.result if name != running.along))
    axis, dims = program.result.index(running.along), running.operator.outputs[0].dims
    loops = [(name, extents[name]) for name in names]
    kept_dims = (steps.block, *dims[:axis], *dims[axis + 1 :])
    return _build(running, builder, chosen, reads, loops, (steps.step, steps.size), kept_dims)


def _aggregate_before(running: _Running, totals: Operator, steps: BlockedSteps) -> IndexOperator:
    """The aggregate of all blocks before each one."""
    program = running.operator.program
    extents = {**program.extents, steps.block: steps.count}
    names = (steps.block, *(name for name in program.result if name != running.along))
    earlier = running.loop
    positions = tuple(Position(((earlier if name == steps.block else name, 1),)) for name in names)
    reads: list[Read] = [TensorRead(k, positions) for k in range(running.count)]
    reads += [IndexRead(earlier), IndexRead(steps.block)]
    builder = ProgramBuilder(len(reads))
    condition = builder.add("lt", ScalarInput(running.count), ScalarInput(running.count + 1))
    chosen = [builder.add("where", condition, ScalarInput(k), literal) for k, literal in enumerate(running.identity)]
    scalar = builder.program(*chosen)
    loops = (*((name, extents[name]) for name in names), (earlier, steps.count))
    before = IndexProgram(loops, len(names), tuple(reads), scalar.text, program.aggregation)
    return build_index_operator(totals.outputs, before, scalar, totals.outputs[0].dims)


def _join(running: _Running, within: ScanPart, before: ScanPart, steps: BlockedSteps) -> list[ScanPart]:
    """What is before a block, combined with what is within it, for each result."""
    operator = running.operator
    axis = operator.program.result.index(running.along)
    rank = operator.outputs[0].rank
    places = (*range(axis), -1, *range(axis, rank))
    lacking = (-1, *(dim for dim in range(rank) if dim != axis))
    count = running.count
    inputs: list[PartInput] = [(part.name, k) for part in (before, within) for k in range(count)]
    descs = [*((d, lacking) for d in before.operator.outputs), *((d, places) for d in within.operator.outputs)]
    definition = find_definition(operator.program.aggregation)
    parts = []
    for number, output in enumerate(operator.outputs):
        builder = ProgramBuilder(2 * count)
        sides: list[Operand] = list(map(ScalarInput, range(2 * count)))
        if definition is None:
            value = builder.add(COMBINING[operator.program.aggregation], *sides)
        else:
            value = builder.insert_all(definition.program, sides)[-count:][number]
        scalar, kept = builder.program(value).without_unread()
        joined = join_blocks([descs[k] for k in kept], output, axis, steps, scalar)
        parts.append(ScanPart(f"result{number}", joined, tuple(inputs[k] for k in kept), number))
    return parts
