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

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops import quantized_product
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, derive, derive_family
from einc.ops.equation import build_equation
from einc.ops.quantized_product import QuantizedProduct
from einc_runtime.plan.scalar_programs import ScalarProgram
from einc_runtime.plan.work import Work

if TYPE_CHECKING:
    from einc.ops.base import Array, Labels

LEVELS = 127
"""The largest integer that an element becomes."""


@dataclass(frozen=True, slots=True)
class RoundedProduct(DerivedMappedOperator):
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
        kept_dims = [(dim, extent) for label, dim, extent in each if label in self.plain.result]
        return TensorDesc(tuple(dim for dim, _ in kept_dims), tuple(extent for _, extent in kept_dims), tensor.dtype)

    def find_largest(self) -> Operator:
        """The operator that finds it."""
        tensor, labels = self.plain.tensor, self.plain.labels[0]
        window = (self.plain.reads[0],) if self.plain.windows else ()
        result = list(zip(self.kept, self.largest.dims, strict=True))
        return build_equation([(tensor, labels)], result, ScalarProgram.parse("t0 = abs x0", 1), "max", window)

    @property
    def attributes(self) -> Attributes:
        return {name: value for name, value in self.plain.attributes.items() if name != "group"}

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import contract

        parts = zip(arrays, self.reads, strict=True)
        tensor, largest, values, scales = (array[(*map(slice, box.lower, box.upper),)] for array, box in parts)
        dtype = self.plain.tensor.dtype
        wide = np.dtype(np.float64 if dtype is DType.F64 else np.float32)
        (tensor_labels, weight), result = self.plain.labels, self.plain.result
        channels = weight[: scales.ndim]
        with np.errstate(all="ignore"):
            rows = largest.astype(wide)
            ratio = LEVELS / rows
            ratio = np.where((rows > 0) & np.isfinite(ratio), ratio, wide.type(0))
            numbers = tensor.astype(wide) * _spread(ratio, self.kept, tensor_labels)
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


def _spread(array: Array, labels: Labels, names: Labels) -> Array:
    """The array, whose dimensions are named, with those of `names`."""
    ordered = array.transpose([labels.index(name) for name in names if name in labels])
    return ordered.reshape([array.shape[labels.index(name)] if name in labels else 1 for name in names])


def make_rounded_product(plain: QuantizedProduct) -> RoundedProduct | None:
    """The product with its tensor rounded; None where no kernel computes it in integers."""
    product = RoundedProduct(plain)
    try:
        derive(product)
    except OperatorError:
        return None
    return product


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The product with these attributes; raises OperatorError if they are not those of one."""
    derive_family(RoundedProduct.family, inputs, attributes)
    tensor, _, *weight = inputs
    return RoundedProduct(quantized_product.restore((tensor, *weight), {**attributes, "group": 0}))


FAMILIES = {RoundedProduct.family: restore}
