"""Finds what tasks have to wait for where all sites share one memory: earlier tasks that touch the same bytes.

Any two tasks that touch the same bytes, one of them writing, have to run in their order in the plan. Nothing else is
needed: a plan's own dependencies also keep transfers from sharing a link, and here there is no link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from einc_runtime.plan.regions import ByteOwners, ExecutablePlan, reads_of, span, writes_of
from einc_runtime.plan.schema import LOADED_ROLES, AnyTask, Block

Access = tuple[int, Block]


def find_dependencies(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> tuple[tuple[int, ...], ...]:
    """For every task the earlier tasks that it must wait for, ascending; those that others imply may be left out."""
    sweep = _DependencySweep(bundle)
    return tuple(sweep.visit(number, task) for number, task in enumerate(tasks))


@dataclass(slots=True)
class _BufferAccesses:
    """The accesses to a buffer since it has owned its bytes; `before`: the tasks that used these bytes until then."""

    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)
    before: tuple[int, ...] = ()

    def tasks(self) -> set[int]:
        """All tasks that use the buffer."""
        return {number for number, _ in (*self.reads, *self.writes)}


class _DependencySweep:
    def __init__(self, bundle: ExecutablePlan) -> None:
        self.spans = [span(bundle, number) for number in range(len(bundle.buffers))]
        self.sites = [buffer.site for buffer in bundle.buffers]
        self.loaded = [buffer.role in LOADED_ROLES for buffer in bundle.buffers]
        self.owners: list[ByteOwners[int]] = [ByteOwners() for _ in bundle.memory]
        self.whole: set[int] = set()  # the buffers that own all of their bytes
        self.accesses: dict[int, _BufferAccesses] = {}
        self.after: list[tuple[int, ...]] = []

    def visit(self, number: int, task: AnyTask) -> tuple[int, ...]:
        reads = [region for region in reads_of(task) if not self.loaded[region.buffer]]
        waits: set[int] = set()
        for region in reads:
            waits.update(_find_overlapping(self._accesses_of(region.buffer).writes, region.block))
        for region in writes_of(task):
            own = self._accesses_of(region.buffer)
            overlapping = _find_overlapping(own.writes, region.block) | _find_overlapping(own.reads, region.block)
            waits |= overlapping or set(own.before)
        for region in writes_of(task):
            own = self._accesses_of(region.buffer)
            own.reads = [access for access in own.reads if not region.block.contains(access[1])]
            own.writes = [access for access in own.writes if not region.block.contains(access[1])]
            own.writes.append((number, region.block))
        for region in reads:  # also if the buffer has just lost its bytes to one that the task writes
            self.accesses[region.buffer].reads.append((number, region.block))
        waits.discard(number)
        self.after.append(tuple(sorted(waits)))
        return self.after[-1]

    def _accesses_of(self, buffer: int) -> _BufferAccesses:
        """The accesses to a buffer; it takes its bytes from other buffers, and remembers the tasks that used those."""
        if buffer not in self.whole:
            displaced = set(self.owners[self.sites[buffer]].claim(*self.spans[buffer], buffer))
            self.whole -= displaced
            self.whole.add(buffer)
            before = set().union(*(self.accesses[other].tasks() for other in displaced if other in self.accesses))
            self.accesses[buffer] = _BufferAccesses(before=self._drop_implied(before))
        return self.accesses[buffer]

    def _drop_implied(self, tasks: set[int]) -> tuple[int, ...]:
        """The tasks without those that others of them wait for."""
        implied = set().union(*(self.after[number] for number in tasks if number < len(self.after)))
        return tuple(sorted(tasks - implied))


def _find_overlapping(accesses: Iterable[Access], block: Block) -> set[int]:
    return {number for number, other in accesses if other.overlaps(block)}
