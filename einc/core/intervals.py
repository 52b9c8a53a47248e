"""Intervals of a shardable index, and the interval counts that make up a number of sites (paper, Section 3.3)."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Interval = tuple[int, int]
"""A half-open range of positions of one index."""

Intervals = tuple[tuple[Interval, ...], ...]
"""For every shardable index, in the operator's order, the intervals that cover it in ascending order."""


@dataclass(frozen=True, slots=True)
class ShardableIndex:
    """A named index that an operator can be cut along.

    `cuts` lists the interior positions where it may be cut, ascending; None means any position. `limit` is a further
    bound on the number of intervals. `work` is given for an index with cuts if its positions do not take equally much
    work: the work before each cut, ascending, and then the work of the whole index. `balance` is given for an index
    without cuts if its positions do not take equally much work: it finds the interior bounds of so many intervals of
    nearly equal work, none empty. `instead_of` is given for an index that the paper's candidates do not cut. It may
    only be cut where the indices with these names, and others with an `instead_of`, are whole.
    """

    name: str
    extent: int
    cuts: tuple[int, ...] | None = None
    limit: int | None = None
    work: tuple[int, ...] | None = None
    balance: Callable[[int], tuple[int, ...]] | None = field(default=None, compare=False)
    instead_of: tuple[str, ...] = ()

    @property
    def max_intervals(self) -> int:
        """The largest number of (non-empty) intervals."""
        count = self.extent if self.cuts is None else len(self.cuts) + 1
        return count if self.limit is None else min(count, self.limit)

    def intervals(self, count: int) -> tuple[Interval, ...]:
        """`count` nearly equal intervals: bound k is floor(k * extent / count), or the nearest cut.

        If cuts are listed, bounds are chosen in ascending order. Each is the nearest cut (the lower of two) that keeps
        all intervals non-empty. If work is given, "equal" and "nearest" are measured in work.
        """
        if not 1 <= count <= self.max_intervals:
            raise ValueError(f"index {self.name} cannot be cut into {count} intervals")
        if self.cuts is None:
            inner = [k * self.extent // count for k in range(1, count)]
        else:
            inner = [self.cuts[i] for i in self._nearest_cuts(count)]
        bounds = [0, *inner, self.extent]
        return tuple(itertools.pairwise(bounds))

    def choices(self, count: int) -> tuple[tuple[Interval, ...], ...]:
        """The ways to cut it into `count` intervals, all different: `intervals`, and those of equal work."""
        even = self.intervals(count)
        if self.balance is None:
            return (even,)
        balanced = tuple(itertools.pairwise([0, *self.balance(count), self.extent]))
        return (even,) if balanced == even else (even, balanced)

    def _nearest_cuts(self, count: int) -> list[int]:
        """The numbers of the cuts that bound `count` intervals."""
        assert self.cuts is not None
        marks, total = (self.cuts, self.extent) if self.work is None else (self.work[:-1], self.work[-1])
        chosen: list[int] = []
        first = 0
        for k in range(1, count):
            target = k * total // count
            last = len(marks) - (count - 1 - k)  # leave one cut for each bound to come
            at = bisect_left(marks, target, first, last)
            options = [i for i in (at - 1, at) if first <= i < last]
            chosen.append(min(options, key=lambda i: (abs(marks[i] - target), i)))
            first = chosen[-1] + 1
        return chosen


def enumerate_requests(indices: Sequence[ShardableIndex], counts: Sequence[int]) -> Iterator[Intervals]:
    """All ways to cut each of the indices into so many intervals."""
    return itertools.product(*(index.choices(count) for index, count in zip(indices, counts, strict=True)))


def limit_intervals(indices: Sequence[ShardableIndex], further: ShardableIndex | None = None) -> list[int]:
    """The most intervals of every index in the paper's candidates; or in those that also cut the index `further`."""
    uncut = further.instead_of if further is not None else ()
    return [
        1 if index.name in uncut or (index.instead_of and index != further) else index.max_intervals
        for index in indices
    ]


def enumerate_factorizations(product: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write `product` as one factor per limit, none above its limit, in ascending order."""
    if not limits:
        if product == 1:
            yield ()
        return
    for factor in range(1, min(product, limits[0]) + 1):
        if product % factor == 0:
            for factors in enumerate_factorizations(product // factor, limits[1:]):
                yield (factor, *factors)


def count_reachable_sites(sites: int, limits: Sequence[int]) -> int:
    """The largest product of admissible interval counts up to `sites`; the other sites stay idle."""
    return next(p for p in range(sites, 0, -1) if next(enumerate_factorizations(p, limits), None) is not None)
