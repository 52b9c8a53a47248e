"""Calls of the kernel `rounded_contract`: products of a tensor that is rounded and a quantized weight.

What is summed for one element is a row of the tensor, and `largest` is its largest magnitude. In f32 (f64 for f64),
with a weight of integers, of 8 bits:

    ratio   = 127 / largest where that is above 0 and the ratio is finite, else 0
    integer = the element times ratio, between -127 and 127, to the nearest, ties to even; 0 for NaN
    result  = the sum of integers times values, exact; times (largest / 127 times the attribute scale); times the scale

With a weight of floats, elements become floats of 8 or 4 bits with scales like those of the weight
(`stored_values.choose_scales`):

    scale   = largest / 448, of a row, or of each `group` of neighbours along the last index that is summed
    value   = the element / scale (where that is 0: the element), to the nearest float of 8 or 4 bits, ties to even
    result  = the sum of (value times scale) times the weight, times the attribute scale

So a row that is not finite has results that are not finite, and one of zeros has zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from einc_runtime.dtypes import FLOATS, Array
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.quantized import QuantizedContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.plan.index_equations import Names

LEVELS = 127
"""The largest integer that an element becomes."""


@dataclass(frozen=True, slots=True)
class RoundedContractCall:
    """`plain` with a tensor that is rounded; `largest` has its indices that are not summed. It is None where groups
    alone have scales."""

    plain: QuantizedContractCall
    largest: NamedArray | None

    @staticmethod
    def parse(invocation: Invocation[Array]) -> RoundedContractCall:
        tensor, *weight = invocation.inputs
        largest = weight.pop(0) if dtype_name(weight[0]) in FLOATS else None
        attributes = {"group": 0, **invocation.attributes}
        plain = QuantizedContractCall.parse(replace(invocation, attributes=attributes, inputs=[tensor, *weight]))
        if largest is None:
            return RoundedContractCall(plain, None)
        kept = tuple(name for name in plain.tensor.names if name in plain.result.names)
        return RoundedContractCall(plain, NamedArray(kept, largest))

    @property
    def rows(self) -> NamedArray:
        """The largest elements of rows, where there are some."""
        assert self.largest is not None
        return self.largest

    @property
    def channels(self) -> Names:
        """The indices of the weight's scales."""
        return self.plain.labels[: self.plain.weight.scales.ndim]
