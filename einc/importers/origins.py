"""What arrays were made of, as rules that find operators again ask for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array

UNSEEN = -1e4
"""What hides scores is at most this: exp of it is 0 in every type, and models add -1e4 at the least."""

_RELATIVE_ERROR = 1e-4
"""How far numbers of formulas in programs are from exact ones, as 0.044715 and 0.7978845608 of gelu."""


def find_scaled(program: ArrayProgram, value: Any, operation: str = "mul") -> tuple[Array, float] | None:
    """The array and the number of which an array is the product, or the sum with `operation` add."""
    operands = program.find_origin(value, operation)
    if operands is None:
        return None
    for first, second in (operands[:2], operands[1::-1]):
        number = read_number(second)
        if number is not None and isinstance(first, Array) and read_number(first) is None:
            return first, number
    return None


def read_number(value: Any) -> float | None:
    scalar = value.scalar if isinstance(value, Array) else value
    return float(scalar) if isinstance(scalar, int | float) and not isinstance(scalar, bool) else None


def is_near(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=_RELATIVE_ERROR)


def pairs(operands: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Two operands in both orders."""
    return [(operands[0], operands[1]), (operands[1], operands[0])]
