"""Softmax over one dimension, which stays whole; every other dimension is shardable anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, find_axis, reject_others, take_tensor_and_names
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, restore_fields

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("softmax",)


@dataclass(frozen=True, slots=True)
class Softmax(DerivedMappedOperator):
    """exp(x) / sum(exp(x)) along dimension `axis` of one tensor of floats."""

    family: ClassVar[str] = "softmax"

    tensor: TensorDesc
    axis: int

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype

        (x,) = arrays
        wide = x.astype(find_accumulating_dtype(self.tensor.dtype))
        powers = np.exp(wide - wide.max(axis=self.axis, keepdims=True))
        return ((powers / powers.sum(axis=self.axis, keepdims=True)).astype(x.dtype),)

    @property
    def costs_by_shape(self) -> bool:
        return True

    def flops(self, function: FunctionSpec) -> int:
        """Maximum, difference, exponential, sum and quotient: five per element."""
        return 5 * function.inputs[0].size


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`softmax(scores, "keys")`; without a name, over the last dimension."""
    reject_others(name, attributes, "over")
    tensor, over = take_tensor_and_names(name, arguments, attributes, "over")
    if not tensor.dtype.is_float:
        raise OperatorError(f"softmax does not take {tensor.dtype}", argument=0, hint='convert it: cast(x, "f32")')
    return Softmax(tensor, find_axis(name, tensor, over))


FAMILIES = {Softmax.family: restore_fields(Softmax)}
