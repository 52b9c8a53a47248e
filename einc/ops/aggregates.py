"""Aggregations that a model defines: their programs for the types of their values, and their laws.

The runtime tries the laws (`einc_runtime.laws`), here with this package's reference, as it does before it runs a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from einc.core.tensor import Array, DType
from einc.errors import OperatorError
from einc.ops.functions import fit_literal
from einc.ops.scalar import ProgramBuilder, resolve_program
from einc_runtime.errors import PlanFault
from einc_runtime.plan.aggregate_definitions import MAX_VALUES as MAX_VALUES
from einc_runtime.plan.aggregate_definitions import AggregateDefinition
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, ScalarProgram

Number = bool | int | float


def define_aggregate(
    name: str,
    identity: Sequence[Number],
    program: ScalarProgram,
    types: Sequence[DType],
    *,
    commutative: bool,
    exact: bool,
) -> AggregateDefinition:
    """The definition over values of these types. `inf` is the largest number of a type. Raises OperatorError."""
    count = len(types)
    literals = tuple(ScalarLiteral.of(_fit(value, dtype)) for value, dtype in zip(identity, types, strict=True))
    resolved, results = resolve_program(program, [*types, *types])
    for number, (dtype, result) in enumerate(zip(types, results[-count:], strict=True)):
        if result is not dtype:
            raise OperatorError(
                f"aggregate '{name}' returns {result} for value {number + 1}, which is {dtype}",
                hint=f'convert it: cast(..., "{dtype}")',
            )
    return AggregateDefinition(name, literals, resolved, commutative, exact)


def _fit(value: Number, dtype: DType) -> Number:
    if isinstance(value, float) and math.isinf(value) and dtype.is_integer:
        bits = 8 * dtype.itemsize - 1
        return -(1 << bits) if value < 0 else (1 << bits) - 1
    return fit_literal(value, dtype)


def _guard(program: ScalarProgram, identity: Sequence[ScalarLiteral]) -> ScalarProgram:
    """The program, whose result is one side where the other one is the identity."""
    count, builder = len(identity), ProgramBuilder(program.arity)
    inputs: list[Operand] = [ScalarInput(k) for k in range(program.arity)]
    results = builder.insert_all(program, inputs)[-count:]
    sides = []
    for side in (inputs[:count], inputs[count:]):
        conditions = [builder.add("eq", x, literal) for x, literal in zip(side, identity, strict=True)]
        condition = conditions[0]
        for another in conditions[1:]:
            condition = builder.add("and", condition, another)
        sides.append(condition)
    is_left_identity, is_right_identity = sides
    chosen = [
        builder.add("where", is_left_identity, inputs[count + k], builder.add("where", is_right_identity, inputs[k], x))
        for k, x in enumerate(results)
    ]
    return builder.program(*chosen)


def require_laws(
    definition: AggregateDefinition, program: ScalarProgram, reads: Sequence[DType], types: Sequence[DType]
) -> AggregateDefinition:
    """The definition, whose laws hold; raises OperatorError with an example where one does not. `program` makes the
    tuples, which have `types`, of elements of the types `reads`.

    Where it makes NaN of two identities, as -inf minus -inf is one, what is combined with the identity is chosen, not
    computed.
    """
    return _require_laws(definition, program, tuple(reads), tuple(types))


@lru_cache(maxsize=256)
def _require_laws(
    definition: AggregateDefinition, program: ScalarProgram, reads: tuple[DType, ...], types: tuple[DType, ...]
) -> AggregateDefinition:
    from einc_runtime import laws

    names = tuple(dtype.value for dtype in reads), tuple(dtype.value for dtype in types)
    use = laws.AggregateUse(definition, program, *names)
    if any(bool((x != x).any()) for x in laws.combine_identities(use, _evaluate)):
        definition = replace(definition, program=_guard(definition.program, definition.identity))
    try:
        laws.require_laws(use, _evaluate, definition)
    except PlanFault as fault:
        raise OperatorError(fault.message, hint=fault.hint) from None
    return definition


def _evaluate(program: ScalarProgram, arrays: Sequence[Array], types: Sequence[str], count: int) -> list[Array]:
    from einc.ops.evaluate import evaluate_all

    return evaluate_all(program, arrays, list(map(DType, types)))[-count:]
