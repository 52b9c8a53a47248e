"""Says of scores that a table of masks hides what stands behind a query: in the text itself, not in a table of numbers.

Attention that is not einc's operator (masks that are data, biases that are learned, scores that choose keys) keeps its
scores [..., queries, keys]. With `where(key <= query, ...)` in the text, decode steps can be derived of them. What is
hidden is what it was: sums with numbers that leave nothing of a score, and weights that a softmax made 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einc.importers.arrays.elementwise import write_literal
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array
from einc.importers.arrays.views import Origin
from einc.importers.attention_lifting import skip_largest, skip_views
from einc.importers.origins import UNSEEN, pairs, read_number

_NOTHING_LEFT = -1e30
"""A number in f32 to which no score adds anything; models take the least one of their type, or minus infinity."""


def hide_choice(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A choice by pairs, which takes a number for all keys behind their query; of two that have one, it is noted."""
    behind = find_behind(program, arguments[0])
    positive, negative = (
        find_behind(program, choice) if (number := read_number(choice)) is None else number for choice in arguments[1:3]
    )
    if behind is None:
        if positive is not None and positive == negative:
            program.hidden[array.name] = positive
        return None
    number = positive if behind else negative
    return None if number is None else _hide(program, array, number)


def hide_sum(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A sum with a table, or with a choice, that hides all keys behind their query."""
    for bias, scores in pairs(arguments):
        behind = find_behind(program, bias)
        if behind is not None and behind <= _NOTHING_LEFT and isinstance(scores, Array) and scores.rank >= 2:
            return _hide(program, array, behind)
    return None


def hide_weights(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """A softmax over keys, of which those behind a query are hidden."""
    behind = find_behind(program, arguments[0])
    if behind is None or behind > UNSEEN or arguments[1] % array.rank != array.rank - 1:
        return None
    return _hide(program, array, 0.0)


def hide_sliced_weights(program: ArrayProgram, array: Array, arguments: tuple[Any, ...]) -> Array | None:
    """The weights of keys that a softmax has beside that of a sink, which is cut off."""
    normed = program.find_origin(skip_views(program, arguments[0]), "softmax")
    scores = skip_largest(program, skip_views(program, normed[0])) if normed is not None else None
    joined = program.find_origin(scores, "concat")
    behind = find_behind(program, joined[0][0]) if joined is not None else None
    if behind is None or behind > UNSEEN or arguments[2] != 0:
        return None
    return _hide(program, array, 0.0)


def find_behind(program: ArrayProgram, value: Any) -> float | None:
    """What an array [..., n, n] has for all keys behind their query, if it is one number (0 and 1 of conditions)."""
    if not isinstance(value, Array) or value.rank < 2 or value.shape[-1] != value.shape[-2]:
        return None
    if not value.shape[-1].is_number or value.shape[-1].value < 2:
        return None
    if value.known is not None:
        table = value.numbers
        numbers = None if table is None else np.unique(table[..., ~np.tri(table.shape[-1], dtype=bool)])
        return float(numbers[0]) if numbers is not None and len(numbers) == 1 else None
    if (hidden := program.hidden.get(value.name)) is not None:
        return hidden
    for operation in ("reshape", "cast", "expand"):
        source = program.find_origin(value, operation)
        if source is not None and source[0].shape[-2:] == value.shape[-2:]:
            return find_behind(program, source[0])
    parts = program.find_origin(value, "and") or program.find_origin(value, "mul") or ()
    return 0.0 if value.type.is_bool and any(find_behind(program, part) == 0.0 for part in parts) else None


def _hide(program: ArrayProgram, array: Array, number: float) -> Array:
    """The array with this number for all keys behind their query, which changes none of it."""
    if array.known is not None or not array.type.is_float or array.shape[-1] != array.shape[-2]:
        return array
    literal = program.constant(np.asarray(number), array.type)
    dims = name_dimensions(array.shape)
    indices = [*dims[:-2], "i0", "i1"]
    text = f"where(i1 <= i0, {{0}}[{', '.join(indices)}], {write_literal(literal)})"
    hidden = program.equation(array.name, [*dims[:-2], "i0=", "i1="], text, [array], array.shape, array.type)
    origin = program.origins.get(array.name)
    if origin is not None:
        program.origins[hidden.name] = Origin(origin.operation, origin.arguments, hidden)
    program.hidden[hidden.name] = number
    return hidden
