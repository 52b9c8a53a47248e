"""Products with picked experts whose weight is quantized: experts are read as they are stored, and widened on their way
into registers.

It is an `expert_matmul` of what `Dequantize` makes of the weight. Fusion makes it of these two operators: no model
calls it. Experts may be cut, and so may the summed index, between groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops import shorthands
from einc.ops.base import Attributes, find_product_precision
from einc.ops.dequantize import Dequantize, QuantizedForm, widen_values
from einc.ops.derived import DerivedMappedOperator, derive, restore_fields
from einc_runtime.plan.work import ExpertsWork

if TYPE_CHECKING:
    from einc.ops.base import Array


@dataclass(frozen=True, slots=True)
class QuantizedExperts(DerivedMappedOperator):
    """`result[t, s, n] = sum[k](tensor[t, s, k] * weight[picks[t, s], n, k])`, where the tensor may lack s. Of the
    weight, `values` and `more` are stored."""

    family: ClassVar[str] = "quantized_experts"

    tensor: TensorDesc
    values: TensorDesc
    picks: TensorDesc
    more: tuple[TensorDesc, ...]
    group: int
    dims: tuple[str, ...]

    @property
    def form(self) -> QuantizedForm:
        return QuantizedForm.read((self.values, *self.more), self.group)

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return (self.tensor, self.values, self.picks, *self.more)

    @property
    def attributes(self) -> Attributes:
        return {"group": self.group, "dims": self.dims}

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        rows, values, picks, *more = arrays
        weight = self.form.widen((self.values, *self.more), self.tensor.dtype)
        plain = shorthands.call("expert_matmul", (self.tensor, weight, self.picks), {})
        return plain.reference(rows, widen_values(self.form, (values, *more), self.tensor.dtype), picks)

    @property
    def costs_by_shape(self) -> bool:
        return True

    def flops(self, function: FunctionSpec) -> int:
        """A product and a sum for each element of each picked row of the weight."""
        work = self.work(function)
        return 2 * work.picks * work.columns * work.depth

    def work(self, function: FunctionSpec) -> ExpertsWork:
        """Of some of the experts, as large a part of all picks, rounded up."""
        values, picks = function.inputs[1:3]
        experts, columns, width = values.shape
        count = -(-picks.size * experts // self.values.shape[0])
        return ExpertsWork(experts, count, columns, width * self.form.packing)

    def traffic(self, function: FunctionSpec) -> int:
        """As of any operator; but of the weight, no more experts than are picked."""
        work, total = self.work(function), 0
        weight = (1, *range(3, len(self.inputs)))
        for position, (block, desc) in enumerate(zip(function.inputs, self.inputs, strict=True)):
            each_expert = position in weight and block.rank > 0
            size = block.size // block.shape[0] * min(work.experts, work.picks) if each_expert else block.size
            total += size * desc.dtype.itemsize
        return total + function.outputs[0].size * self.tensor.dtype.itemsize

    @property
    def precision(self) -> str:
        return find_product_precision(self.tensor)

    def fan_in(self, k: int) -> int:
        """The summed elements; scales make up for the size of the values, too."""
        if k in (0, 2):
            return 1
        depth = self.values.shape[-1] * self.form.packing
        return depth * self.form.find_fan_in(0 if k == 1 else k - 2)


def make_quantized_experts(
    tensor: TensorDesc, weight: Dequantize, picks: TensorDesc, dims: tuple[str, ...]
) -> QuantizedExperts | None:
    """The product with the experts of a quantized weight; None where there is none."""
    values, *more = weight.operands
    product = QuantizedExperts(tensor, values, picks, tuple(more), weight.group, dims)
    try:
        derive(product)
    except OperatorError:
        return None
    return product


FAMILIES = {QuantizedExperts.family: restore_fields(QuantizedExperts)}
