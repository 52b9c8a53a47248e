"""Checks that the calls of all operators share: tensors, names of dimensions, numbers within bounds, packed lengths."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard, TypeVar

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.base import Attribute, Attributes
from einc_runtime.text import shorten

MAX_NAME_CHARACTERS = 100
"""Of the name of a dimension."""


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def read_number(name: str, attributes: Attributes, key: str, default: float | None = None, *, above: float) -> float:
    """The finite number given for `key`, greater than `above`; required if there is no default."""
    value = attributes.get(key, default)
    if value is None:
        raise OperatorError(f"{name} needs the argument '{key}'", hint=f"{key}=...")
    if isinstance(value, int | float) and not isinstance(value, bool) and above < value <= sys.float_info.max:
        return float(value)
    raise OperatorError(f"{name}: '{key}' must be a number above {above:g}, not {format_value(value)}", argument=key)


def read_word(name: str, attributes: Attributes, key: str, choices: Sequence[str]) -> str:
    """One of the choices; the first if none is given."""
    value = attributes.get(key, choices[0])
    if isinstance(value, str) and value in choices:
        return value
    raise OperatorError(
        f"{name}: '{key}' must be one of {', '.join(map(repr, choices))}, not {format_value(value)}", argument=key
    )


def read_dimension(name: str, key: str, value: object) -> str:
    """The name of a new dimension."""
    if isinstance(value, str) and value.isidentifier() and len(value) <= MAX_NAME_CHARACTERS:
        return value
    hint = f"up to {MAX_NAME_CHARACTERS} letters, digits and _"
    raise OperatorError(f"{name}: '{key}' must be a name in quotes, not {format_value(value)}", argument=key, hint=hint)


def read_lengths(name: str, attributes: Attributes, key: str, total: int, dim: str) -> tuple[int, ...]:
    """The lengths of the sequences packed along a dimension of extent `total`; one sequence if none are given."""
    value = attributes.get(key, (total,))
    if not isinstance(value, tuple) or not value:
        raise OperatorError(f"{name}: '{key}' must be a list of lengths, not {format_value(value)}", argument=key)
    lengths = tuple(item for item in value if is_integer(item) and item > 0)
    if len(lengths) < len(value):
        wrong = next(item for item in value if not is_integer(item) or item <= 0)
        raise OperatorError(f"{name}: '{key}' must hold positive integers, not {format_value(wrong)}", argument=key)
    if sum(lengths) != total:
        raise OperatorError(
            f"{name}: '{key}' adds up to {sum(lengths)}, expected {total}, the extent of dimension '{dim}'",
            argument=key,
        )
    return lengths


def format_value(value: object) -> str:
    """A value for a message, however long it is."""
    items = value if isinstance(value, tuple) else (value,)
    if any(isinstance(item, int) and item.bit_length() >= 1000 for item in items):
        return "a value of many digits"  # which Python refuses to write
    text = repr(list(value) if isinstance(value, tuple) else value)
    return shorten(text, 60)


Argument: TypeAlias = TensorDesc | Attribute
"""What stands between the parentheses of a call: tensors, and literals (strings too)."""

Given: TypeAlias = tuple[str, int | str]
"""A name in quotes, and the argument that it stands in: a position or a keyword."""

_Item = TypeVar("_Item")


def require_tensors(name: str, arguments: Sequence[Argument], count: int) -> tuple[TensorDesc, ...]:
    """The arguments, which must be `count` tensors."""
    if len(arguments) != count:
        raise OperatorError(
            f"{name} takes {count} tensor{'s' * (count > 1)}, not {len(arguments)}",
            argument=count if len(arguments) > count else None,
        )
    tensors = []
    for position, argument in enumerate(arguments):
        if not isinstance(argument, TensorDesc):
            raise OperatorError(
                f"{name}: argument {position + 1} must be a tensor, not {format_value(argument)}", argument=position
            )
        tensors.append(argument)
    return tuple(tensors)


def reject_others(name: str, attributes: Attributes, *known: str) -> None:
    """Checks that all keyword arguments are among `known`."""
    for key in attributes:
        if key not in known:
            expected = f"it takes {', '.join(known)}" if known else "it takes none"
            raise OperatorError(f"{name} has no argument '{key}'", argument=key, hint=expected)


def take_tensor_and_names(
    name: str, arguments: Sequence[Argument], attributes: Attributes, keyword: str, first: int = 1
) -> tuple[TensorDesc, tuple[Given, ...]]:
    """One tensor, and the names given for `keyword`: strings from argument `first` on, or a string or list by keyword.

    No names at all come back as an empty tuple.
    """
    (tensor,) = require_tensors(name, arguments[:1], 1)
    listed: list[tuple[object, int | str]] = [(item, at) for at, item in enumerate(arguments[first:], first)]
    if keyword in attributes:
        if listed:
            raise OperatorError(f"{name}: '{keyword}' is given twice", argument=keyword)
        listed = [(attributes[keyword], keyword)]
    if len(listed) == 1 and isinstance(listed[0][0], tuple):
        listed = [(item, listed[0][1]) for item in listed[0][0]]
    names = []
    for item, where in listed:
        if not isinstance(item, str):
            described = "a tensor" if isinstance(item, TensorDesc) else format_value(item)
            raise OperatorError(
                f"{name}: '{keyword}' takes names in quotes, not {described}", argument=where, hint=f'{keyword}="name"'
            )
        names.append((item, where))
    return tensor, tuple(names)


def find_positions(name: str, tensor: TensorDesc, dims: Sequence[Given]) -> tuple[int, ...]:
    """The positions of the named dimensions in the tensor; each must occur exactly once."""
    names = [dim for dim, _ in dims]
    for at, (dim, where) in enumerate(dims):
        if tensor.dims.count(dim) != 1:
            how = "no" if dim not in tensor.dims else "more than one"
            raise OperatorError(
                f"{name}: {tensor} has {how} dimension {format_value(dim)}",
                argument=where,
                hint=_suggest_dims(tensor, dim),
            )
        if dim in names[:at]:
            raise OperatorError(f"{name}: dimension '{dim}' is named twice", argument=where)
    return tuple(map(tensor.dims.index, names))


def find_axis(name: str, tensor: TensorDesc, over: Sequence[Given]) -> int:
    """The position of the one dimension that an operator goes over: the last one if none is named."""
    if len(over) > 1:
        raise OperatorError(f"{name} goes over one dimension, not {len(over)}", argument=over[1][1])
    if tensor.rank == 0:
        raise OperatorError(f"{name}: {tensor} has no dimension to go over", argument=0)
    return find_positions(name, tensor, over)[0] if over else tensor.rank - 1


def drop_item(items: tuple[_Item, ...], at: int) -> tuple[_Item, ...]:
    return items[:at] + items[at + 1 :]


def _suggest_dims(tensor: TensorDesc, dim: str) -> str:
    if dim in tensor.dims:
        return "name the dimensions apart with an index equation"
    return "its dimensions are " + ", ".join(tensor.dims) if tensor.dims else "it has no dimensions"


def make_unique(names: Sequence[str]) -> tuple[str, ...]:
    """The names with repetitions numbered: n, n becomes n, n_2."""
    seen: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in seen or (number > 1 and candidate in names):
            number += 1
            candidate = f"{name}_{number}"
        seen.append(candidate)
    return tuple(seen)
