"""Which token comes next: the most likely one, or one drawn among the likely ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.errors import KernelFault, UsageFault

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array


@dataclass(frozen=True, slots=True)
class Sampling:
    """A temperature of 0 takes the most likely token. Others divide the logits, and the tokens that together have the
    probability `top_p` at least, the most likely first, are drawn from. Equal seeds draw equal tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 1e6:
            raise UsageFault(f"expected a temperature from 0 on, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageFault(f"expected a top-p above 0, and 1 at most, found {self.top_p}")


GREEDY = Sampling()
"""The most likely token, always."""


class TokenSampler:
    """Chooses the tokens of one sequence, the `number`-th with its seed: no other sequence changes what is drawn."""

    def __init__(self, sampling: Sampling, number: int) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng([sampling.seed, number])

    def choose(self, logits: Array) -> int:
        """A token, given the logits [vocab] after the tokens before it. Raises KernelFault for NaNs."""
        best = int(np.argmax(logits))
        if not math.isfinite(float(logits[best])):
            raise KernelFault("the logits are not finite", hint="16-bit floats may be too narrow: --dtype f32")
        if self._sampling.temperature == 0:
            return best
        scaled = (logits.astype(np.float64) - float(logits[best])) / self._sampling.temperature
        weights = np.exp(scaled)
        order = np.argsort(-weights, kind="stable")
        sums = np.cumsum(weights[order])
        count = int(np.searchsorted(sums, self._sampling.top_p * sums[-1])) + 1
        drawn = self._random.random() * sums[min(count, len(sums)) - 1]
        return int(order[min(int(np.searchsorted(sums, drawn, side="right")), len(sums) - 1)])
