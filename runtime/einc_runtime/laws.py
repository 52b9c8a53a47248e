"""The laws of aggregations that a model defines, tried on random values: by the compiler, and by the proof of a plan.

They are tried on tuples as a use makes them, of random elements of its tensors: combined with the identity, a tuple
stays as it is; the grouping of three makes no difference; nor does the order of two, unless it is declared that it
does. Numbers that are computed in floating point may differ by rounding, if the aggregation is not declared exact.

The compiler computes with its reference, and the proof with the kernels of numpy: each passes its own `Evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from einc_runtime.dtypes import FLOATS, INTEGERS, Array, compute_type, storage_dtype
from einc_runtime.errors import PlanFault
from einc_runtime.plan.aggregate_definitions import AggregateDefinition
from einc_runtime.plan.scalar_programs import ScalarProgram

SAMPLES: Final = 256
"""Tuples that each law is tried on: it takes a millisecond, and a law that does not hold for one tuple in 50 is found
with a chance of 99 in 100."""

DOUBLE_TOLERANCE = 1e-9
SINGLE_TOLERANCE = 2e-4
"""By how much results may differ, in units of the largest number that takes part: some thousand roundings of f64, or of
f32, in which f16 and bf16 are computed as well."""

Evaluate = Callable[[ScalarProgram, Sequence[Array], Sequence[str], int], list[Array]]
"""The results of the last steps of a program, so many, on arrays of elements of these types."""


@dataclass(frozen=True, slots=True)
class AggregateUse:
    """A definition, and the program that makes its tuples, which have element types `types`, of elements of `reads`."""

    definition: AggregateDefinition
    program: ScalarProgram
    reads: tuple[str, ...]
    types: tuple[str, ...]


def combine_identities(use: AggregateUse, evaluate: Evaluate) -> list[Array]:
    """What two identities become."""
    identity = _make_identity(use)
    return _combine(use.definition, use.types, evaluate, identity, identity)


def require_laws(use: AggregateUse, evaluate: Evaluate, combining: AggregateDefinition | None = None) -> None:
    """Raises PlanFault with an example where a law does not hold. Where `combining` is given, tuples that are no
    identities are combined by it."""
    definition, types = use.definition, use.types
    rng = np.random.default_rng(1)
    identity = _make_identity(use)

    def draw() -> list[Array]:
        """A tuple, which is combined with another one every other time."""
        left, right = (
            evaluate(use.program, [_draw(rng, dtype) for dtype in use.reads], use.reads, definition.count)
            for _ in range(2)
        )
        left, right = ([np.broadcast_to(x, (SAMPLES,)) for x in side] for side in (left, right))
        both = combine(left, right)
        return [np.where(np.arange(SAMPLES) % 2, x, y) for x, y in zip(both, left, strict=True)]

    def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        return _combine(combining or definition, types, evaluate, left, right)

    a, b, c = (draw() for _ in range(3))
    law = f"aggregate '{definition.name}': its identity {_write(identity)} changes values"
    for manner, sides in (("combined with it", (identity, a)), ("with it on the right", (a, identity))):
        _require_equal(use, law, (a,), (manner, _combine(definition, types, evaluate, *sides)), ("alone", a))
    law = f"aggregate '{definition.name}' is not associative"
    grouped = ("(a, b), c", combine(combine(a, b), c)), ("a, (b, c)", combine(a, combine(b, c)))
    _require_equal(use, law, (a, b, c), *grouped)
    if definition.is_commutative:
        law = f"aggregate '{definition.name}' is not commutative"
        _require_equal(use, law, (a, b), ("a, b", combine(a, b)), ("b, a", combine(b, a)))


def _make_identity(use: AggregateUse) -> list[Array]:
    return [
        np.full((1,), literal.value, storage_dtype(compute_type(dtype)))
        for literal, dtype in zip(use.definition.identity, use.types, strict=True)
    ]


def _combine(
    definition: AggregateDefinition,
    types: Sequence[str],
    evaluate: Evaluate,
    left: Sequence[Array],
    right: Sequence[Array],
) -> list[Array]:
    return evaluate(definition.program, [*left, *right], [*types, *types], definition.count)


def _require_equal(
    use: AggregateUse,
    law: str,
    operands: Sequence[Sequence[Array]],
    left: tuple[str, list[Array]],
    right: tuple[str, list[Array]],
) -> None:
    for x, y, dtype, *inputs in zip(left[1], right[1], use.types, *operands, strict=True):
        same = (x == y) | ((x != x) & (y != y))
        is_float, is_exact = dtype in FLOATS, use.definition.is_exact
        if is_float and not is_exact:
            same = same | _are_near(x, y, inputs, DOUBLE_TOLERANCE if dtype == "f64" else SINGLE_TOLERANCE)
        same = np.broadcast_to(same, (SAMPLES,))
        if same.all():
            continue
        at = int(np.argmin(same))
        example = ", ".join(f"{letter} = {_write(values, at)}" for letter, values in zip("abc", operands, strict=False))
        results = " and ".join(f"{manner} gives {_write(values, at)}" for manner, values in (left, right))
        hint = "declare it: commutative = false" if "commutative" in law else None
        if is_exact and is_float:
            hint = "leave out `exact = true` if results differ by rounding"
        raise PlanFault(f"{law}: for {example}, {results}", hint=hint)


def _are_near(x: Array, y: Array, inputs: Sequence[Array], tolerance: float) -> Array:
    """Where two results differ by rounding, relative to the largest finite number that takes part, or to 1."""
    x, y, *wide = (value.astype(np.float64) for value in (x, y, *inputs))
    with np.errstate(all="ignore"):
        scale = np.max([np.where(np.isfinite(value), np.abs(value), 0) for value in (x, y, *wide)], axis=0)
        near: Array = np.abs(x - y) <= tolerance * np.maximum(scale, 1)
    return near


def _draw(rng: np.random.Generator, dtype: str) -> Array:
    """Elements of a type: small whole numbers, which are often equal, and other ones between them."""
    if dtype == "bool":
        return rng.integers(0, 2, SAMPLES).astype(np.bool_)
    integers = rng.integers(-4, 5, SAMPLES)
    if dtype in INTEGERS:
        return integers.astype(storage_dtype(dtype))
    values = np.where(rng.integers(0, 2, SAMPLES) > 0, integers, rng.normal(0, 2, SAMPLES))
    return values.astype(np.float64 if dtype == "f64" else np.float32).astype(storage_dtype(dtype))


def _write(values: Sequence[Array], at: int = 0) -> str:
    """A tuple of numbers as a text: those at one position."""
    numbers = [value.item() if value.size == 1 else value[at].item() for value in values]
    texts = [f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
