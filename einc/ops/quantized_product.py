"""Products with a quantized weight, which is read as it is stored and widened on its way into registers.

It is the contraction of a tensor with what `Dequantize` makes of the weight. Fusion makes it of these two operators:
no model calls it. Indices are those of the contraction. The weight's last index is summed, and is cut between groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, TensorDesc, TensorType
from einc.ops.base import Attributes, Labels, Operator, describe_product, find_product_precision
from einc.ops.dequantize import Dequantize, QuantizedForm, widen_values
from einc.ops.derived import DerivedMappedOperator, derive_family, keep_derivable
from einc.ops.windows import Windows, compose_box, list_boxes, normalize_windows, read_equation
from einc_runtime.plan.index_equations import IndexEquation, format_windows
from einc_runtime.plan.work import ProductWork


@dataclass(frozen=True, slots=True)
class QuantizedProduct(DerivedMappedOperator):
    """`result[...] = factor * sum(tensor[...] * weight[...])`; `operands` are those of the quantized weight.

    `labels` are those of the tensor and of the weight. `windows` are the parts of both that are read, the weight's in
    its elements.
    """

    family: ClassVar[str] = "quantized_product"

    tensor: TensorDesc
    operands: tuple[TensorDesc, ...]
    group: int
    labels: tuple[Labels, Labels]
    result: Labels
    dims: tuple[str, ...]
    factor: float = 1.0
    windows: Windows = ()
    rounds_inputs: bool = False
    """Whether the tensor is to be rounded: fusion then makes a `RoundedProduct` of this where it can."""

    @property
    def form(self) -> QuantizedForm:
        return QuantizedForm.read(self.operands, self.group)

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return (self.tensor, *self.operands)

    @property
    def attributes(self) -> Attributes:
        windows = {"windows": format_windows(self.windows)} if self.windows else {}
        return {
            "indices": str(IndexEquation(self.labels, self.result)),
            "dims": self.dims,
            "group": self.group,
            "factor": self.factor,
            **windows,
        }

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        from einc.ops.evaluate import contract

        parts = zip(arrays, self.reads, strict=True)
        tensor, *stored = (array[(*map(slice, box.lower, box.upper),)] for array, box in parts)
        weight = widen_values(self.form, tuple(stored), self.tensor.dtype)
        return (contract((tensor, weight), self.labels, self.result, self.tensor.dtype, self.factor),)

    def flops(self, function: FunctionSpec) -> int:
        """A product and a sum for each element of the join."""
        work = self.work(function)
        return 2 * work.batch * work.rows * work.columns * work.depth

    def work(self, function: FunctionSpec) -> ProductWork:
        tensor, values = function.inputs[:2]
        shapes = (tensor.shape, (*values.shape[:-1], values.shape[-1] * self.form.packing))
        return describe_product(self.labels, self.result, shapes)

    @property
    def precision(self) -> str:
        return find_product_precision(self.tensor)

    def fan_in(self, k: int) -> int:
        """The contracted elements; scales make up for the size of the values, too."""
        extents = self._extents
        summed = math.prod(extents[name] for name in self.labels[1] if name not in self.result)
        return summed * self.form.find_fan_in(k - 1)

    def fuse(self, k: int, producer: Operator) -> Operator | None:
        """The tensor may be a part of another one."""
        if producer.part is None or k > 0:
            return None
        tensor, weight = self._boxes
        (full_tensor,) = producer.inputs
        return replace(
            self, tensor=full_tensor, windows=self._normalize(full_tensor, (compose_box(producer.part, tensor), weight))
        )

    @property
    def _weight(self) -> TensorDesc:
        return self.form.widen(self.operands, self.tensor.dtype)

    @property
    def _boxes(self) -> tuple[TensorType, ...]:
        """What is read of the tensor and of the weight."""
        return list_boxes((self.tensor, self._weight), self.windows)

    def _normalize(self, tensor: TensorDesc, boxes: tuple[TensorType, ...]) -> Windows:
        return normalize_windows((tensor, self._weight), boxes)

    @property
    def _extents(self) -> dict[str, int]:
        boxes = zip(self.labels, self._boxes, strict=True)
        return {name: extent for names, box in boxes for name, extent in zip(names, box.shape, strict=True)}


def make_quantized_product(
    tensor: TensorDesc,
    weight: Dequantize,
    labels: tuple[Labels, Labels],
    result: Labels,
    dims: tuple[str, ...],
    factor: float,
    boxes: Sequence[TensorType],
) -> QuantizedProduct | None:
    """The product of a tensor and a quantized weight, of both the parts in `boxes`; None where there is none."""
    windows = normalize_windows((tensor, weight.outputs[0]), boxes)
    return keep_derivable(
        QuantizedProduct(
            tensor, weight.operands, weight.group, labels, result, dims, float(factor), windows, weight.rounds_inputs
        )
    )


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> QuantizedProduct:
    """The product with these attributes; raises OperatorError if they are not those of one."""
    derive_family(QuantizedProduct.family, inputs, attributes)
    values: dict[str, Any] = dict(attributes)
    tensor, stored, group = inputs[0], inputs[1:], values["group"]
    weight = QuantizedForm.read(stored, group).widen(stored, tensor.dtype)
    equation, windows = read_equation(attributes, [tensor.shape, weight.shape])
    labels, result = (equation.inputs[0], equation.inputs[1]), equation.output
    return QuantizedProduct(tensor, stored, group, labels, result, values["dims"], values["factor"], windows)


FAMILIES = {QuantizedProduct.family: restore}
