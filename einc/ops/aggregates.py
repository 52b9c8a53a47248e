"""Aggregations that a model defines: their programs for the types of their values, and their laws.

The laws are checked on tuples as a use makes them, of random elements of its tensors: combined with the identity, a
tuple stays as it is; the grouping of three makes no difference; nor does the order of two, unless it is declared that
it does. Numbers that are computed in floating point may differ by rounding, if the aggregation is not declared exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from einc.core.tensor import DType
from einc.errors import OperatorError
from einc.ops.functions import fit_literal
from einc.ops.scalar import ProgramBuilder, resolve_program
from einc_runtime.plan.aggregate_definitions import MAX_VALUES as MAX_VALUES
from einc_runtime.plan.aggregate_definitions import AggregateDefinition
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, ScalarProgram

if TYPE_CHECKING:
    from einc.ops.base import Array

Number = bool | int | float

SAMPLES = 256
"""Tuples that each law is tried on: it takes a millisecond, and a law that does not hold for one tuple in 50 is found
with a chance of 99 in 100."""

DOUBLE_TOLERANCE = 1e-9
SINGLE_TOLERANCE = 2e-4
"""By how much results may differ, in units of the largest number that takes part: some thousand roundings of f64, or of
f32, in which f16 and bf16 are computed as well."""


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
    import numpy as np

    from einc.ops.evaluate import evaluate_all

    rng = np.random.default_rng(1)
    name, count = definition.name, definition.count
    identity = [_make_array(x, dtype) for x, dtype in zip(definition.identity, types, strict=True)]
    alone = _combine(definition, [*identity, *identity], types)
    guarded = definition
    if any(bool((x != x).any()) for x in alone):
        guarded = replace(definition, program=_guard(definition.program, definition.identity))

    def draw() -> list[Array]:
        found = evaluate_all(program, [_draw(rng, dtype) for dtype in reads], reads)[-count:]
        return [np.broadcast_to(x, (SAMPLES,)) for x in found]

    def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        return _combine(guarded, [*left, *right], types)

    def draw_some() -> list[Array]:
        """A tuple, which is combined with another one every other time."""
        left, right = draw(), draw()
        both = combine(left, right)
        return [np.where(np.arange(SAMPLES) % 2, x, y) for x, y in zip(both, left, strict=True)]

    a, b, c = (draw_some() for _ in range(3))
    law = f"aggregate '{name}': its identity {_write(identity)} changes values"
    for what, sides in (("combined with it", [*identity, *a]), ("with it on the right", [*a, *identity])):
        _require_equal(definition, types, law, (a,), (what, _combine(definition, sides, types)), ("alone", a))
    law = f"aggregate '{name}' is not associative"
    grouped = ("(a, b), c", combine(combine(a, b), c)), ("a, (b, c)", combine(a, combine(b, c)))
    _require_equal(definition, types, law, (a, b, c), *grouped)
    if definition.is_commutative:
        law = f"aggregate '{name}' is not commutative"
        _require_equal(definition, types, law, (a, b), ("a, b", combine(a, b)), ("b, a", combine(b, a)))
    return guarded


def _require_equal(
    definition: AggregateDefinition,
    types: Sequence[DType],
    law: str,
    operands: Sequence[Sequence[Array]],
    left: tuple[str, list[Array]],
    right: tuple[str, list[Array]],
) -> None:
    import numpy as np

    for x, y, dtype, *inputs in zip(left[1], right[1], types, *operands, strict=True):
        same = (x == y) | ((x != x) & (y != y))
        if dtype.is_float and not definition.is_exact:
            same = same | _are_near(x, y, inputs, DOUBLE_TOLERANCE if dtype is DType.F64 else SINGLE_TOLERANCE)
        same = np.broadcast_to(same, (SAMPLES,))
        if same.all():
            continue
        at = int(np.argmin(same))
        given = ", ".join(f"{letter} = {_write(values, at)}" for letter, values in zip("abc", operands, strict=False))
        results = " and ".join(f"{what} gives {_write(values, at)}" for what, values in (left, right))
        hint = "declare it: commutative = false" if "commutative" in law else None
        if definition.is_exact and dtype.is_float:
            hint = "leave out `exact = true` if results differ by rounding"
        raise OperatorError(f"{law}: for {given}, {results}", hint=hint)


def _are_near(x: Array, y: Array, inputs: Sequence[Array], tolerance: float) -> Array:
    """Where two results differ by rounding, relative to the largest finite number that takes part, or to 1."""
    import numpy as np

    x, y, *wide = (value.astype(np.float64) for value in (x, y, *inputs))
    with np.errstate(all="ignore"):
        scale = np.max([np.where(np.isfinite(value), np.abs(value), 0) for value in (x, y, *wide)], axis=0)
        near: Array = np.abs(x - y) <= tolerance * np.maximum(scale, 1)
    return near


def _combine(definition: AggregateDefinition, arrays: Sequence[Array], types: Sequence[DType]) -> list[Array]:
    from einc.ops.evaluate import combine

    return combine(definition, arrays, types)


def _draw(rng: object, dtype: DType) -> Array:
    """Elements of a type: small whole numbers, which are often equal, and other ones between them."""
    import numpy as np

    assert isinstance(rng, np.random.Generator)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, SAMPLES).astype(np.bool_)
    whole = rng.integers(-4, 5, SAMPLES)
    if dtype.is_integer:
        return whole.astype(dtype.numpy())
    values = np.where(rng.integers(0, 2, SAMPLES) > 0, whole, rng.normal(0, 2, SAMPLES))
    return values.astype(np.float32 if dtype is not DType.F64 else np.float64).astype(dtype.numpy())


def _make_array(literal: ScalarLiteral, dtype: DType) -> Array:
    import numpy as np

    from einc.ops.evaluate import find_computing_dtype

    return np.full((1,), literal.value, find_computing_dtype(dtype))


def _write(values: Sequence[Array], at: int = 0) -> str:
    """A tuple of numbers as a text: those at one position."""
    numbers = [value.item() if value.size == 1 else value[at].item() for value in values]
    texts = [f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
