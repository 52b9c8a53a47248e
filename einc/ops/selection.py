"""The largest elements along a dimension, each with its index: `topk`.

Larger values come first; of equal values, the one with the smaller index. Not-a-number counts as larger than any
number. Every dimension is shardable anywhere: partial results are pairs of lists, which are combined by the operation
of the same name. A block with fewer than k elements fills its list with the least value of its type and
the index NO_INDEX, which comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import (
    Argument,
    find_axis,
    format_value,
    is_integer,
    read_dimension,
    reject_others,
    take_tensor_and_names,
)
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, restore_fields

CALLS = ("topk",)
INTO = "k"
"""The default name of the dimension of `topk` along which its results stand."""


@dataclass(frozen=True, slots=True)
class TopK(DerivedMappedOperator):
    """The `count` largest elements along a dimension, in descending order, and their indices (i64).

    They stand along a new last dimension `into`, which replaces the one that is searched.
    """

    family: ClassVar[str] = "topk"

    tensor: TensorDesc
    axis: int
    count: int
    into: str

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        order = _order_positions(arrays[0], self.axis)[..., : self.count]
        return (_take_along(arrays[0], self.axis, order), order)

    def flops(self, function: FunctionSpec) -> int:
        """A comparison per element."""
        return function.inputs[0].size


def _order_positions(x: Array, axis: int) -> Array:
    """The positions along `axis`, moved to the end, from the largest element to the smallest."""
    import numpy as np

    moved = np.moveaxis(x, axis, -1)
    if moved.dtype.kind == "i":
        return np.argsort(~moved, axis=-1, kind="stable")  # ascending, and unlike -x never out of range
    wide = moved.astype(np.float64)
    return np.lexsort((-wide, ~np.isnan(wide)), axis=-1)  # stable


def _take_along(x: Array, axis: int, order: Array) -> Array:
    import numpy as np

    return np.take_along_axis(np.moveaxis(x, axis, -1), order, -1)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`topk(x, 5, "vocab")`, `topk(x, 5, over="experts", into="choice")`; where no dimension is named, the last one is
    searched."""
    reject_others(name, attributes, "over", "into")
    if len(arguments) < 2 or not isinstance(arguments[0], TensorDesc):
        raise OperatorError("topk takes a tensor and how many elements to find", hint='topk(x, 5, "dimension")')
    tensor, over = take_tensor_and_names(name, arguments, attributes, "over", first=2)
    return _make_topk(tensor, find_axis(name, tensor, over), arguments[1], attributes.get("into", INTO))


def _make_topk(tensor: TensorDesc, axis: int, count: object, into: object) -> Operator:
    if tensor.dtype is DType.BOOL:
        raise OperatorError("topk does not take bool", argument=0, hint='convert it: cast(x, "i32")')
    if not is_integer(count):
        raise OperatorError("topk: how many elements to find must be an integer", argument=1)
    extent = tensor.shape[axis]
    if not 1 <= count <= extent:
        message = (
            f"topk: dimension '{tensor.dims[axis]}' has {extent} elements, not the {format_value(count)} asked for"
        )
        raise OperatorError(message, argument=1)
    return TopK(tensor, axis, count, read_dimension("topk", "into", into))


FAMILIES = {TopK.family: restore_fields(TopK)}
