"""Compares the outputs of a run with the expected arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einc_runtime.text import escape_text, format_count

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.plan.schema import Bundle


TOLERANCE = {"f64": 1e-11, "f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}
"""Largest error, relative to the largest value of the tensor, by the coarsest floating dtype that the plan computes in.

For f16 and bf16 that is ten roundings. A plan without floating types must give equal values.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The largest differences over all outputs compared; infinite where shapes or non-finite values differ.

    `relative` is the largest difference of an output divided by its largest value, and `output` the one where it is.
    """

    absolute: float
    relative: float
    tolerance: float
    output: str = field(default="", compare=False)

    @property
    def holds(self) -> bool:
        return self.relative <= self.tolerance

    def combine(self, comparison: Comparison) -> Comparison:
        absolute, relative = max(self.absolute, comparison.absolute), max(self.relative, comparison.relative)
        return Comparison(absolute, relative, self.tolerance, max(self, comparison, key=lambda x: x.relative).output)

    def json(self) -> dict[str, float | None]:
        return {
            "max_abs_error": self.absolute if math.isfinite(self.absolute) else None,
            "max_rel_error": self.relative if math.isfinite(self.relative) else None,
        }

    def __str__(self) -> str:
        relation = "within" if self.holds else "above"
        where = f" of '{escape_text(self.output, 80)}'" if self.output and not self.holds else ""
        return (
            f"largest error {self.absolute:.3g}, {self.relative:.3g} of the largest value{where}"
            f" ({relation} the tolerance of {self.tolerance:g})"
        )


ROUNDING = 1 / 40
"""A rounding to nearest in f16 or bf16, as a part of the tolerance."""

ROUNDINGS = 10
"""How many of what a rounding of every value moves an output are tolerated."""


def compare(
    results: Mapping[str, Array],
    expected: Mapping[str, Array],
    tolerance: float,
    movements: Mapping[str, float] | None = None,
) -> Comparison:
    """The largest errors of `results` over the outputs that `expected` has.

    `movements` says how far outputs move if every value is changed by up to `ROUNDING` of the tolerance: an error of
    `ROUNDINGS` times that is within the tolerance, too.
    """
    moved = {name: ROUNDINGS * movement / tolerance for name, movement in (movements or {}).items() if tolerance}
    comparison = Comparison(0.0, 0.0, tolerance)
    for name, array in expected.items():
        errors = _compute_errors(results[name], array, moved.get(name, 0.0))
        comparison = comparison.combine(Comparison(*errors, tolerance, name))
    return comparison


def _compute_errors(results: Array, expected: Array, least: float) -> tuple[float, float]:
    """The largest difference, and that relative to the largest expected value, which is taken as `least` at least."""
    import numpy as np

    if results.shape != expected.shape:
        return math.inf, math.inf
    if np.array_equal(results, expected):  # integers beyond 2^53 too
        return 0.0, 0.0
    a, b = results.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return math.inf, math.inf
    absolute = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
    if results.dtype.kind in "iub":
        absolute = max(absolute, 1.0)
    largest = max(least, float(np.max(np.abs(b[finite]), initial=0.0)))
    return absolute, 0.0 if absolute == 0 else absolute / largest if largest else math.inf


def describe_not_finite(results: Mapping[str, Array]) -> list[str]:
    """A line on each output that has elements which are infinite or not a number: how many, and the first of them."""
    import numpy as np

    lines = []
    for name, array in results.items():
        if array.dtype.kind in "iub":
            continue
        numbers = array if array.dtype.kind == "f" else array.astype(np.float32)  # bf16 is of another kind
        at = np.flatnonzero(~np.isfinite(numbers))
        if at.size:
            first = [int(position) for position in np.unravel_index(at[0], array.shape)]
            count = f"{at.size:,} of {format_count(array.size, 'element')}"
            lines.append(f"{name}: infinite or not a number are {count}, the first at {first}: {array[tuple(first)]}")
    return lines


def tolerance_of(bundle: Bundle) -> float:
    """The tolerance that a plan's dtypes allow."""
    return max((TOLERANCE.get(tensor.dtype, 0.0) for tensor in bundle.tensors), default=0.0)
