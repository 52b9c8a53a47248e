"""Calls of the kernel `rounded_contract`: products of integers, of a tensor that is rounded and a weight of 8 bits.

What is summed for one element is a row of the tensor, and `largest` is its largest magnitude. In f32 (f64 for f64):

    ratio   = 127 / largest where that is above 0 and the ratio is finite, else 0
    integer = the element times ratio, between -127 and 127, to the nearest, ties to even; 0 for NaN
    result  = the sum of integers times values, exact; times (largest / 127 times the attribute scale); times the scale

So a row that is not finite has results that are not finite, and one of zeros has zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.quantized import QuantizedContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.plan.index_equations import Names
from einc_runtime.plan.meaning.quantized import MAX_SUMMED

LEVELS = 127
"""The largest integer that an element becomes."""


@dataclass(frozen=True, slots=True)
class RoundedContractCall:
    """`plain` with a tensor that is rounded; `largest` has its indices that are not summed."""

    plain: QuantizedContractCall
    largest: NamedArray

    @staticmethod
    def parse(invocation: Invocation[Array]) -> RoundedContractCall:
        """Raises PlanFault for an invocation that is no such product."""
        invocation.allow("equation", "scale")
        if len(invocation.inputs) != 4:
            raise PlanFault(f"a rounded product has 4 inputs, found {len(invocation.inputs)}")
        tensor, largest, values, scales = invocation.inputs
        attributes = {**invocation.attributes, "group": 0}
        plain = QuantizedContractCall.parse(
            Invocation("quantized_contract", attributes, [tensor, values, scales], invocation.outputs)
        )
        kept = tuple(name for name in plain.tensor.names if name in plain.result.names)
        _, _, _, summed = plain.groups
        if plain.weight.packing != 1 or scales.ndim > len(plain.labels) - len(summed):
            raise PlanFault("a rounded product has a weight of i8, with scales of indices that are not summed")
        if largest.shape != tuple(plain.extents[name] for name in kept) or (
            compute_type(dtype_name(largest)) != compute_type(dtype_name(tensor))
        ):
            raise PlanFault(f"the largest elements of rows have the shape {list(largest.shape)}, or another type")
        if plain.count(summed) > MAX_SUMMED:
            raise PlanFault(f"{plain.count(summed)} products are summed; at most {MAX_SUMMED} fit into 32 bits")
        return RoundedContractCall(plain, NamedArray(kept, largest))

    @property
    def channels(self) -> Names:
        """The indices of the weight's scales."""
        return self.plain.labels[: self.plain.weight.scales.ndim]
