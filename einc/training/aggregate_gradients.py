"""The gradient of an aggregation that a model defines: of each value, what follows with all others combined.

An aggregate of many values is that of one of them with the aggregate of all others. So its gradient is that of the
definition's body, for one value and the others. These are combined anew for each value: it takes as many combinations
as there are pairs of values.
"""

from __future__ import annotations

from dataclasses import replace

from einc.training.derivatives import add_derivatives
from einc.training.joins import Access, JoinDraft, make_join_operator, substitute, write_join
from einc.training.tape import NodeGradient
from einc_runtime.plan.aggregate_definitions import AggregateDefinition
from einc_runtime.plan.index_programs import IndexRead, Position
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarProgram

COPY = "{}_again"
"""The name of a loop over all other values."""


def share_defined(
    node: NodeGradient,
    join: JoinDraft,
    kept: int,
    scalar: ScalarProgram,
    definition: AggregateDefinition,
) -> list[Operand | None]:
    """What each value of each tuple gets of the gradients of the aggregates, None for what has no gradient.

    The join reads what `scalar` computes the values of; its first `kept` loops are those of the result.
    """
    loops, count = list(join.loops), len(join.reads)
    results = join.steps.insert_all(scalar, [ScalarInput(k) for k in range(len(join.reads))])[-definition.count :]
    stored = [write_join(node.builder, join, value, [(loop, loop) for loop in loops], "") for value in results]
    values = [join.read(name, node.desc(name), loops) for name in stored]
    sides = ["ne"] if definition.is_commutative else ["lt", "gt"]
    combined = [_combine_others(node, join, count, kept, scalar, definition, side) for side in sides]
    read = [[join.read(name, node.desc(name), loops) for name in names] for names in combined]
    tuples = [values, read[0]] if definition.is_commutative else [read[0], values, read[1]]
    inputs: list[Operand] = [operand for operands in tuples for operand in operands]
    types = [node.desc(name).dtype for name in stored]
    gradients: list[Operand | None] = [
        None if name is None or not dtype.is_float else join.read(name, node.desc(name), loops[:kept])
        for name, dtype in zip(node.outputs, types, strict=True)
    ]
    slopes = add_derivatives(join.steps, definition.chain(len(tuples)), inputs, types * len(tuples), gradients)
    start = definition.count * tuples.index(values)
    return slopes[start : start + definition.count]


def _combine_others(
    node: NodeGradient,
    join: JoinDraft,
    count: int,
    kept: int,
    scalar: ScalarProgram,
    definition: AggregateDefinition,
    side: str,
) -> list[str]:
    """At each index vector, the aggregate of the values at all others, or of those before (`lt`) or behind (`gt`).

    The first `count` reads of the join are those of `scalar`.
    """
    loops = list(join.loops)
    copies = {loop: COPY.format(loop) for loop in loops[kept:]}
    single = {loop: Position(((name, 1),)) for loop, name in copies.items()}
    reads: list[Access] = []
    for read in join.reads[:count]:
        if isinstance(read, IndexRead):
            reads.append(IndexRead(copies.get(read.loop, read.loop)))
        else:
            moved = tuple(substitute(position, single) or position for position in read.positions)
            reads.append(replace(read, positions=moved))
    draft = JoinDraft({**join.loops, **{name: join.loops[loop] for loop, name in copies.items()}}, reads)
    steps = draft.steps
    values = steps.insert_all(scalar, [ScalarInput(k) for k in range(count)])[-definition.count :]
    ends: list[Operand] = []
    for names in (list(copies.values()), loops[kept:]):
        number: Operand = draft.value(names[0])
        for name, loop in zip(names[1:], loops[kept + 1 :], strict=True):
            number = steps.add("add", steps.add("mul", number, join.loops[loop]), draft.value(name))
        ends.append(number)
    counts = steps.add(side, *ends)
    chosen = [
        steps.add("where", counts, value, identity.value)
        for value, identity in zip(values, definition.identity, strict=True)
    ]
    operator, tensors = make_join_operator(draft, chosen, [(loop, loop) for loop in loops], definition.text)
    return list(node.apply(operator, *tensors))
