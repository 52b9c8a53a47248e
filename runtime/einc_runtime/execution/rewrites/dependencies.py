"""Finds what tasks have to wait for where all sites share one memory: earlier tasks that touch the same bytes.

Any two tasks that touch the same bytes, one of them writing, have to run in their order in the plan. Nothing else is
needed: a plan's own dependencies also keep transfers from sharing a link, and here there is no link.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.plan.block_index import BlockIndex
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
