"""Sequences that are packed one after the other for attention: how many pairs of a query and a key see each other, and
where to cut.

Every sequence has its own queries and keys, numbered from zero. Its queries are the last positions of the sequence:
query i is at position i + keys - queries. All sizes and positions are in tokens.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from einc.core.intervals import Interval, ShardableIndex
from einc.ops.arguments import compute_ends


@dataclass(frozen=True, slots=True)
class SequencePacking:
    """The queries and keys of every sequence, and what a query sees of its own sequence.

    If `causal`, a query sees keys up to its position only. With a `window`, it sees no key that is `window` or more
    before its position.
    """

    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    causal: bool = False
    window: int = 0

    def pairs(self, queries: Interval, keys: Interval) -> int:
        """How many pairs of these packed queries and keys see each other."""
        total = 0
        q_ends, k_ends = compute_ends(self.q_lens), compute_ends(self.k_lens)
        for s in range(bisect_right(q_ends, queries[0]), len(q_ends)):
            q_start, k_start = q_ends[s] - self.q_lens[s], k_ends[s] - self.k_lens[s]
            if q_start >= queries[1]:
                break
            own_queries = (max(queries[0] - q_start, 0), min(queries[1] - q_start, self.q_lens[s]))
            own_keys = (max(keys[0] - k_start, 0), min(keys[1] - k_start, self.k_lens[s]))
            if own_keys[0] < own_keys[1]:
                total += self._pairs(s, own_queries, own_keys)
        return total

    def sequences(self) -> ShardableIndex:
        """The index over queries, which may be cut between sequences and is balanced by the number of pairs."""
        q_ends = compute_ends(self.q_lens)
        return ShardableIndex("sequence", q_ends[-1], q_ends[:-1], work=_sum_work(self))

    def keys(self) -> ShardableIndex:
        """The index over keys, which may be cut anywhere; see `key_bounds` for the meaning of its positions.

        The shortest sequence limits the number of intervals: no interval may be empty, even if `sequence` is cut, too.
        """
        return ShardableIndex("keys", sum(self.k_lens), limit=min(self.k_lens))

    def key_bounds(self, queries: Interval, shares: Sequence[Interval]) -> tuple[Interval, ...]:
        """The packed keys of whole sequences, cut into shares: position x of `keys` means x / extent of the work.

        `queries` is an interval of `sequence`. If there is one sequence and every query sees every key, positions are
        keys. There are at least as many keys as shares, and no interval is empty.
        """
        q_ends, k_ends, work = compute_ends(self.q_lens), compute_ends(self.k_lens), _sum_work(self)
        first, last = bisect_right(q_ends, queries[0]), bisect_left(q_ends, queries[1])
        lower, upper = k_ends[first] - self.k_lens[first], k_ends[last]
        done = work[first - 1] if first else 0
        bounds = [lower]
        for left, (_, share) in zip(range(len(shares) - 1, 0, -1), shares, strict=False):
            target = done + (work[last] - done) * share // k_ends[-1]
            bounds.append(min(max(self._key_at(target), bounds[-1] + 1), upper - left))
        return tuple(itertools.pairwise([*bounds, upper]))

    def _key_at(self, target: int) -> int:
        """The first packed key such that the keys before it take `target` work."""
        work = _sum_work(self)
        s = bisect_left(work, target)
        missing = target - (work[s - 1] if s else 0)
        length, queries = self.k_lens[s], (0, self.q_lens[s])
        inside = bisect_left(range(length + 1), missing, key=lambda keys: self._pairs(s, queries, (0, keys)))
        return compute_ends(self.k_lens)[s] - length + inside

    def _pairs(self, s: int, queries: Interval, keys: Interval) -> int:
        """The pairs in one sequence, of its own queries and keys."""
        ahead = self.k_lens[s] - self.q_lens[s]
        everything = (queries[1] - queries[0]) * (keys[1] - keys[0])
        seen = _count_pairs_up_to(ahead, queries, keys) if self.causal else everything
        return seen - _count_pairs_up_to(ahead - self.window, queries, keys) if self.window else seen


@lru_cache(maxsize=256)
def _sum_work(packing: SequencePacking) -> tuple[int, ...]:
    """For each sequence, the number of pairs in it and all sequences before it."""
    sizes = zip(packing.q_lens, packing.k_lens, strict=True)
    return tuple(itertools.accumulate(packing._pairs(s, (0, q), (0, k)) for s, (q, k) in enumerate(sizes)))


def _count_pairs_up_to(shift: int, queries: Interval, keys: Interval) -> int:
    """The pairs with key <= query + shift: a query i sees min(max(i + shift + 1 - first key, 0), all) of the keys."""
    total = 0
    for edge, sign in ((keys[0], 1), (keys[1], -1)):
        total += sign * (_count_triangle(queries[1] + shift - edge) - _count_triangle(queries[0] + shift - edge))
    return total


def _count_triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0
