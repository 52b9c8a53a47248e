"""What the calls of all families check alike: tensors, names of dimensions, and what must not be there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.base import Attribute, Attributes

Argument: TypeAlias = TensorDesc | Attribute
"""What stands between the parentheses of a call: tensors, and literals (strings too)."""


def tensors(name: str, arguments: Sequence[Argument], count: int) -> tuple[TensorDesc, ...]:
    """The arguments, which must be `count` tensors."""
    if len(arguments) != count:
        raise OperatorError(
            f"{name} takes {count} tensor{'s' * (count > 1)}, not {len(arguments)}",
            argument=count if len(arguments) > count else None,
        )
    found = []
    for position, argument in enumerate(arguments):
        if not isinstance(argument, TensorDesc):
            raise OperatorError(
                f"{name}: argument {position + 1} must be a tensor, not {argument!r}", argument=position
            )
        found.append(argument)
    return tuple(found)


def no_others(name: str, attributes: Attributes, *known: str) -> None:
    """Checks that no keyword argument stands outside `known`."""
    for key in attributes:
        if key not in known:
            expected = f"it takes {', '.join(known)}" if known else "it takes none"
            raise OperatorError(f"{name} has no argument '{key}'", argument=key, hint=expected)


def one_tensor(
    name: str, arguments: Sequence[Argument], attributes: Attributes, keyword: str
) -> tuple[TensorDesc, tuple[str, ...]]:
    """One tensor, and the names given for `keyword`: strings after the tensor, or a string or list by keyword.

    No names at all come back as an empty tuple.
    """
    no_others(name, attributes, keyword)
    (tensor,) = tensors(name, arguments[:1], 1)
    given: list[tuple[int | str, object]] = list(enumerate(arguments[1:], 1))
    if keyword in attributes:
        if given:
            raise OperatorError(f"{name}: '{keyword}' is given twice", argument=keyword)
        value = attributes[keyword]
        given = [(keyword, item) for item in (value if isinstance(value, tuple) else (value,))]
    if len(given) == 1 and isinstance(given[0][1], tuple):
        given = [(given[0][0], item) for item in given[0][1]]
    names = []
    for where, item in given:
        if not isinstance(item, str):
            shown = "a tensor" if isinstance(item, TensorDesc) else repr(item)
            raise OperatorError(
                f"{name}: '{keyword}' takes names in quotes, not {shown}", argument=where, hint=f'{keyword}="name"'
            )
        names.append(item)
    return tensor, tuple(names)


def positions(
    name: str, keyword: str, attributes: Attributes, tensor: TensorDesc, names: Sequence[str]
) -> tuple[int, ...]:
    """Where the named dimensions stand in the tensor; each must be there exactly once."""
    for at, dim in enumerate(names):
        where = keyword if keyword in attributes else at + 1
        if tensor.dims.count(dim) != 1:
            how = "no" if dim not in tensor.dims else "more than one"
            raise OperatorError(
                f"{name}: {tensor} has {how} dimension '{dim}'", argument=where, hint=_dims_hint(tensor)
            )
        if names.count(dim) > 1:
            raise OperatorError(f"{name}: dimension '{dim}' is named twice", argument=where)
    return tuple(map(tensor.dims.index, names))


def _dims_hint(tensor: TensorDesc) -> str:
    if len(set(tensor.dims)) < len(tensor.dims):
        return "name the dimensions apart with an index equation"
    return "its dimensions are " + ", ".join(tensor.dims) if tensor.dims else "it has no dimensions"


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """The names with repetitions told apart: n, n becomes n, n_2."""
    seen: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in seen or (number > 1 and candidate in names):
            number += 1
            candidate = f"{name}_{number}"
        seen.append(candidate)
    return tuple(seen)
