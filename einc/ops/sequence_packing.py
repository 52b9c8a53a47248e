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
from einc_runtime.plan.meaning.attention import SeenKeys
from einc_runtime.plan.meaning.terms import ends_of


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
        q_ends, k_ends = ends_of(self.q_lens), ends_of(self.k_lens)
        first = max(bisect_right(q_ends, queries[0]), bisect_right(k_ends, keys[0]))
        last = min(bisect_left(q_ends, queries[1]), bisect_left(k_ends, keys[1]))
        if first >= last:
            return self._pairs_inside(first, queries, keys) if first == last else 0
        work = _sum_work(self)
        between = work[last - 1] - work[first]
        return self._pairs_inside(first, queries, keys) + between + self._pairs_inside(last, queries, keys)

    def sequences(self) -> ShardableIndex:
        """The index over queries, which may be cut between sequences and is balanced by the number of pairs."""
        q_ends = ends_of(self.q_lens)
        return ShardableIndex("sequence", q_ends[-1], q_ends[:-1], work=_sum_work(self))

    def queries(self) -> ShardableIndex:
        """The index over queries, which may be cut anywhere: evenly, or balanced by the number of pairs."""
        return ShardableIndex("queries", sum(self.q_lens), balance=self.balance_queries, instead_of=("sequence",))

    def keys(self) -> ShardableIndex:
        """The index over keys, which may be cut anywhere; see `key_bounds` for the meaning of its positions.

        The shortest sequence limits the number of intervals: no interval may be empty, even if `sequence` or `queries`
        is cut, too.
        """
        return ShardableIndex("keys", sum(self.k_lens), limit=min(self.k_lens))

    def balance_queries(self, count: int) -> tuple[int, ...]:
        """The bounds between `count` intervals of packed queries with nearly equal numbers of pairs, none empty.

        Bound k is the last query such that the queries before it have at most k / count of all pairs.
        """
        extent, work = sum(self.q_lens), _sum_work(self)
        bounds = [0]
        for k in range(1, count):
            bounds.append(min(max(self._query_at(k * work[-1] // count), bounds[-1] + 1), extent - (count - k)))
        return tuple(bounds[1:])

    def all_keys(self, queries: Interval) -> Interval:
        """The packed keys of the sequences that these queries belong to."""
        first, last = self._sequences_of(queries)
        k_ends = ends_of(self.k_lens)
        return k_ends[first] - self.k_lens[first], k_ends[last]

    def count_sequences(self, queries: Interval) -> int:
        """How many sequences these packed queries belong to."""
        first, last = self._sequences_of(queries)
        return last - first + 1

    def seen_keys(self, queries: Interval, least: int) -> Interval:
        """The packed keys from the first to the last one that any of these queries sees, and more of the queries'
        sequences if these are fewer than `least`, which their sequences have."""
        all_lower, all_upper = self.all_keys(queries)
        lower, upper = SeenKeys(self.q_lens, self.k_lens, self.causal, self.window).by(queries)
        upper = min(max(upper, lower + least), all_upper)
        return max(min(lower, upper - least), all_lower), upper

    def key_bounds(self, queries: Interval, keys: Interval, shares: Sequence[Interval]) -> tuple[Interval, ...]:
        """These packed keys cut into shares of the pairs with these queries: position x of `keys` means x / extent.

        If there is one sequence and every query sees every key, positions are keys. There are at least as many keys as
        shares, and no interval is empty.
        """
        (lower, upper), extent = keys, sum(self.k_lens)
        bounds = [lower]
        if len(shares) > 1:
            total = self.pairs(queries, keys)
            for left, (_, share) in zip(range(len(shares) - 1, 0, -1), shares, strict=False):
                key = self._key_at(queries, keys, total * share // extent)
                bounds.append(min(max(key, bounds[-1] + 1), upper - left))
        return tuple(itertools.pairwise([*bounds, upper]))

    def _query_at(self, target: int) -> int:
        """The last packed query such that the queries before it have at most `target` of all pairs."""
        work = _sum_work(self)
        s = bisect_right(work, target)
        left = target - (work[s - 1] if s else 0)
        length, keys = self.q_lens[s], (0, self.k_lens[s])
        inside = bisect_right(range(length + 1), left, key=lambda count: self._pairs(s, (0, count), keys)) - 1
        return ends_of(self.q_lens)[s] - length + inside

    def _key_at(self, queries: Interval, keys: Interval, target: int) -> int:
        """The first of the packed keys such that those before it have `target` pairs with the queries.

        Sequences are searched first, and then the keys of one.
        """
        k_ends, (lower, upper) = ends_of(self.k_lens), keys
        first, last = bisect_right(k_ends, lower), bisect_left(k_ends, upper)

        def count(key: int) -> int:
            return self.pairs(queries, (lower, key))

        s = first + bisect_left(range(first, last), target, key=lambda s: count(k_ends[s]))
        start, stop = max(lower, k_ends[s] - self.k_lens[s]), min(upper, k_ends[s])
        return start + bisect_left(range(start, stop), target, key=count)

    def _sequences_of(self, queries: Interval) -> Interval:
        """The first and the last sequence that these packed queries belong to."""
        q_ends = ends_of(self.q_lens)
        return bisect_right(q_ends, queries[0]), bisect_left(q_ends, queries[1])

    def _pairs_inside(self, s: int, queries: Interval, keys: Interval) -> int:
        """The pairs of packed queries and keys that are in one sequence."""
        q_start, k_start = ends_of(self.q_lens)[s] - self.q_lens[s], ends_of(self.k_lens)[s] - self.k_lens[s]
        own_queries = (max(queries[0] - q_start, 0), min(queries[1] - q_start, self.q_lens[s]))
        own_keys = (max(keys[0] - k_start, 0), min(keys[1] - k_start, self.k_lens[s]))
        return self._pairs(s, own_queries, own_keys)

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
