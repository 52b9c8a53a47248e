"""Products with picked experts whose weight is quantized: experts are read as they are stored, and widened on their way
into registers.

It is an `expert_matmul` of what `Dequantize` makes of the weight. Fusion makes it of these two operators: no model
calls it. Experts may be cut, and so may the summed index, between groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.ops.base import Attributes, find_product_precision
from einc.ops.dequantize import Dequantize, QuantizedForm, widen_values
from einc.ops.derived import DerivedMappedOperator, derive_family, keep_derivable
from einc_runtime.plan.work import ExpertsWork


@dataclass(frozen=True, slots=True)
class QuantizedExperts(DerivedMappedOperator):
    """`result[t, s, n] = sum[k](tensor[t, s, k] * weight[picks[t, s], n, k])`, where the tensor may lack s. Of the
    weight, `stored` are values, scales, and zero points or factors."""

    family: ClassVar[str] = "quantized_experts"

    tensor: TensorDesc
    stored: tuple[TensorDesc, ...]
    picks: TensorDesc
    group: int
    dims: tuple[str, ...]

    @property
    def form(self) -> QuantizedForm:
        return QuantizedForm.read(self.stored, self.group)

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return (self.tensor, *self.stored, self.picks)

    @property
    def attributes(self) -> Attributes:
        return {"group": self.group, "dims": self.dims}

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        tensor, *stored, picks = arrays
        dtype = self.tensor.dtype
        wide = np.dtype(np.float64 if dtype is DType.F64 else np.float32)
        weight = widen_values(self.form, tuple(stored), dtype).astype(wide)
        rows = (tensor if tensor.ndim == 3 else np.repeat(tensor[:, None], picks.shape[1], 1)).astype(wide)
        result = np.zeros((*picks.shape, weight.shape[1]), wide)
        for expert, matrix in enumerate(weight):
            picked = picks == expert
            result[picked] = rows[picked] @ matrix.T
        return (result.astype(dtype.numpy()),)

    @property
    def costs_by_shape(self) -> bool:
        return True

    def flops(self, function: FunctionSpec) -> int:
        """A product and a sum for each element of each picked row of the weight."""
        work = self.work(function)
        return 2 * work.picks * work.columns * work.depth

    def work(self, function: FunctionSpec) -> ExpertsWork:
        """Of some of the experts, as large a part of all picks, rounded up."""
        _, values, *_, picks = function.inputs
        experts, columns, width = values.shape
        count = -(-picks.size * experts // self.stored[0].shape[0])
        return ExpertsWork(experts, count, columns, width * self.form.packing)

    def traffic(self, function: FunctionSpec) -> int:
        """As of any operator; but of the weight, no more experts than are picked."""
        work, (rows, *stored, picks), (result,) = self.work(function), function.inputs, function.outputs
        read = (rows.size + result.size) * self.tensor.dtype.itemsize + picks.size * self.picks.dtype.itemsize
        for block, desc in zip(stored, self.stored, strict=True):
            unread = max(0, work.experts - work.picks) * (block.size // work.experts) if block.rank else 0
            read += (block.size - unread) * desc.dtype.itemsize
        return read

    @property
    def precision(self) -> str:
        return find_product_precision(self.tensor)

    def fan_in(self, k: int) -> int:
        """The summed elements; scales make up for the size of the values, too."""
        if not 0 < k <= len(self.stored):
            return 1
        return self.stored[0].shape[-1] * self.form.packing * self.form.find_fan_in(k - 1)


def make_quantized_experts(
    tensor: TensorDesc, weight: Dequantize, picks: TensorDesc, dims: tuple[str, ...]
) -> QuantizedExperts | None:
    """The product with the experts of a quantized weight; None where there is none."""
    return keep_derivable(QuantizedExperts(tensor, weight.operands, picks, weight.group, dims))


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> QuantizedExperts:
    """The product with these attributes; raises OperatorError if they are not those of one."""
    derive_family(QuantizedExperts.family, inputs, attributes)
    tensor, *stored, picks = inputs
    return QuantizedExperts(tensor, tuple(stored), picks, **attributes)  # type: ignore[arg-type]


FAMILIES = {QuantizedExperts.family: restore}
