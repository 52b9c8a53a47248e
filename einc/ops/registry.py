"""The operator library: every name that a model can call, and every family that a bundle can name.

A new operator is a file beside this one, named below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops import (
    append,
    attention,
    concat,
    elementwise,
    embedding,
    equation,
    matmul,
    meanpool,
    norm,
    reduction,
    regroup,
    rope,
    selection,
    slicing,
    softmax,
    transpose,
)
from einc.ops.arguments import Argument
from einc.ops.base import Attributes, Operator
from einc.ops.literals import shown
from einc_runtime.text import did_you_mean

_FILES = (
    append, attention, concat, elementwise, embedding, equation, matmul, meanpool, norm, reduction, regroup, rope,
    selection, slicing, softmax, transpose,
)  # fmt: skip
"""The library, file by file. Each has one of these, or more:

- `CALLS`: the names that its `call` makes operators of;
- `EXTRAS`: keyword arguments of these calls that are tensors. `call` gets them after the positional tensors, in the
  order written, and their names in that order as the attribute `extras`;
- `FAMILIES`: what restores its operators from a plan, by family.
"""

_Make: TypeAlias = Callable[[str, Sequence[Argument], Attributes], Operator]
_Restore: TypeAlias = Callable[[tuple[TensorDesc, ...], Attributes], Operator]

_CALLS: dict[str, _Make] = {name: file.call for file in _FILES for name in getattr(file, "CALLS", ())}
_EXTRAS: dict[str, tuple[str, ...]] = {
    name: file.EXTRAS for file in _FILES if hasattr(file, "EXTRAS") for name in file.CALLS
}
_FAMILIES: dict[str, _Restore] = {key: make for file in _FILES for key, make in getattr(file, "FAMILIES", {}).items()}


def names() -> tuple[str, ...]:
    """Everything that can be called, in alphabetical order."""
    return tuple(sorted(_CALLS))


def call(name: str, arguments: Sequence[Argument], keywords: Mapping[str, Argument]) -> Operator:
    """The operator that `name` makes of these arguments (tensors and literals in order) and keyword arguments.

    Its inputs are the tensors in the order of the arguments, then of the keyword arguments. Raises OperatorError.
    """
    make = _CALLS.get(name)
    if make is None:
        raise OperatorError(f"there is no operator '{name}'", hint=_suggestion(name))
    tensors = {key: value for key, value in keywords.items() if isinstance(value, TensorDesc)}
    attributes = {key: value for key, value in keywords.items() if not isinstance(value, TensorDesc)}
    known = _EXTRAS.get(name, ())
    for key in keywords:
        if key in tensors and key not in known:
            hint = f"the tensors it takes by keyword: {', '.join(known)}" if known else "it takes no tensor by keyword"
            raise OperatorError(f"{name}: '{key}' cannot be a tensor", argument=key, hint=hint)
        if key not in tensors and key in known:
            raise OperatorError(f"{name}: '{key}' must be a tensor, not {shown(keywords[key])}", argument=key)
        if known and key == "extras":
            raise OperatorError(f"{name} has no argument 'extras'", argument=key)
    if tensors:
        return make(name, (*arguments, *tensors.values()), attributes | {"extras": tuple(tensors)})
    return make(name, arguments, attributes)


def restore(family: str, inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The operator with this family, these inputs and `Operator.attributes`; equal to the one they came from.

    Raises OperatorError for anything that no operator has.
    """
    make = _FAMILIES.get(family)
    if make is None:
        raise OperatorError(f"there is no operator family {family[:40]!r}")
    return make(inputs, attributes)


def _suggestion(name: str) -> str:
    return did_you_mean(name, names()) or "the operators are " + ", ".join(names())
