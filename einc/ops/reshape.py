"""Reshape: the same elements in row-major order under other dimensions.

The dimensions fall into groups: each group is a run of old dimensions and a run of new ones that have equally many
elements. A group may be cut at the positions of its leading dimensions that are boundaries both before and after, so
that a block is a box on both sides: heads * d_head is cut between heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, format_value, is_integer, require_tensors
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, restore_fields

CALLS = ("reshape",)

_USAGE = "name the new dimensions, with their extents: reshape(x, rows=4, columns=5)"


@dataclass(frozen=True, slots=True)
class Reshape(DerivedMappedOperator):
    """One tensor under new dimensions `dims` with extents `shape`."""

    family: ClassVar[str] = "reshape"

    tensor: TensorDesc
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return (arrays[0].reshape(self.shape),)

    def flops(self, function: FunctionSpec) -> int:
        return 0


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`reshape(x, tokens=1024, heads=32, d_head=128)`: the new dimensions in order, with their extents."""
    if len(arguments) > 1:
        raise OperatorError(f"{name} takes one tensor, not {len(arguments)} arguments", argument=1, hint=_USAGE)
    (tensor,) = require_tensors(name, arguments, 1)
    for dim, extent in attributes.items():
        if not is_integer(extent) or extent < 1:
            raise OperatorError(
                f"{name}: the extent of dimension '{dim}' must be a positive integer, not {format_value(extent)}",
                argument=dim,
            )
    dims, shape = tuple(attributes), tuple(filter(is_integer, attributes.values()))
    if math.prod(shape) != tensor.type.size:
        raise OperatorError(
            f"{name}: {tensor} has {tensor.type.size} elements, "
            f"[{', '.join(f'{d}={e}' for d, e in zip(dims, shape, strict=True))}] has {math.prod(shape)}",
            argument=0,
            hint="the new extents must multiply to the same number",
        )
    return Reshape(tensor, dims, shape)


FAMILIES = {Reshape.family: restore_fields(Reshape)}
