"""Calls of the kernels that read quantized weights.

A weight is (value - zero) * scale, or value * (scale * factor), computed in f32 (f64 for f64). Types are those of a
stored form (`plan/element_types.py`). Scales and zero points are one for each `group` of neighbours along the last
dimension, or one for each channel: each position of the first dimensions. A tensor has one factor, or one for each
position of its first dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels import indices
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.contract import group_indices
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.plan.element_types import ELEMENT_FORMATS, StoredForm, find_stored_form
from einc_runtime.plan.index_equations import Names, parse_index_equation
from einc_runtime.plan.schema import Attribute


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """The operands of a quantized weight, whose `group` is 0 where each channel has one scale."""

    form: StoredForm
    values: Array
    scales: Array
    more: Array | None
    """Its zero points, or its factor; None where it has neither."""
    group: int

    @staticmethod
    def parse(operands: Sequence[Array], group: int) -> QuantizedWeight:
        values, scales, *more = operands
        form = find_stored_form(dtype_name(values), dtype_name(scales))
        assert form is not None
        return QuantizedWeight(form, values, scales, more[0] if more else None, group)

    @property
    def zeros(self) -> Array | None:
        return None if self.form.has_factor else self.more

    @property
    def factor(self) -> Array | None:
        return self.more if self.form.has_factor else None

    @property
    def packing(self) -> int:
        """Elements in a stored value."""
        return ELEMENT_FORMATS[self.form.values].packing

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.values.shape[-1] * self.packing)

    @property
    def kind(self) -> str:
        return dtype_name(self.scales)

    @property
    def operands(self) -> tuple[Array, ...]:
        return (self.values, self.scales) if self.more is None else (self.values, self.scales, self.more)

    def part(self, axis: int, start: int, stop: int) -> QuantizedWeight:
        """Some positions of a dimension other than the last one."""
        cut = (slice(None),) * axis + (slice(start, stop),)
        scales, more = (x if x is None or axis >= x.ndim else x[cut] for x in (self.scales, self.more))
        assert scales is not None
        return replace(self, values=self.values[cut], scales=scales, more=more)

    def pick(self, position: int) -> QuantizedWeight:
        """The weight at a position of the first dimension, behind which it has two others."""
        scales, more = (x if x is None or not x.ndim else x[position, ...] for x in (self.scales, self.more))
        assert scales is not None
        return replace(self, values=self.values[position], scales=scales, more=more)


@dataclass(frozen=True, slots=True)
class DequantizeCall:
    """A weight, and where it is written."""

    weight: QuantizedWeight
    target: Array

    @staticmethod
    def parse(invocation: Invocation[Array]) -> DequantizeCall:
        weight = QuantizedWeight.parse(invocation.inputs, invocation.attribute("group", int))
        return DequantizeCall(weight, invocation.output)


@dataclass(frozen=True, slots=True)
class QuantizedContractCall:
    """A product of a tensor and a weight, summed over the indices that the result lacks, times `scale`.

    `labels` are the indices of the weight, of which the last ones are summed.
    """

    tensor: NamedArray
    weight: QuantizedWeight
    labels: Names
    result: NamedArray
    extents: Mapping[str, int]
    equation: str
    scale: float
    repetitions: int
    """How many invocations of its kind an execution has."""

    @staticmethod
    def parse(invocation: Invocation[Array]) -> QuantizedContractCall:
        source, tensor, result = invocation.attribute("equation", str), invocation.inputs[0], invocation.output
        scale = invocation.number("scale", 1.0)
        weight = QuantizedWeight.parse(invocation.inputs[1:], invocation.attribute("group", int))
        equation = parse_index_equation(source)
        shape_alone = np.broadcast_to(np.zeros((), tensor.dtype), weight.shape)
        joined = indices.join(equation, (tensor, shape_alone), result)
        tensor_names, labels = equation.inputs
        return QuantizedContractCall(
            NamedArray(tensor_names, tensor),
            weight,
            labels,
            NamedArray(equation.output, result),
            joined.extents,
            source,
            scale,
            invocation.repetitions,
        )

    @property
    def groups(self) -> tuple[Names, Names, Names, Names]:
        """Its indices: batches, rows of the tensor, columns (rows of the weight), and those that are summed."""
        batch, rows, columns, _ = group_indices(self.tensor.names, self.labels, self.result.names)
        summed = tuple(name for name in self.labels if name not in self.result.names)
        columns = tuple(name for name in self.labels if name in columns)
        return tuple(name for name in self.labels if name in batch), rows, columns, summed

    def count(self, names: Sequence[str]) -> int:
        """The number of positions of indices together."""
        return math.prod(self.extents[name] for name in names)

    def as_invocation(self, tensor: Array) -> Invocation[Array]:
        """The product with another tensor of the same shape."""
        attributes = {**self._attributes, "group": self.weight.group}
        return self._invoke("quantized_contract", attributes, [tensor, *self.weight.operands], self.result.array)

    def product_with(self, weight: Array, target: Array, tensor: Array | None = None) -> Invocation[Array]:
        """The product with a weight that has been widened, or with a part of it; then the target is a part, too."""
        source = self.tensor.array if tensor is None else tensor
        return self._invoke("contract", self._attributes, [source, weight], target)

    @property
    def _attributes(self) -> dict[str, Attribute]:
        scale: dict[str, Attribute] = {"scale": self.scale} if self.scale != 1 else {}
        return {"equation": self.equation, **scale}

    def _invoke(
        self, name: str, attributes: Mapping[str, Attribute], inputs: Sequence[Array], target: Array
    ) -> Invocation[Array]:
        return Invocation(name, attributes, inputs, [target], repetitions=self.repetitions)
