"""The operator library: every name that a model can call, and every family that a plan can name.

To add an operator, add a file to this folder and name it in `_FILES`, or in `list_files` if no model calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import TypeAlias

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops import append, attention, elementwise, reshape, rope, rows, selection, shorthands
from einc.ops.arguments import Argument, format_value
from einc.ops.base import Attributes, Operator
from einc_runtime.text import did_you_mean

_FILES = (
    append, attention, elementwise, reshape, rope, rows, selection, shorthands,
)  # fmt: skip
"""The files of the library that models call. A file of the library defines at least one of these:

- `CALLS`: the names of calls that its function `call` turns into operators;
- `EXTRAS`: the keyword arguments of these calls that are tensors. `call` gets them after the positional tensors, in
  the order in which they are written, and their names in that order as the attribute `extras`;
- `INSTEAD_OF_TENSORS`: what to write in place of other keyword arguments that are tensors;
- `FAMILIES`: for each operator family, the function that restores its operators from a plan.
"""

_Make: TypeAlias = Callable[[str, Sequence[Argument], Attributes], Operator]
_Restore: TypeAlias = Callable[[tuple[TensorDesc, ...], Attributes], Operator]

_CALLS: dict[str, _Make] = {name: file.call for file in _FILES for name in getattr(file, "CALLS", ())}
_EXTRAS: dict[str, tuple[str, ...]] = {
    name: file.EXTRAS for file in _FILES if hasattr(file, "EXTRAS") for name in file.CALLS
}
_HINTS = {
    (name, key): hint
    for file in _FILES
    for name in file.CALLS
    for key, hint in getattr(file, "INSTEAD_OF_TENSORS", {}).items()
}


def list_files() -> tuple[ModuleType, ...]:
    """All files of the library. Those that only plans name are loaded here: few compilations need one of them."""
    from einc.ops import (
        custom,
        dequantize,
        equation,
        index_operator,
        quantized_experts,
        quantized_product,
        recurrence,
        rounded_product,
    )

    return (
        *_FILES, custom, dequantize, equation, index_operator, quantized_experts, quantized_product, recurrence,
        rounded_product,
    )  # fmt: skip


@cache
def list_families() -> Mapping[str, _Restore]:
    """For each family, the function that restores its operators from a plan."""
    return {family: make for file in list_files() for family, make in getattr(file, "FAMILIES", {}).items()}


def list_names() -> tuple[str, ...]:
    """Every name that can be called, in alphabetical order."""
    return tuple(sorted(_CALLS))


def is_callable(name: str) -> bool:
    """Whether `name` is that of an operator that can be called."""
    return name in _CALLS


def list_custom_names() -> tuple[str, ...]:
    """The names of the operators of installed packages, in alphabetical order."""
    from einc_runtime.custom import list_custom_operators

    return tuple(list_custom_operators())


def is_custom(name: str) -> bool:
    """Whether an installed package defines an operator of this name. All other names come first."""
    return name in list_custom_names()


def call(name: str, arguments: Sequence[Argument], keywords: Mapping[str, Argument]) -> Operator:
    """The operator that `name` makes of these arguments (tensors and literals in order) and keyword arguments.

    Its inputs are the tensors in the order of the arguments, then of the keyword arguments. Raises OperatorError.
    """
    make = _CALLS.get(name)
    if make is None and is_custom(name):  # asked last, as it looks at all installed packages
        from einc.ops import custom

        make = custom.call
    if make is None:
        raise OperatorError(f"there is no operator '{name}'", hint=_suggest_operators(name))
    tensors = {key: value for key, value in keywords.items() if isinstance(value, TensorDesc)}
    attributes = {key: value for key, value in keywords.items() if not isinstance(value, TensorDesc)}
    known = _EXTRAS.get(name, ())
    for key in keywords:
        if key in tensors and key not in known:
            hint = f"the tensors it takes by keyword: {', '.join(known)}" if known else "it takes no tensor by keyword"
            hint = _HINTS.get((name, key), hint)
            raise OperatorError(f"{name}: '{key}' cannot be a tensor", argument=key, hint=hint)
        if key not in tensors and key in known:
            raise OperatorError(f"{name}: '{key}' must be a tensor, not {format_value(keywords[key])}", argument=key)
        if known and key == "extras":
            raise OperatorError(f"{name} has no argument 'extras'", argument=key)
    if tensors:
        return make(name, (*arguments, *tensors.values()), attributes | {"extras": tuple(tensors)})
    return make(name, arguments, attributes)


def restore(family: str, inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The operator with this family, these inputs and `Operator.attributes`; equal to the one they came from.

    Raises OperatorError for anything that no operator has.
    """
    make = list_families().get(family)
    if make is None:
        raise OperatorError(f"there is no operator family {family[:40]!r}")
    return make(inputs, attributes)


def _suggest_operators(name: str) -> str:
    return did_you_mean(name, list_names()) or "the operators are " + ", ".join(list_names())
