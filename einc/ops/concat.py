"""Concatenation of tensors along one dimension.

Every dimension is shardable anywhere. An interval of the concatenated dimension overlaps some of the parts. Of every
other part, a function specification reads the one position nearest to the interval, because it must read a block of
every input; its kernel ignores that position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import (
    Argument,
    drop_item,
    find_positions,
    read_dimension,
    reject_others,
    require_tensors,
    restore_axis,
)
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("concat",)


@dataclass(frozen=True, slots=True)
class Concat(DerivedMappedOperator):
    """The parts one after the other along dimension `axis`, which is called `into` in the result."""

    family: ClassVar[str] = "concat"

    parts: tuple[TensorDesc, ...]
    axis: int
    into: str

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        return (np.concatenate(arrays, axis=self.axis),)

    def flops(self, function: FunctionSpec) -> int:
        return 0


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`concat(a, b, over="past", into="tokens")`: `over` is a dimension of the first, `into` its name in the result."""
    reject_others(name, attributes, "over", "into")
    if not arguments:
        raise OperatorError(f"{name} takes one or more tensors, not 0", hint=f'{name}(a, b, over="name")')
    parts = require_tensors(name, arguments, len(arguments))
    over = attributes.get("over")
    if not isinstance(over, str):
        raise OperatorError(f"{name} needs the dimension to go over", argument="over", hint='over="name"')
    if over not in parts[0].dims and any(over in part.dims for part in parts):
        raise OperatorError(
            f"{name}: '{over}' is a dimension of a later operand; `over` names one of the first, {parts[0]}",
            argument="over",
            hint="the others align with it by position, whatever their dimensions are called",
        )
    (axis,) = find_positions(name, parts[0], [(over, "over")])
    return _make_concat(parts, axis, attributes.get("into", over))


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The concatenation with these attributes; raises OperatorError if they are not those of a concatenation."""
    _, axis = restore_axis("concat", inputs[:1], attributes)
    return _make_concat(inputs, axis, attributes.get("into"))


def _make_concat(parts: tuple[TensorDesc, ...], axis: int, into: object) -> Operator:
    first = parts[0]
    into = read_dimension("concat", "into", into)
    if into in drop_item(first.dims, axis):
        raise OperatorError(f"concat: {first} has another dimension '{into}'", argument="into")
    for position, part in enumerate(parts):
        if part.dtype is not first.dtype:
            raise OperatorError(
                f"concat: operand {position + 1} is {part.dtype}, expected {first.dtype} as the first",
                argument=position,
                hint=f'convert it: cast(x, "{first.dtype}")',
            )
        if part.rank != first.rank or drop_item(part.shape, axis) != drop_item(first.shape, axis):
            raise OperatorError(
                f"concat: operand {position + 1} is {part}, expected the extents of {first} in all dimensions but "
                f"'{first.dims[axis]}'",
                argument=position,
            )
    return Concat(parts, axis, into)


FAMILIES = {Concat.family: restore}
