"""Intervals of a shardable index, and the interval counts that make up a number of sites (paper, Section 3.3)."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Interval = tuple[int, int]
"""A half-open range of positions of one index."""

Intervals = tuple[tuple[Interval, ...], ...]
"""For every shardable index, in the operator's order, the intervals that cover it in ascending order."""


@dataclass(frozen=True, slots=True)
class ShardableIndex:
    """A named index that an operator can be cut along.

    `cuts` lists the interior positions where it may be cut, ascending; None stands for `any` position.
    """

    name: str
    extent: int
    cuts: tuple[int, ...] | None = None

    @property
    def most(self) -> int:
        """The largest number of (non-empty) intervals."""
        return self.extent if self.cuts is None else len(self.cuts) + 1

    def intervals(self, count: int) -> tuple[Interval, ...]:
        """`count` near-equal intervals: bound k of them stands at floor(k * extent / count), or the nearest cut.

        Where cuts are listed, bounds are chosen in ascending order, each the nearest cut (the lower of two) that
        keeps all intervals non-empty.
        """
        if not 1 <= count <= self.most:
            raise ValueError(f"index {self.name} cannot be cut into {count} intervals")
        targets = [k * self.extent // count for k in range(1, count)]
        if self.cuts is None:
            inner = targets
        else:
            inner, first = [], 0
            for left, target in zip(range(count - 2, -1, -1), targets, strict=True):
                last = len(self.cuts) - left  # leave one cut for each bound to come
                at = bisect_left(self.cuts, target, first, last)
                options = [i for i in (at - 1, at) if first <= i < last]
                best = min(options, key=lambda i: (abs(self.cuts[i] - target), i))  # type: ignore[index]
                inner.append(self.cuts[best])
                first = best + 1
        bounds = [0, *inner, self.extent]
        return tuple(itertools.pairwise(bounds))


def factorizations(product: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write `product` as one factor per limit, none above its limit, in ascending order."""
    if not limits:
        if product == 1:
            yield ()
        return
    for factor in range(1, min(product, limits[0]) + 1):
        if product % factor == 0:
            for rest in factorizations(product // factor, limits[1:]):
                yield (factor, *rest)


def reachable_sites(sites: int, limits: Sequence[int]) -> int:
    """The largest product of admissible interval counts that is not above `sites`; the rest stay idle."""
    return next(p for p in range(sites, 0, -1) if next(factorizations(p, limits), None) is not None)
