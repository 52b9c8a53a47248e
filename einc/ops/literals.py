"""What the keyword arguments of calls have in common: numbers within bounds, words out of a list, packed lengths."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeGuard

from einc.errors import OperatorError
from einc.ops.base import Attributes

MOST_CHARACTERS = 100
"""Of the name of a dimension."""


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def real(name: str, attributes: Attributes, key: str, default: float | None = None, *, above: float) -> float:
    """The finite number given for `key`, greater than `above`; required where there is no default."""
    value = attributes.get(key, default)
    if value is None:
        raise OperatorError(f"{name} needs the argument '{key}'", hint=f"{key}=...")
    if isinstance(value, int | float) and not isinstance(value, bool) and above < value <= sys.float_info.max:
        return float(value)
    raise OperatorError(f"{name}: '{key}' must be a number above {above:g}, not {shown(value)}", argument=key)


def word(name: str, attributes: Attributes, key: str, choices: Sequence[str]) -> str:
    """One of the choices, the first where none is given."""
    value = attributes.get(key, choices[0])
    if isinstance(value, str) and value in choices:
        return value
    raise OperatorError(
        f"{name}: '{key}' must be one of {', '.join(map(repr, choices))}, not {shown(value)}", argument=key
    )


def dimension(name: str, key: str, value: object) -> str:
    """The name of a new dimension."""
    if isinstance(value, str) and value.isidentifier() and len(value) <= MOST_CHARACTERS:
        return value
    hint = f"up to {MOST_CHARACTERS} letters, digits and _"
    raise OperatorError(f"{name}: '{key}' must be a name in quotes, not {shown(value)}", argument=key, hint=hint)


def lengths(name: str, attributes: Attributes, key: str, total: int, dim: str) -> tuple[int, ...]:
    """The lengths of the sequences packed along a dimension of extent `total`; one sequence where none are given."""
    value = attributes.get(key, (total,))
    if not isinstance(value, tuple) or not value:
        raise OperatorError(f"{name}: '{key}' must be a list of lengths, not {shown(value)}", argument=key)
    found = tuple(item for item in value if is_integer(item) and item > 0)
    if len(found) < len(value):
        wrong = next(item for item in value if not is_integer(item) or item <= 0)
        raise OperatorError(f"{name}: '{key}' must hold positive integers, not {shown(wrong)}", argument=key)
    if sum(found) != total:
        raise OperatorError(
            f"{name}: '{key}' adds up to {sum(found)}, expected {total}, the extent of dimension '{dim}'", argument=key
        )
    return found


@lru_cache(maxsize=256)
def ends(lens: tuple[int, ...]) -> tuple[int, ...]:
    """Where each packed sequence ends."""
    return tuple(itertools.accumulate(lens))


def shown(value: object) -> str:
    """A value for a message, however long it is."""
    items = value if isinstance(value, tuple) else (value,)
    if any(isinstance(item, int) and item.bit_length() >= 1000 for item in items):
        return "a value of many digits"  # which Python refuses to write
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:60] + "..."
