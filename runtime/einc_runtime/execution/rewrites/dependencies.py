"""Finds what tasks have to wait for where all sites share one memory: earlier tasks that touch the same bytes.

Any two tasks that touch the same bytes, one of them writing, have to run in their order in the plan. Nothing else is
needed: a plan's own dependencies also keep transfers from sharing a link, and here there is no link.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from typing import Generic, TypeVar

from einc_runtime.plan.regions import ByteOwners, ExecutablePlan, reads_of, span, writes_of
from einc_runtime.plan.schema import LOADED_ROLES, AnyTask, Block


def find_dependencies(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> tuple[tuple[int, ...], ...]:
    """For every task the earlier tasks that it must wait for, ascending; those that others imply may be left out."""
    sweep = _DependencySweep(bundle)
    return tuple(sweep.visit(number, task) for number, task in enumerate(tasks))


class _BufferAccesses:
    """The tasks that accessed a buffer since it has owned its bytes, each with its block.

    `before` are the tasks that used these bytes until then.
    """

    def __init__(self, before: tuple[int, ...]) -> None:
        self.reads: BlockIndex[int] = BlockIndex()
        self.writes: BlockIndex[int] = BlockIndex()
        self.before = before
        self._last: tuple[int, ...] | None = None

    def find_before_write(self, block: Block) -> set[int]:
        """The tasks that a task must wait for before it writes a block."""
        return find_tasks(self.writes, block) | find_tasks(self.reads, block) or set(self.before)

    def read(self, number: int, block: Block) -> None:
        self.reads.add(block, number)
        self._last = None

    def write(self, number: int, block: Block) -> None:
        """Whoever waits for this task has waited for all that it waits for, so those are forgotten."""
        for accesses in (self.reads, self.writes):
            for key in accesses.find_overlapping(block):
                if block.contains(accesses.entries[key][0]):
                    accesses.remove(key)
        self.writes.add(block, number)
        self._last = None

    def last_users(self, after: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """All tasks that use the buffer, without those that others of them wait for."""
        if self._last is None:
            tasks = {number for index in (self.reads, self.writes) for _, number in index.entries.values()}
            self._last = drop_implied(tasks or set(self.before), after)
        return self._last


class _DependencySweep:
    def __init__(self, bundle: ExecutablePlan) -> None:
        self.spans = [span(bundle, number) for number in range(len(bundle.buffers))]
        self.sites = [buffer.site for buffer in bundle.buffers]
        self.loaded = [buffer.role in LOADED_ROLES for buffer in bundle.buffers]
        self.places = _find_places(bundle, self.spans)
        self.owners: list[ByteOwners[int]] = [ByteOwners() for _ in bundle.memory]
        self.sole_owners: set[int] = set()  # the buffers that own all of their bytes
        self.accesses: dict[int, _BufferAccesses] = {}
        self.after: list[tuple[int, ...]] = []

    def visit(self, number: int, task: AnyTask) -> tuple[int, ...]:
        reads = [region for region in reads_of(task) if not self.loaded[region.buffer]]
        waits: set[int] = set()
        for region in reads:
            waits |= find_tasks(self._accesses_of(self.places[region.buffer]).writes, region.block)
        for region in writes_of(task):
            waits |= self._accesses_of(self.places[region.buffer]).find_before_write(region.block)
        for region in writes_of(task):
            self._accesses_of(self.places[region.buffer]).write(number, region.block)
        for region in reads:  # also if the buffer has just lost its bytes to one that the task writes
            self.accesses[self.places[region.buffer]].read(number, region.block)
        waits.discard(number)
        self.after.append(tuple(sorted(waits)))
        return self.after[-1]

    def _accesses_of(self, buffer: int) -> _BufferAccesses:
        """The accesses to a buffer; it takes its bytes from other buffers, and remembers the tasks that used those."""
        if buffer not in self.sole_owners:
            displaced = set(self.owners[self.sites[buffer]].claim(*self.spans[buffer], buffer))
            self.sole_owners -= displaced
            self.sole_owners.add(buffer)
            known = [self.accesses[loser] for loser in displaced if loser in self.accesses]
            users = {number for accesses in known for number in accesses.last_users(self.after)}
            self.accesses[buffer] = _BufferAccesses(drop_implied(users, self.after))
        return self.accesses[buffer]


def _find_places(bundle: ExecutablePlan, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each buffer the first one that lays out the same block in the same bytes: a state and what takes its place
    are one memory, of which each part of a task changes a part."""
    first: dict[object, int] = {}
    places = []
    for number, buffer in enumerate(bundle.buffers):
        tensor = bundle.tensors[buffer.tensor]
        key = (buffer.site, *spans[number], buffer.block, tensor.dtype, tensor.order)
        places.append(first.setdefault(key, number))
    return places


def find_tasks(accesses: BlockIndex[int], block: Block) -> set[int]:
    """The tasks that accessed a part of a block."""
    return {accesses.entries[key][1] for key in accesses.find_overlapping(block)}


def drop_implied(tasks: set[int], after: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The tasks without those that others of them wait for; `after` is known of all tasks but the last."""
    implied = set().union(*(after[number] for number in tasks if number < len(after)))
    return tuple(sorted(tasks - implied))


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
