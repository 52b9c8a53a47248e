"""Products of a tensor that is rounded to few bits with a quantized weight.

With integers, a row is what is summed for one element of the result, and `largest` is its largest magnitude. The row is
rounded to integers from -127 to 127 in units of largest / 127, ties to even. The sum is one of integers, and exact; it
is then multiplied with the unit of the row and with the scale of the weight's channel. Where a row has elements that
are not finite, so does the result.

With floats, elements become floats of 8 or 4 bits, ties to even, in units of scales: one for each row, largest / 448,
or one for each group along the last index that is summed, where the weight has groups. The scale of a group is its
largest magnitude over that of the type, which becomes a power of two, or a float of 8 bits times a factor of the row,
if those of the weight are. Sums are in f32.

`largest` is an operator of its own, an index equation with the aggregation `max`. So all products that read a tensor
share it, and the summed index can be cut: the maximum of parts is that of the whole, and every part rounds alike.
Fusion makes both of them of a contraction with a weight that says `inputs=8`: no model calls this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.ops import quantized_product
from einc.ops.base import Attributes, Operator
from einc.ops.dequantize import widen_values
from einc.ops.derived import DerivedMappedOperator, derive_family, keep_derivable
from einc.ops.equation import build_equation
from einc.ops.quantized_product import QuantizedProduct
from einc_runtime.plan.element_types import find_element_type
from einc_runtime.plan.scalar_programs import ScalarProgram
from einc_runtime.plan.work import Work

if TYPE_CHECKING:
    import numpy as np

    from einc.ops.base import Labels

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
        return (self.plain.tensor, *[self.largest] * self.needs_largest, *self.plain.operands)

    @property
    def needs_largest(self) -> bool:
        """Whether the largest magnitudes of rows are an input."""
        return self.plain.form.stored.needs_largest(self.plain.group)

    @property
    def largest(self) -> TensorDesc:
        """The largest magnitude of each row."""
        tensor = self.plain.tensor
        each = zip(self.plain.labels[0], tensor.dims, self.plain.reads[0].shape, strict=True)
        kept_dims = [(dim, extent) for label, dim, extent in each if label in self.plain.result]
        return TensorDesc(tuple(dim for dim, _ in kept_dims), tuple(extent for _, extent in kept_dims), tensor.dtype)

    def find_largest(self) -> Operator:
        tensor, labels = self.plain.tensor, self.plain.labels[0]
        window = (self.plain.reads[0],) if self.plain.windows else ()
        result = list(zip(self.kept, self.largest.dims, strict=True))
        return build_equation([(tensor, labels)], result, ScalarProgram.parse("t0 = abs x0", 1), "max", window)

    @property
    def attributes(self) -> Attributes:
        return {name: value for name, value in self.plain.attributes.items() if name != "group" or value}

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import contract

        parts = zip(arrays, self.reads, strict=True)
        tensor, *weight = (array[(*map(slice, box.lower, box.upper),)] for array, box in parts)
        largest = weight.pop(0) if self.needs_largest else None
        dtype = self.plain.tensor.dtype
        if self.plain.form.stored.is_float:
            rounded = self._round_floats(tensor, largest)
            widened = widen_values(self.plain.form, tuple(weight), DType.F32)
            factor = self.plain.factor
            return (contract((rounded, widened), self.plain.labels, self.plain.result, dtype, factor),)
        assert largest is not None
        values, scales = weight
        wide = np.dtype(np.float64 if dtype is DType.F64 else np.float32)
        (tensor_labels, labels), result = self.plain.labels, self.plain.result
        channels = labels[: scales.ndim]
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

    def _round_floats(self, tensor: Array, largest: Array | None) -> Array:
        """The tensor after rounding, in f32: each value times its scale."""
        import numpy as np

        stored, (labels, weight_labels) = self.plain.form.stored, self.plain.labels
        axis = labels.index(weight_labels[-1])
        rows = np.float32(1) if largest is None else _spread(largest, self.kept, labels).astype(np.float32)
        most = _find_largest(stored.rounded)
        with np.errstate(all="ignore"):
            if not self.plain.group:
                return _round_ratios(tensor, np.broadcast_to(rows / most, tensor.shape), stored.rounded)
            parts = np.split(tensor.astype(np.float32), tensor.shape[axis] // self.plain.group, axis)
            of_groups = [np.abs(part).max(axis, keepdims=True) for part in parts]
            if stored.has_factor:
                factor = rows / most / _find_largest(stored.scales)
                factor = np.where(factor == 0, np.float32(1), factor)
                scales = [_round_ratios(size / most, factor, stored.scales) for size in of_groups]
            elif stored.scales == "f8e8m0":
                powers = [np.floor(np.log2(size.astype(np.float64))) - np.floor(np.log2(most)) for size in of_groups]
                scales = [np.exp2(np.clip(np.nan_to_num(power, nan=np.nan), -126, 127)) for power in powers]
            else:
                scales = [size / most for size in of_groups]
            steps = [np.broadcast_to(s, part.shape) for s, part in zip(scales, parts, strict=True)]
            return np.concatenate(
                [
                    _round_ratios(part, step.astype(np.float32), stored.rounded)
                    for part, step in zip(parts, steps, strict=True)
                ],
                axis,
            )

    def flops(self, function: FunctionSpec) -> int:
        return self.plain.flops(self._without_largest(function))

    def work(self, function: FunctionSpec) -> Work | None:
        return self.plain.work(self._without_largest(function))

    def _without_largest(self, function: FunctionSpec) -> FunctionSpec:
        tensor, *weight = function.inputs
        return FunctionSpec((tensor, *weight[self.needs_largest :]), function.outputs)

    def traffic(self, function: FunctionSpec) -> int:
        """With the rounded tensor, which is written and read again."""
        kind = find_element_type(self.plain.form.stored.rounded)
        width = kind.width if self.precision == self.plain.form.stored.rounded else self.plain.tensor.dtype.itemsize
        return DerivedMappedOperator.traffic(self, function) + 2 * width * function.inputs[0].size

    @property
    def precision(self) -> str:
        """That of what is multiplied: with groups that is the tensor, which has its type again after rounding."""
        stored = self.plain.form.stored
        multiplies_rounded = not self.plain.group and stored.values == stored.rounded
        return stored.rounded if multiplies_rounded else self.plain.precision

    def fan_in(self, k: int) -> int:
        before = int(self.needs_largest)
        return 1 if k and k <= before else self.plain.fan_in(max(0, k - before))


def _find_largest(name: str) -> np.float32:
    """The largest value of a type of narrow floats."""
    import numpy as np

    bits = find_element_type(name).bits
    assert bits is not None
    return np.float32(bits.largest)


def _round_ratios(numbers: Array, steps: Array, name: str) -> Array:
    """Numbers in units of steps, rounded to a type of narrow floats, as numbers again."""
    import ml_dtypes
    import numpy as np

    kind = np.dtype(ml_dtypes.float4_e2m1fn if name == "f4x2" else ml_dtypes.float8_e4m3fn)
    ratios = numbers.astype(np.float32) / np.where(steps == 0, np.float32(1), steps)
    most = _find_largest(name)
    return np.clip(ratios, -most, most).astype(kind).astype(np.float32) * steps


def _spread(array: Array, labels: Labels, names: Labels) -> Array:
    """The array, whose dimensions are named, with those of `names`."""
    ordered = array.transpose([labels.index(name) for name in names if name in labels])
    return ordered.reshape([array.shape[labels.index(name)] if name in labels else 1 for name in names])


def make_rounded_product(plain: QuantizedProduct) -> RoundedProduct | None:
    """The product with its tensor rounded; None where no kernel computes it in integers."""
    return keep_derivable(RoundedProduct(plain))


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The product with these attributes; raises OperatorError if they are not those of one."""
    derive_family(RoundedProduct.family, inputs, attributes)
    tensor, *weight = inputs
    stored = weight[1:] if weight[0].dtype.is_float else weight
    return RoundedProduct(quantized_product.restore((tensor, *stored), {"group": 0, **attributes}))


FAMILIES = {RoundedProduct.family: restore}
