"""Calls of the kernel `expert_matmul`. Picks are data: they are checked when the kernel runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import ValueFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.quantized import QuantizedWeight

_PRODUCT, _TRANSPOSED = "m k, n k -> m n", "m k, k n -> m n"
"""What rows become with the matrix of an expert, as it lies in memory."""


@dataclass(frozen=True, slots=True)
class ExpertMatmulCall:
    """`target[t, s] = weight[picks[t, s] - lower] @ rows[t, s]`, and 0 where the pick is another expert than these.

    `rows` [tokens, slots, k] may have stride 0 between slots. `weight` [experts, n, k] holds the experts from `lower`
    on, of `experts` in all. It may be quantized, or `transposed`: a view of [experts, k, n].
    """

    rows: Array
    weight: Array | QuantizedWeight
    picks: Array
    target: Array
    experts: int
    lower: int
    transposed: bool = False

    @staticmethod
    def parse(invocation: Invocation[Array]) -> ExpertMatmulCall:
        rows, matrices, *more, picks = invocation.inputs
        transposed = bool(invocation.attributes.get("transposed"))
        weight: Array | QuantizedWeight = matrices.swapaxes(1, 2) if transposed else matrices
        if more:
            weight = QuantizedWeight.parse((matrices, *more), invocation.attribute("group", int))
        wide = rows if rows.ndim == 3 else np.broadcast_to(rows[:, None], (len(rows), picks.shape[1], rows.shape[1]))
        experts, lower = invocation.attribute("experts", int), invocation.input_blocks[1].lower[0]
        return ExpertMatmulCall(wide, weight, picks, invocation.output, experts, lower, transposed)

    @property
    def count(self) -> int:
        """How many experts are here."""
        return self.weight.shape[0]

    @property
    def is_whole(self) -> bool:
        """Whether all experts are here."""
        return self.count == self.experts

    def multiply(self, expert: int, rows: Array, target: Array) -> Invocation[Array]:
        """The product of rows with the matrix of an expert that is here."""
        if isinstance(self.weight, QuantizedWeight):
            operands = [rows, *self.weight.pick(expert).operands]
            group = self.weight.group
            return Invocation("quantized_contract", {"equation": _PRODUCT, "group": group}, operands, [target])
        matrix = self.weight[expert]
        if self.transposed:
            return Invocation("contract", {"equation": _TRANSPOSED}, [rows, matrix.T], [target])
        return Invocation("contract", {"equation": _PRODUCT}, [rows, matrix], [target])

    @property
    def multiplications(self) -> int:
        """How many there are if as large a part of the picks is of experts that are here."""
        return self.picks.size * math.prod(self.weight.shape) // max(1, self.experts)

    @property
    def status_message(self) -> str:
        """The error of an execution on a GPU, which says only that some pick is wrong."""
        return f"a pick is no expert: experts are 0 to {self.experts - 1}"

    def require_picks(self) -> None:
        """Raises ValueFault for a pick that is no expert. The picks are read now."""
        low, high = int(self.picks.min()), int(self.picks.max())
        if low < 0 or high >= self.experts:
            raise ValueFault(f"a pick is {low if low < 0 else high}; experts are 0 to {self.experts - 1}")
