"""Calls of the kernel `expert_matmul`: attributes, arrays and blocks checked against each other.

Picks are data. They are checked when the kernel runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import FLOATS, Array, compute_type
from einc_runtime.errors import PlanFault, ValueFault
from einc_runtime.kernels.base import Invocation, dtype_name


@dataclass(frozen=True, slots=True)
class ExpertMatmulCall:
    """`target[t, s] = weight[picks[t, s] - lower] @ rows[t, s]`, and 0 where the pick is another expert than these.

    `rows` [tokens, slots, k] may have stride 0 between slots. `weight` [experts, n, k] holds the experts from `lower`
    on, of `experts` in all.
    """

    rows: Array
    weight: Array
    picks: Array
    target: Array
    experts: int
    lower: int

    @staticmethod
    def parse(invocation: Invocation[Array]) -> ExpertMatmulCall:
        """Raises PlanFault for an invocation that is no such product."""
        invocation.allow("experts")
        (rows, weight, picks), target = invocation.operands(3), invocation.output
        experts = invocation.attribute("experts", int)
        forms = f"{rows.dtype}{rows.shape} with {weight.dtype}{weight.shape} by {picks.dtype}{picks.shape}"
        if picks.dtype.kind != "i" or picks.ndim != 2 or weight.ndim != 3 or rows.ndim not in (2, 3):
            raise PlanFault(f"expert_matmul of {forms}")
        kinds = {compute_type(dtype_name(array)) for array in (rows, weight, target)}
        wide = rows if rows.ndim == 3 else np.broadcast_to(rows[:, None], (len(rows), picks.shape[1], rows.shape[1]))
        fit = wide.shape == (*picks.shape, weight.shape[2]) and target.shape == (*picks.shape, weight.shape[1])
        if len(kinds) != 1 or not kinds <= FLOATS or not fit:
            raise PlanFault(f"expert_matmul of {forms} into {target.dtype}{target.shape}")
        lower, upper = invocation.input_blocks[1].lower[0], invocation.input_blocks[1].upper[0]
        if upper - lower != len(weight) or upper > experts:
            raise PlanFault(f"expert_matmul with {len(weight)} experts, {lower} to {upper} of {experts}")
        return ExpertMatmulCall(wide, weight, picks, target, experts, lower)

    @property
    def is_whole(self) -> bool:
        """Whether all experts are here."""
        return len(self.weight) == self.experts

    @property
    def multiplications(self) -> int:
        """How many there are if as large a part of the picks is of experts that are here."""
        return int(self.picks.size * self.weight.size // max(1, self.experts))

    @property
    def status_message(self) -> str:
        """The error of an execution on a GPU, which says only that some pick is wrong."""
        return f"a pick is no expert: experts are 0 to {self.experts - 1}"

    def require_picks(self) -> None:
        """Raises ValueFault for a pick that is no expert. The picks are read now."""
        low, high = int(self.picks.min()), int(self.picks.max())
        if low < 0 or high >= self.experts:
            raise ValueFault(f"a pick is {low if low < 0 else high}; experts are 0 to {self.experts - 1}")
