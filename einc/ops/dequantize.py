"""Quantized weights: integers of 8 or 4 bits with scales, and with zero points if they have them; or floats of 8 bits.

A weight is (value - zero) * scale. There is one scale for each `group` of neighbours along the last dimension, or else
one for each channel: each position of the first dimensions, as many as scales have. A product with a quantized weight
reads it as it is stored (`quantized_product`). For all other readers, `Dequantize` makes the weight that the integers
stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, derive_family
from einc_runtime.plan.element_types import StoredForm, find_element_type, find_stored_form

if TYPE_CHECKING:
    import numpy as np


GROUP_UNIT = 32
"""Groups whose size a weight chooses have so many elements, or a multiple of that: whole vectors of every kernel."""


@dataclass(frozen=True, slots=True)
class QuantizedForm:
    """How a weight is stored: under a name of the language, in groups of so many elements (0: channels), with zero
    points or without.

    `channels` is the number of dimensions that channels have: by default, all but the last one. In a form with a factor
    it is that of the dimensions whose positions have factors of their own: by default, a tensor has one.
    """

    stored: StoredForm
    group: int = 0
    zeros: bool = False
    channels: int | None = None

    @property
    def can_round_inputs(self) -> bool:
        """Whether products with it can round what they multiply with it."""
        return self.stored.rounds_inputs(self.group) and not self.zeros

    @property
    def packing(self) -> int:
        """Elements in a stored value."""
        return self.stored.packing

    def operands(self, weight: TensorDesc) -> tuple[TensorDesc, ...]:
        """The values, scales, and zero points or factor that are stored for a weight.

        Raises OperatorError for a weight that cannot be stored in this form.
        """
        stored = self.stored
        if not weight.dtype.is_float:
            raise OperatorError(f"quantized weights stand for floats, not for {weight.dtype}")
        if weight.rank == 0:
            raise OperatorError("a quantized weight has at least one dimension, along which its rows are")
        *rows, extent = weight.shape
        if stored.group and self.group != stored.group:
            raise OperatorError(f"groups of {self.group}", hint=f"a group of {stored.name} has {stored.group} elements")
        if self.group < 0 or (not stored.group and self.group % GROUP_UNIT):
            raise OperatorError(f"groups of {self.group}", hint=f"a group has {GROUP_UNIT} elements, or a multiple")
        for unit, size in (("groups", self.group), ("bytes", self.packing)):
            if size and extent % size:
                dim = weight.dims[-1]
                raise OperatorError(
                    f"the extent {extent} of dimension '{dim}' is no multiple of {size}: no whole {unit}"
                )
        if stored.is_float and (self.zeros or weight.dtype is DType.F64):
            raise OperatorError(
                f"{stored.name} has no zero points, and stands for f16, bf16 or f32", hint="or store it as i8"
            )
        default = 0 if stored.has_factor else len(rows)
        channels = default if self.channels is None else self.channels
        if not 0 <= channels <= len(rows) or (self.group and not stored.has_factor and channels < len(rows)):
            raise OperatorError(
                f"channels of {channels} dimensions", hint=f"{weight} has up to {len(rows)}, and no groups"
            )
        each = (*rows, extent // self.group) if self.group else tuple(rows[:channels])
        scales = TensorDesc(weight.dims[: len(each)], each, DType(stored.scales) if stored.scales else weight.dtype)
        values = TensorDesc(weight.dims, (*rows, extent // self.packing), DType(stored.values))
        zeros = (TensorDesc(scales.dims, each, DType.I8),) if self.zeros else ()
        factor = (TensorDesc(weight.dims[:channels], tuple(rows[:channels]), DType.F32),) if stored.has_factor else ()
        return (values, scales, *zeros, *factor)

    @staticmethod
    def read(operands: tuple[TensorDesc, ...], group: int) -> QuantizedForm:
        """The form of operands that are known to be those of a weight."""
        stored = find_stored_form(operands[0].dtype.value, operands[1].dtype.value)
        assert stored is not None
        zeros = len(operands) == 3 and not stored.has_factor
        channels = operands[2].rank or None if stored.has_factor else None if group else operands[1].rank
        return QuantizedForm(stored, group, zeros, channels)

    def widen(self, operands: tuple[TensorDesc, ...], dtype: DType | None = None) -> TensorDesc:
        """The weight that is stored in these operands, in the type of the scales where no other is given."""
        values, scales = operands[:2]
        if not values.rank:
            raise OperatorError("a quantized weight has at least one dimension")
        shape = (*values.shape[:-1], values.shape[-1] * self.packing)
        return TensorDesc(values.dims, shape, dtype or scales.dtype)

    @property
    def spread(self) -> int:
        """About the variance of random values less random zero points, or of those times random scales of a type that
        has no small ones."""
        variance = find_element_type(self.stored.values).variance + self.zeros * find_element_type("i8").variance
        return variance * (find_element_type(self.stored.scales).variance if self.stored.scales else 1)

    def find_fan_in(self, part: int) -> int:
        """The `spread` for the part that makes up for it: the factor, or else the scales. 1 for the others."""
        return self.spread if part == (2 if self.stored.has_factor else 1) else 1


def widen_values(form: QuantizedForm, arrays: tuple[Array, ...], dtype: DType) -> Array:
    """The weight as an array of `dtype`, computed in f32 or wider, in which not a number is as good as any other."""
    import numpy as np

    values, scales, *more = arrays
    wide = np.dtype(np.float64 if dtype is DType.F64 else np.float32)
    if form.packing == 2:
        pairs = values.view(np.uint8)
        halves = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*values.shape[:-1], -1)
        values = halves.view(_pair_dtype()) if form.stored.is_float else halves.astype(np.int16) - 8
    numbers = values.astype(wide)

    def spread(each: Array) -> Array:
        if form.group:
            return np.repeat(each, form.group, axis=-1)
        return each.reshape(*each.shape, *[1] * (numbers.ndim - each.ndim))

    with np.errstate(all="ignore"):
        steps = scales.astype(wide)
        if form.stored.has_factor:
            (factor,) = more
            steps = steps * factor.reshape(*factor.shape, *[1] * (steps.ndim - factor.ndim))
        for zero in more if form.zeros else ():
            numbers = numbers - spread(zero).astype(wide)
        result: Array = (numbers * spread(steps)).astype(dtype.numpy())
    return result


def _pair_dtype() -> np.dtype[Any]:
    """What ml_dtypes calls a float of 4 bits, which lies in a byte alone."""
    import ml_dtypes
    import numpy as np

    kind: np.dtype[Any] = np.dtype(ml_dtypes.float4_e2m1fn)
    return kind


@dataclass(frozen=True, slots=True)
class Dequantize(DerivedMappedOperator):
    """(values - zeros) * scales, in the type of the scales: the weight that quantized values stand for."""

    family: ClassVar[str] = "dequantize"

    operands: tuple[TensorDesc, ...]
    group: int
    rounds_inputs: bool = False
    """Whether products are to round what they multiply with it, as the model says. Nothing is left of it in a plan."""
    dtype: DType | None = None
    """The type of a weight that is stored as narrow floats; the type of integers' scales is that of the weight."""

    @property
    def form(self) -> QuantizedForm:
        return QuantizedForm.read(self.operands, self.group)

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self.operands

    @property
    def attributes(self) -> Attributes:
        typed = {} if self.dtype is None else {"dtype": self.dtype.value}
        return {"group": self.group, **({"inputs": self.form.stored.input_bits} if self.rounds_inputs else {}), **typed}

    @property
    def joins_every_reader(self) -> bool:
        return True

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return (widen_values(self.form, arrays, self.outputs[0].dtype),)

    def flops(self, function: FunctionSpec) -> int:
        return function.outputs[0].size * (1 + self.form.zeros)

    def fan_in(self, k: int) -> int:
        """Scales are small: the weight is then about N(0, 1)."""
        return self.form.find_fan_in(k)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The weight in these tensors; raises OperatorError if they are not those of one."""
    derive_family(Dequantize.family, inputs, attributes)
    name = attributes.get("dtype")
    dtype = DType(name) if isinstance(name, str) else None
    return Dequantize(inputs, attributes["group"], "inputs" in attributes, dtype)  # type: ignore[arg-type]


FAMILIES = {Dequantize.family: restore}
