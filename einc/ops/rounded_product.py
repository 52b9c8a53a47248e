"""Products of integers: a tensor, rounded to 8 bits row by row, with a weight of 8 bits.

A row is what is summed for one element of the result, and `largest` is its largest magnitude. The row is rounded to
integers from -127 to 127 in units of largest / 127, ties to even. The sum is one of integers, and exact; it is then
multiplied with the unit of the row and with the scale of the weight's channel. Where a row has elements that are not
finite, so does the result.

`largest` is an operator of its own, an index equation with the aggregation `max`. So all products that read a tensor
share it, and the summed index can be cut: the maximum of parts is that of the whole, and every part rounds alike.
Fusion makes both of them of a contraction with a weight that says `inputs=8`: no model calls this one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.intervals import ShardableIndex
from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops import quantized_product
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator
from einc.ops.equation import build_equation
from einc.ops.quantized_product import QuantizedProduct
from einc_runtime.plan.scalar_programs import ScalarProgram
from einc_runtime.plan.work import Work

if TYPE_CHECKING:
    from einc.ops.base import Array, Labels

LEVELS = 127
"""The largest integer that an element becomes."""
MAX_SUMMED = 1 << 17
"""So many products of a weight and an element, of at most 128 * 127, have a sum of 32 bits."""


@dataclass(frozen=True, slots=True)
class RoundedProduct(MappedOperator):
    """`plain`, with its tensor rounded. Inputs are the tensor, `largest`, and the values and scales of the weight."""

    family: ClassVar[str] = "rounded_product"

    plain: QuantizedProduct

    @property
    def kept(self) -> tuple[str, ...]:
        """The labels of the tensor that are not summed: those of `largest`."""
        return tuple(name for name in self.plain.labels[0] if name in self.plain.result)

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return (self.plain.tensor, self.largest, *self.plain.operands)

    @property
    def largest(self) -> TensorDesc:
        """The largest magnitude of each row."""
        tensor = self.plain.tensor
        each = zip(self.plain.labels[0], tensor.dims, self.plain.reads[0].shape, strict=True)
        own = [(dim, extent) for label, dim, extent in each if label in self.plain.result]
        return TensorDesc(tuple(dim for dim, _ in own), tuple(extent for _, extent in own), tensor.dtype)

    def find_largest(self) -> Operator:
        """The operator that finds it."""
        tensor, labels = self.plain.tensor, self.plain.labels[0]
        window = (self.plain.reads[0],) if self.plain.windows else ()
        result = list(zip(self.kept, self.largest.dims, strict=True))
        return build_equation([(tensor, labels)], result, ScalarProgram.parse("t0 = abs x0", 1), "max", window)

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return self.plain.outputs

    @property
    def attributes(self) -> Attributes:
        return {name: value for name, value in self.plain.attributes.items() if name != "group"}

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return self.plain.indices

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        tensor, *weight = self.plain.input_maps
        return (tensor, tuple(map(DimMap, self.kept)), *weight)

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return self.plain.output_maps

    @property
    def reads(self) -> tuple[TensorType, ...]:
        tensor, *weight = self.plain.reads
        return (tensor, self.largest.type, *weight)

    @property
    def kernel(self) -> KernelCall:
        attributes = self.plain.kernel.attributes
        return KernelCall("rounded_contract", tuple(item for item in attributes if item[0] != "group"))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import contract

        parts = zip(arrays, self.reads, strict=True)
        tensor, largest, values, scales = (array[(*map(slice, box.lower, box.upper),)] for array, box in parts)
        dtype = self.plain.tensor.dtype
        wide = np.dtype(np.float64 if dtype is DType.F64 else np.float32)
        (own, weight), result = self.plain.labels, self.plain.result
        channels = weight[: scales.ndim]
        with np.errstate(all="ignore"):
            rows = largest.astype(wide)
            ratio = LEVELS / rows
            ratio = np.where((rows > 0) & np.isfinite(ratio), ratio, wide.type(0))
            numbers = tensor.astype(wide) * _spread(ratio, self.kept, own)
            numbers = np.rint(np.clip(np.where(np.isnan(numbers), wide.type(0), numbers), -LEVELS, LEVELS))
            # sums of so few integers are exact in f64
            operands = (numbers.astype(np.float64), values.astype(np.float64))
            sums = contract(operands, self.plain.labels, result, DType.F64, 1.0).astype(wide)
            sums *= _spread(rows / wide.type(LEVELS) * wide.type(self.plain.factor), self.kept, result)
            sums *= _spread(scales.astype(wide), channels, result)
            return (sums.astype(dtype.numpy()),)

    def flops(self, function: FunctionSpec) -> int:
        tensor, _, *weight = function.inputs
        return self.plain.flops(FunctionSpec((tensor, *weight), function.outputs))

    def work(self, function: FunctionSpec) -> Work | None:
        tensor, _, *weight = function.inputs
        return self.plain.work(FunctionSpec((tensor, *weight), function.outputs))

    @property
    def precision(self) -> str:
        return DType.I8.value

    def fan_in(self, k: int) -> int:
        return 1 if k == 1 else self.plain.fan_in(max(0, k - 1))


def _spread(array: Array, own: Labels, names: Labels) -> Array:
    """The array, whose dimensions are named, with those of `names`."""
    ordered = array.transpose([own.index(name) for name in names if name in own])
    return ordered.reshape([array.shape[own.index(name)] if name in own else 1 for name in names])


def find_rounding_fault(product: QuantizedProduct) -> str | None:
    """The reason why the tensor of a product cannot be rounded, or None."""
    if not product.form.can_round_inputs:
        return "weights of rounded products are i8, without groups and zero points"
    summed = [name for name in product.labels[1] if name not in product.result]
    if product.operands[1].rank > len(product.labels[1]) - len(summed):
        return "a channel of the weight is a part of what is summed"
    extents = {index.name: index.extent for index in product.indices}
    if math.prod(extents[name] for name in summed) > MAX_SUMMED:
        return f"more than {MAX_SUMMED} products are summed"
    return None


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The product with these attributes; raises OperatorError if they are not those of one."""
    if len(inputs) != 4:
        raise OperatorError("a rounded product has a tensor, the largest of its rows, values and scales")
    tensor, _, *weight = inputs
    plain = quantized_product.restore((tensor, *weight), {**attributes, "group": 0})
    assert isinstance(plain, QuantizedProduct)
    fault = find_rounding_fault(plain)
    if fault is not None:
        raise OperatorError(f"no rounded product: {fault}")
    product = RoundedProduct(plain)
    if product.inputs != inputs:
        raise OperatorError(f"the largest of rows are {product.largest}, found {inputs[1]}")
    return product


FAMILIES = {RoundedProduct.family: restore}
