"""Products with a quantized weight, which is read as it is stored and widened on its way into registers.

It is the contraction of a tensor with what `Dequantize` makes of the weight. Fusion makes it of these two operators:
no model calls it. Indices are those of the contraction. The weight's last index is summed, and is cut between groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from einc.core.intervals import ShardableIndex
from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops.base import (
    Attributes,
    DimMap,
    KernelCall,
    MappedOperator,
    Operator,
    describe_product,
    find_product_precision,
)
from einc.ops.dequantize import Dequantize, QuantizedForm, list_cuts, widen_values
from einc.ops.windows import Windows, compose_box, format_windows, list_boxes, normalize_windows, parse_windows
from einc_runtime.plan.work import ProductWork

if TYPE_CHECKING:
    from einc.ops.base import Array, Labels


@dataclass(frozen=True, slots=True)
class QuantizedProduct(MappedOperator):
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
    def outputs(self) -> tuple[TensorDesc, ...]:
        extents = self._extents
        return (TensorDesc(self.dims, tuple(extents[name] for name in self.result), self.tensor.dtype),)

    @property
    def attributes(self) -> Attributes:
        windows = {"windows": format_windows(self.windows)} if self.windows else {}
        return {"indices": self._text, "dims": self.dims, "group": self.group, "factor": self.factor, **windows}

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        """In the order of first appearance."""
        last, unit = self.labels[1][-1], self.form.unit(self._weight.shape[-1])
        return tuple(
            ShardableIndex(name, extent, list_cuts(extent, unit) if name == last else None)
            for name, extent in self._extents.items()
        )

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        tensor, weight = (
            tuple(DimMap(name, offset=start) for name, start in zip(labels, box.lower, strict=True))
            for labels, box in zip(self.labels, self._boxes, strict=True)
        )
        return (tensor, *self.form.map_operands(weight[:-1], weight[-1]))

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return (tuple(map(DimMap, self.result)),)

    @property
    def reads(self) -> tuple[TensorType, ...]:
        chosen = {name: (0, extent) for name, extent in self._extents.items()}
        bounds = [
            [axis.bounds(chosen, extent) for axis, extent in zip(maps, desc.shape, strict=True)]
            for maps, desc in zip(self.input_maps, self.inputs, strict=True)
        ]
        return tuple(TensorType(tuple(lo for lo, _ in box), tuple(up for _, up in box)) for box in bounds)

    @property
    def kernel(self) -> KernelCall:
        scale = (("scale", self.factor),) if self.factor != 1 else ()
        return KernelCall("quantized_contract", (("equation", self._text), ("group", self.group), *scale))

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
        return summed * (self.form.spread if k == 2 else 1)

    def fuse(self, k: int, producer: Operator) -> Operator | None:
        """The tensor may be a part of another one."""
        if producer.part is None or k > 0:
            return None
        tensor, weight = self._boxes
        (whole,) = producer.inputs
        return replace(self, tensor=whole, windows=self._normalize(whole, (compose_box(producer.part, tensor), weight)))

    @property
    def _weight(self) -> TensorDesc:
        return self.form.widen(self.operands)

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

    @property
    def _text(self) -> str:
        return ", ".join(map(" ".join, self.labels)) + " -> " + " ".join(self.result)


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
    product = QuantizedProduct(
        tensor, weight.operands, weight.group, labels, result, dims, float(factor), windows, weight.rounds_inputs
    )
    return product if find_product_fault(product) is None else None


def find_product_fault(product: QuantizedProduct) -> str | None:
    """The reason why there is no such product, or None.

    The weight's summed indices are its last ones, and they are all that is summed; so a row of it is one run of bytes.
    """
    tensor, weight = product.labels
    boxes = product._boxes
    if (
        len(weight) != product._weight.rank
        or len(tensor) != product.tensor.rank
        or len(product.dims) != len(product.result)
    ):
        return "labels do not fit"
    if (
        len(set(tensor)) != len(tensor)
        or len(set(weight)) != len(weight)
        or len(set(product.result)) != len(product.result)
    ):
        return "an index occurs twice"
    extents: dict[str, int] = {}
    for names, box in zip(product.labels, boxes, strict=True):
        for name, extent in zip(names, box.shape, strict=True):
            if extents.setdefault(name, extent) != extent:
                return f"index {name} has two extents"
    summed = [name for name in weight if name not in product.result]
    if set(summed) != {name for name in tensor if name not in product.result} or not summed:
        return "other indices are summed than those that both have"
    if set(product.result) - set(extents) or list(weight[len(weight) - len(summed) :]) != summed:
        return "the summed indices are not the last ones of the weight"
    unit = product.form.unit(product._weight.shape[-1])
    if boxes[1].lower[-1] % unit or boxes[1].upper[-1] % unit:
        return "a window of the weight cuts a group"
    if product.tensor.dtype is not product._weight.dtype:
        return "the tensor has another type than the weight"
    return None


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The product with these attributes; raises OperatorError if they are not those of one."""
    indices, dims, factor = attributes.get("indices"), attributes.get("dims"), attributes.get("factor")
    if not (isinstance(indices, str) and isinstance(dims, tuple) and isinstance(factor, float) and inputs):
        raise OperatorError("a quantized product has the attributes indices, dims, group and factor")
    form = QuantizedForm.of(inputs[1:], attributes.get("group"))
    left, _, right = indices.partition("->")
    labels = [tuple(part.split()) for part in left.split(",")]
    if len(labels) != 2:
        raise OperatorError("a quantized product has the indices of a tensor and of a weight")
    windows = parse_windows(attributes.get("windows"), (inputs[0], form.widen(inputs[1:])))
    product = QuantizedProduct(
        inputs[0],
        inputs[1:],
        form.group,
        (labels[0], labels[1]),
        tuple(right.split()),
        tuple(map(str, dims)),
        factor,
        windows,
    )
    fault = find_product_fault(product)
    if fault is not None:
        raise OperatorError(f"no quantized product: {fault}")
    return product


FAMILIES = {QuantizedProduct.family: restore}
