"""Finds rotary positions: x * cos + rotated(x) * sin, where cosines and sines are tables that are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from einc.importers.arrays.attention import rotate
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, Elements

_ERROR_OF_TABLES = 4e-7
"""Of a cosine of f32, for each position: angles are products that are rounded to f32."""
_ERROR_OF_ROUNDED_TABLES = {ElementType.F16: 2.0**-11, ElementType.BF16: 2.0**-8}
"""Of a cosine in tables of these types, which models round; the operator computes with angles of f32."""


def find_rotary(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """The operator rope for the sum, if the tables have the angles of positions from 0 on."""
    for straight, turned in ((arguments[0], arguments[1]), (arguments[1], arguments[0])):
        x, cosines = _split_factors(program, straight)
        rotated, sines = _split_factors(program, turned)
        if x is None or rotated is None or cosines is None or sines is None or not _is_rotated(program, rotated, x):
            continue
        options = describe_rotation(cosines, sines, x)
        if options is None:
            return None
        text, factor = options
        turned_x = rotate(program, x, text, array.name)
        return turned_x if factor == 1 else apply(program, "mul", turned_x, factor, hint=array.name)
    return None


def _split_factors(program: ArrayProgram, value: Any) -> tuple[Array | None, Elements | None]:
    """A computed array, and the table that it is multiplied with."""
    operands = program.find_origin(value, "mul") or (None, None)
    for first, second in ((operands[0], operands[1]), (operands[1], operands[0])):
        if isinstance(first, Array) and isinstance(second, Array) and first.known is None:
            return first, second.numbers
    return None, None


def _is_rotated(program: ArrayProgram, rotated: Array, x: Array) -> bool:
    """Whether this is -x of the second half of the last axis, and then x of the first half; of what both were cast
    from, too."""
    casts = [program.find_origin(value, "cast") for value in (rotated, x)]
    if casts[0] is not None and casts[1] is not None:
        rotated, x = casts[0][0], casts[1][0]
    joined = program.find_origin(rotated, "concat")
    if joined is None or len(joined[0]) != 2 or joined[1] % rotated.rank != rotated.rank - 1:
        return False
    negated = program.find_origin(joined[0][0], "neg")
    second = program.find_origin(negated[0], "slice_axis") if negated is not None else None
    first = program.find_origin(joined[0][1], "slice_axis")
    if first is None or second is None or not x.shape[-1].is_number:
        return False
    width = x.shape[-1].value
    bounds = [
        (int(start), min(int(stop), width)) for start, stop in (first[2:4], second[2:4]) if _are_numbers(start, stop)
    ]
    axes = [part[1] % x.rank for part in (first, second)]
    return (
        first[0].name == second[0].name == x.name
        and axes == [x.rank - 1] * 2
        and bounds == [(0, width // 2), (width // 2, width)]
    )


def _are_numbers(*bounds: Any) -> bool:
    return all(isinstance(bound, int) for bound in bounds)


def describe_rotation(cosines: Elements, sines: Elements, x: Array) -> tuple[str, float] | None:
    """The arguments of rope that have these angles for x [..., tokens, d], and the factor of all results."""
    tokens, width = (extent.value for extent in x.shape[-2:])
    if any(table.size != tokens * width or table.shape[-2:] != (tokens, width) for table in (cosines, sines)):
        return None
    if tokens < 2 or width < 4 or width % 2:
        return None
    c, s = (np.asarray(table, np.float64).reshape(tokens, width) for table in (cosines, sines))
    half = width // 2
    if not (np.array_equal(c[:, :half], c[:, half:]) and np.array_equal(s[:, :half], s[:, half:])):
        return None
    factor = float(c[0, 0])
    if factor <= 0:
        return None
    c, s = c[:, :half] / factor, s[:, :half] / factor
    rates = np.arctan2(s[1], c[1])
    positions = np.arange(tokens)[:, None]
    if rates.min() <= 0 or rates[0] > np.pi:
        return None
    rounding = _ERROR_OF_ROUNDED_TABLES.get(x.type, 0.0)
    slowest = rates[-1]
    if rounding and slowest * tokens < 1:  # small sines are rounded most
        slowest = np.arctan2(s[-1, -1], c[-1, -1]) / (tokens - 1)
    theta = float(slowest / rates[0]) ** (-half / (half - 1)) if half > 1 else 1.0
    shorter = [float(f"{theta:.{digits}g}") for digits in (1, 2, 3)]
    near = 4 * rounding or 1e-4
    theta = next((rounded for rounded in shorter if np.isclose(rounded, theta, rtol=near)), theta)
    exact = theta ** (-np.arange(half) / half)
    allowed = _ERROR_OF_TABLES * (positions + 4) + rounding
    choices = [(exact, f"theta={theta!r}")]
    if not rounding:  # rates that follow from rounded tables are not exact
        factors = [float(factor) for factor in exact / rates]
        choices.append((rates, f'theta={theta!r}, scaling="longrope", factors={factors!r}'))
    for chosen, text in choices:
        angles = positions * chosen
        if (np.abs(np.cos(angles) - c) <= allowed).all() and (np.abs(np.sin(angles) - s) <= allowed).all():
            return text, factor if abs(factor - 1) > 1e-6 else 1.0
    return None
