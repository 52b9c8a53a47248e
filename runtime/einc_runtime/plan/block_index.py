"""Blocks of one space, each with a value, of which those that overlap with a block are found without looking at all."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from typing import Generic, TypeVar

from einc_runtime.plan.schema import Block

Value = TypeVar("Value")

MAX_SCANNED_BLOCKS = 16
"""As many blocks are looked at faster than an order of them is kept."""

_Orders = list[dict[int, list[tuple[int, int]]]]
"""For every dimension and class of extents: the start and the key of each block, in ascending order."""


class BlockIndex(Generic[Value]):
    """Entries have keys, which are the numbers from 0 in the order in which they were added.

    Blocks are sorted along every dimension, those whose extents have as many binary digits together, so that a few
    large blocks do not hide where small ones are. A query looks at the dimension along which the fewest are near.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Block, Value]] = {}
        self._orders: _Orders | None = None
        self._count = 0

    def add(self, block: Block, value: Value) -> None:
        key = self._count
        self._count += 1
        self.entries[key] = block, value
        if self._orders is not None:
            self._insert(self._orders, key, block)
        elif len(self.entries) > MAX_SCANNED_BLOCKS:
            self._orders = [defaultdict(list) for _ in block.lower]
            for number, (entry, _) in self.entries.items():
                self._insert(self._orders, number, entry)

    def remove(self, key: int) -> None:
        block, _ = self.entries.pop(key)
        for axis, classes in enumerate(self._orders or ()):
            order = classes[(block.upper[axis] - block.lower[axis]).bit_length()]
            del order[bisect_left(order, (block.lower[axis], key))]

    def find_overlapping(self, block: Block) -> list[int]:
        """The keys of the entries that have elements in common with a block."""
        near = list(self.entries) if not self._orders else self._find_near(self._orders, block)
        return [key for key in near if self.entries[key][0].overlaps(block)]

    @staticmethod
    def _insert(orders: _Orders, key: int, block: Block) -> None:
        for axis, classes in enumerate(orders):
            lower, upper = block.lower[axis], block.upper[axis]
            insort(classes[(upper - lower).bit_length()], (lower, key))

    def _find_near(self, orders: _Orders, block: Block) -> list[int]:
        """The keys of all that overlap with a block along one dimension, and maybe of a few others."""
        best: list[tuple[list[tuple[int, int]], int, int]] = []
        fewest = len(self.entries) + 1
        for axis, classes in enumerate(orders):
            slices = []
            for digits, order in classes.items():
                first = bisect_left(order, (block.lower[axis] - (1 << digits) + 2, 0))
                slices.append((order, first, bisect_left(order, (block.upper[axis], 0), first)))
            count = sum(last - first for _, first, last in slices)
            if count < fewest:
                best, fewest = slices, count
        return [key for order, first, last in best for _, key in order[first:last]]
