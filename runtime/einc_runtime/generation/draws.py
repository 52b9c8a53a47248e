"""Which token is drawn: a function of its sequence's seed, of how many came before, and of the logits alone.

Each token of the vocabulary has a random number of a generator that counts: two hashes of its number and of two keys of
the step. Minus the logarithm of an exponential random number is added to each scaled logit, and the largest sum is
drawn: that draws by the softmax (the Gumbel-max trick), also among some of the tokens only. Plans of decoders do so on
devices (`draw_token` in `einc/library/drawing.ein`), with the same random bits; logarithms and exponentials are rounded
as each device rounds them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array

LISTED_TOKENS = 64
"""The most likely tokens that plans list. If top-p needs more, they draw none, so a longer list seldom helps."""
GREEDY_TOP_K = 1
STRIDE = 0x9E3779B9
"""What is between the words of neighbouring tokens: 2^32 divided by the golden ratio."""
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
"""The factors of a hash of 32 bits by Chris Wellons (hash-prospector, "lowbias32")."""
RANDOM_BITS = 23
"""Bits of each hash that make the random number: as many as f32 has behind its first one."""
_LEAST_TEMPERATURE = 1e-30
"""Below this, 1 / temperature times a difference of logits leaves f32. All draw the most likely token."""
_WORD = (1 << 32) - 1

Keys = tuple[int, int]
"""Those of a step of a sequence, integers of 32 bits with a sign."""


class DrawSettings(NamedTuple):
    """What plans are told: 1 / temperature, top-p, the logarithm of min-p (-inf for none), and top-k (0 for all)."""

    factor: float
    top_p: float
    least: float
    top_k: float

    @staticmethod
    def of(temperature: float, top_p: float, min_p: float, top_k: int) -> DrawSettings:
        """A temperature of 0 takes the most likely token."""
        least = math.log(min_p) if min_p else -math.inf
        if temperature == 0:
            return DrawSettings(1.0, 1.0, -math.inf, GREEDY_TOP_K)
        return DrawSettings(1 / max(temperature, _LEAST_TEMPERATURE), top_p, least, top_k)


def find_keys(base: int, count: int) -> Keys:
    """The keys of the step after `count` tokens, of a sequence that has 64 random bits."""
    return _sign(_mix_word(base + count & _WORD)), _sign(_mix_word((base >> 32) + count & _WORD))


def _mix_word(word: int) -> int:
    word = (word ^ word >> 16) * _FIRST & _WORD
    word = (word ^ word >> 15) * _SECOND & _WORD
    return word ^ word >> 16


def _sign(word: int) -> int:
    return word - (word >> 31 << 32)


def _mix(words: Array) -> Array:
    """The same of unsigned integers of 32 bits."""
    words = (words ^ words >> np.uint32(16)) * np.uint32(_FIRST)
    words = (words ^ words >> np.uint32(15)) * np.uint32(_SECOND)
    mixed: Array = words ^ words >> np.uint32(16)
    return mixed


def find_noise(keys: Keys, tokens: Array) -> Array:
    """What is added to the scaled logit of each of these tokens, in f32."""
    first, second = (np.uint32(key & _WORD) for key in keys)
    high = _mix(first + tokens.astype(np.uint32) * np.uint32(STRIDE))
    low = _mix(high ^ second)
    shift, scale = np.uint32(32 - RANDOM_BITS), np.float32(2.0**-RANDOM_BITS)
    share = (high >> shift).astype(np.float32) * scale + (low >> shift).astype(np.float32) * (scale * scale)
    with np.errstate(divide="ignore"):
        noise: Array = -np.log(-np.log1p(-share))
    return noise


def draw(logits: Array, settings: DrawSettings, keys: Keys) -> int:
    """A token [vocab]. The largest logit is finite. Tokens as likely as the last one that may be drawn may be, too."""
    if settings.top_k == GREEDY_TOP_K:
        return int(logits.argmax())
    least = settings.least
    scores = (logits.astype(np.float32) - np.float32(logits.max())) * np.float32(settings.factor)
    if settings.top_k or settings.top_p < 1:
        ordered = np.sort(scores)[::-1]
        ordered = ordered[: int(settings.top_k)] if settings.top_k else ordered
        sums = np.cumsum(np.exp(ordered), dtype=np.float64)
        count = int(np.searchsorted(sums, settings.top_p * sums[-1])) + 1
        least = max(least, float(ordered[min(count, len(ordered)) - 1]))
    tokens = np.flatnonzero(scores >= least)
    return int(tokens[np.argmax(scores[tokens] + find_noise(keys, tokens))])
