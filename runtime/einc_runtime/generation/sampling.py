"""Which token comes next: the most likely one, or one drawn among the likely ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.errors import KernelFault, UsageFault
from einc_runtime.generation.draws import LISTED_TOKENS, DrawSettings, Keys, draw, find_keys

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array

_BOUNDS = {
    "temperature": (0.0, 1e6), "min_p": (0.0, 1.0), "presence_penalty": (-1e3, 1e3), "frequency_penalty": (-1e3, 1e3),
}  # fmt: skip
"""The least and the largest value of settings."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. A temperature of 0 takes the most likely token. Others divide the logits, and one is drawn
    among the `top_k` most likely tokens (0: all), of these among the most likely ones that together have the
    probability `top_p` at least, and of these among those that are at least `min_p` times as likely as the first.
    Equal seeds draw equal tokens.

    Before that, logits change: those of tokens in the text so far, the prompt included, are divided by the
    `repetition_penalty` where they are positive, and multiplied by it where they are negative; those of tokens that
    were made are lowered by the `presence_penalty`, and by the `frequency_penalty` for each time. Last, `logit_bias` is
    added: tokens and what is added to the logit of each.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise UsageFault(f"expected a {name} from {low:g} to {high:g}, found {getattr(self, name)}")
        if not 0 < self.top_p <= 1:
            raise UsageFault(f"expected a top-p above 0, and 1 at most, found {self.top_p}")
        if not 0 < self.repetition_penalty <= 1e3:
            raise UsageFault(f"expected a repetition_penalty above 0, found {self.repetition_penalty}")
        if self.top_k < 0:
            raise UsageFault(f"expected a top_k from 0 on, found {self.top_k}")


GREEDY = Sampling()
"""The most likely token, always."""


class TokenSampler:
    """Chooses the tokens of one sequence, the `number`-th with its seed: no other sequence changes what is drawn."""

    def __init__(self, sampling: Sampling, number: int, prompt: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._base = int(np.random.SeedSequence([sampling.seed, number]).generate_state(1, np.uint64)[0])
        self._chosen = 0
        self._read = np.unique(np.asarray(prompt, np.int64)) if sampling.repetition_penalty != 1 else None
        self._counts: Counter[int] = Counter()
        self._changes = bool(
            sampling.repetition_penalty != 1
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.logit_bias
        )
        self.takes_likely = sampling.temperature == 0 and not self._changes
        """Whether the most likely token is taken, whatever the tokens before it are."""
        self.settings = DrawSettings.of(sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k)
        self.draws_listed = not self._changes and sampling.top_k <= LISTED_TOKENS
        """Whether its tokens follow from the logits, the settings and keys, and a list of likely tokens."""

    def find_keys(self) -> Keys:
        """Those of the random numbers of the next token."""
        return find_keys(self._base, self._chosen)

    def take(self, token: int, logit: float) -> int:
        """A token that a plan found, if the largest logit shows that there is one. Raises KernelFault for NaNs."""
        if not math.isfinite(logit):
            raise KernelFault("the logits are not finite", hint="16-bit floats may be too narrow: --dtype f32")
        return self._note(token)

    def choose(self, logits: Array, excluded: Collection[int] = (), allowed: Array | None = None) -> int:
        """A token, given the logits [vocab] after the tokens before it. It is none of those `excluded`, and one that
        the flags `allowed` [vocab] mark. Raises KernelFault for NaNs."""
        best = int(np.argmax(logits))
        if self.takes_likely and not excluded and allowed is None:
            return self.take(best, float(logits[best]))
        if not math.isfinite(float(logits[best])):
            raise KernelFault("the logits are not finite", hint="16-bit floats may be too narrow: --dtype f32")
        changed = self._change(logits)
        if excluded or allowed is not None:
            changed = changed.astype(np.float64)
            changed[list(excluded)] = -np.inf
            if allowed is not None:
                changed[~allowed] = -np.inf
        return self._note(self._draw(changed))

    def _note(self, token: int) -> int:
        self._chosen += 1
        if self._changes:
            self._counts[token] += 1
        return token

    def _change(self, logits: Array) -> Array:
        """The logits after penalties and biases, which are the same array where there are none."""
        how = self._sampling
        if not self._changes:
            return logits
        changed = logits.astype(np.float64)
        seen = np.fromiter(self._counts, np.int64, len(self._counts))
        if self._read is not None:
            seen_or_read = np.union1d(self._read, seen)
            values = changed[seen_or_read]
            penalty = how.repetition_penalty
            changed[seen_or_read] = np.where(values > 0, values / penalty, values * penalty)
        changed[seen] -= how.presence_penalty
        changed[seen] -= how.frequency_penalty * np.fromiter(self._counts.values(), np.float64, len(seen))
        for token, bias in how.logit_bias:
            changed[token] += bias
        return changed

    def _draw(self, logits: Array) -> int:
        if not math.isfinite(float(logits.max())):
            raise KernelFault("no token is left to choose from")
        return draw(logits, self.settings, self.find_keys())
