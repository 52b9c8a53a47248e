"""Gradients of index equations and index programs: of maps, contractions, reductions, lookups, windows, moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from einc.core.tensor import DType, TensorType
from einc.ops.equation import Equation
from einc.ops.index_operator import IndexOperator, find_parts
from einc.ops.shorthands import cut_out
from einc.training.aggregate_gradients import share_defined
from einc.training.derivatives import add_derivatives
from einc.training.joins import JoinDraft, TensorAccess, reshape, write_join
from einc.training.scatter import write_scatter
from einc.training.tape import NodeGradient
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.index_patterns import Concatenation
from einc_runtime.plan.index_programs import IndexRead, Position
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarProgram

_BITWISE_EQUAL = frozenset(("copy", "where", "neg", "abs", "relu", "max", "min", "eq", "ne", "lt", "le", "gt", "ge"))
"""Functions that make the same bits wherever they are computed."""


def differentiate_equation(node: NodeGradient) -> None:
    """Of an index equation that reads each dimension at one index."""
    operator = node.operator
    assert isinstance(operator, Equation)
    extents: dict[str, int] = {}
    reads: list[TensorAccess | IndexRead] = []
    for k, (labels, box) in enumerate(zip(operator.labels, operator.reads, strict=True)):
        extents |= dict(zip(labels, box.shape, strict=True))
        positions = tuple(Position(((name, 1),), start) for name, start in zip(labels, box.lower, strict=True))
        reads.append(TensorAccess(node.node.inputs[k], operator.operands[k], positions))
    loops = {name: extents[name] for name in (*operator.result, *(n for n in extents if n not in operator.result))}
    _differentiate(node, loops, len(operator.result), reads, operator.program, operator.aggregation or "")


def differentiate_index_program(node: NodeGradient) -> None:
    operator = node.operator
    assert isinstance(operator, IndexOperator)
    program, parts = operator.program, find_parts(operator)
    if parts is not None:
        differentiate_parts(node, parts)
        return
    reads: list[TensorAccess | IndexRead] = [
        read
        if isinstance(read, IndexRead)
        else TensorAccess(node.node.inputs[read.operand], operator.operands[read.operand], read.positions, read.outside)
        for read in program.reads
    ]
    _differentiate(node, program.extents, program.kept, reads, operator.scalar, program.aggregation)


def _differentiate(
    node: NodeGradient,
    loops: Mapping[str, int],
    kept: int,
    reads: Sequence[TensorAccess | IndexRead],
    scalar: ScalarProgram,
    aggregation: str,
) -> None:
    result = tuple(loops)[:kept]
    join = JoinDraft(dict(loops), list(reads))
    types = [read.desc.dtype if isinstance(read, TensorAccess) else DType.I64 for read in reads]
    inputs: list[Operand] = list(map(ScalarInput, range(len(reads))))
    definition = find_definition(aggregation)
    if definition is not None:
        _put_parts(node, join, reads, scalar, types, share_defined(node, join, kept, scalar, definition))
        return
    if aggregation in ("max", "min", "prod") and not _is_exact(scalar):
        _split(node, join, result, scalar, types, aggregation)
        return
    output = node.builder.desc(node.gradient)
    gradient: Operand = join.read(node.gradient, output, result)
    if aggregation in ("max", "min", "prod"):
        value = join.steps.insert(scalar, inputs)
        gradient = _SHARE_RULES[aggregation](node, join, value, gradient, list(zip(result, output.dims, strict=True)))
    _put_parts(node, join, reads, scalar, types, [gradient])


def _put_parts(
    node: NodeGradient,
    join: JoinDraft,
    reads: Sequence[TensorAccess | IndexRead],
    scalar: ScalarProgram,
    types: Sequence[DType],
    gradients: Sequence[Operand | None],
) -> None:
    """Adds the gradients of what is read, from those of the last results of the scalar program at each index vector."""
    parts = add_derivatives(join.steps, scalar, list(map(ScalarInput, range(len(reads)))), types, gradients)
    wanted_tensors = {name for name, is_wanted in zip(node.node.inputs, node.needs, strict=True) if is_wanted}
    totals: dict[TensorAccess, Operand] = {}
    for read, part in zip(reads, parts, strict=True):
        if part is not None and isinstance(read, TensorAccess) and read.tensor in wanted_tensors:
            before = totals.get(read)
            totals[read] = part if before is None else join.steps.add("add", before, part)
    for access, total in totals.items():
        name = f"{access.tensor}.gradient"
        node.tape.accumulate(access.tensor, write_scatter(node.builder, join, access, total, name))


# ---- aggregations ----


def _is_exact(scalar: ScalarProgram) -> bool:
    return all(step.function in _BITWISE_EQUAL for step in scalar.steps)


def _split(
    node: NodeGradient,
    join: JoinDraft,
    result: Sequence[str],
    scalar: ScalarProgram,
    types: Sequence[DType],
    aggregation: str,
) -> None:
    """The values are stored, so that the chosen ones are found by comparing equal bits; then they are aggregated."""
    reads = list(join.reads)
    inputs: list[Operand] = list(map(ScalarInput, range(len(reads))))
    value = join.steps.insert(scalar, inputs)
    stored = write_join(node.builder, join, value, [(loop, loop) for loop in join.loops], "")
    unreduced = JoinDraft(dict(join.loops))
    element = unreduced.read(stored, node.desc(stored), tuple(join.loops))
    dims = node.desc(node.gradient).dims
    gradient: Operand = unreduced.read(node.gradient, node.desc(node.gradient), result)
    share = _SHARE_RULES[aggregation](node, unreduced, element, gradient, list(zip(result, dims, strict=True)))
    passed = write_join(node.builder, unreduced, share, [(loop, loop) for loop in join.loops], "")
    inner = NodeGradient(node.tape, node.node, (passed,), node.needs)
    _differentiate(inner, join.loops, len(join.loops), reads, scalar, "")


def _share_extreme(
    node: NodeGradient,
    join: JoinDraft,
    value: Operand,
    gradient: Operand,
    result: list[tuple[str, str]],
    aggregation: str,
) -> Operand:
    """Of the largest or smallest: equal values share its gradient evenly."""
    chosen = write_join(node.builder, join, value, result, aggregation)
    best = join.read(chosen, node.desc(chosen), [loop for loop, _ in result])
    equal = join.steps.add("eq", value, best)
    dtype = node.desc(chosen).dtype
    counts = write_join(node.builder, join, join.steps.add(f"cast:{dtype.value}", equal), result)
    count = join.read(counts, node.desc(counts), [loop for loop, _ in result])
    return join.steps.add("where", equal, join.steps.add("div", gradient, count), 0.0)


def _share_product(
    node: NodeGradient, join: JoinDraft, value: Operand, gradient: Operand, result: list[tuple[str, str]]
) -> Operand:
    """Of a product: the product of all others, also where some are 0."""
    steps = join.steps
    is_zero = steps.add("eq", value, 0.0)
    zeros = write_join(node.builder, join, steps.add("where", is_zero, steps.add("add", value, 1.0), 0.0), result)
    nonzero = write_join(node.builder, join, steps.add("where", is_zero, 1.0, value), result, "prod")
    loops = [loop for loop, _ in result]
    count, product = (
        join.read(zeros, node.desc(zeros), loops),
        join.read(nonzero, node.desc(nonzero), loops),
    )
    product_gradient = steps.add("mul", gradient, product)
    beside = steps.add("where", steps.add("eq", count, 0.0), steps.add("div", product_gradient, value), 0.0)
    alone = steps.add("where", steps.add("eq", count, 1.0), product_gradient, 0.0)
    return steps.add("where", is_zero, alone, beside)


_SHARE_RULES: dict[str, Callable[[NodeGradient, JoinDraft, Operand, Operand, list[tuple[str, str]]], Operand]] = {
    "max": partial(_share_extreme, aggregation="max"),
    "min": partial(_share_extreme, aggregation="min"),
    "prod": _share_product,
}
"""What each value gets of the gradient of its aggregate, by aggregation."""


def differentiate_reshape(node: NodeGradient) -> None:
    """The same elements under the former dimensions."""
    desc = node.operator.inputs[0]
    node.put(0, reshape(node.builder, node.gradient, desc.dims, desc.shape))


def differentiate_parts(node: NodeGradient, concatenation: Concatenation) -> None:
    """Of each part, the part of the gradient where it stands."""
    desc, axis = node.desc(node.gradient), concatenation.axis
    for k, start, stop in concatenation.parts:
        if node.needs[k]:
            starts, stops = [0] * desc.rank, list(desc.shape)
            starts[axis], stops[axis] = start, stop
            cut = cut_out(desc, TensorType(tuple(starts), tuple(stops)))
            node.put(k, node.apply(cut, node.gradient)[0])
