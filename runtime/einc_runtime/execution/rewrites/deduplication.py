"""De-duplication: what several sites that share one memory gather or compute alike, one of them does for all.

Buffers of one block hold the same values if their parts are moved from the same regions, or if tasks of one operation
compute them from the same regions. Readers of the later buffers read the earliest one instead, and the tasks that write
the later ones become fences. Buffers are compared in the order in which they are complete, so that what follows from
equal buffers is found to be equal, too.

A state that several sites have is equal if they write over it alike: it was loaded alike, and each run leaves it equal.
Then one site writes over it, and the executor lays the others' buffers over that one's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from einc_runtime.execution.rewrites.copy_elision import replace_reads
from einc_runtime.execution.rewrites.lifetimes import Lifetimes
from einc_runtime.plan.boxes import are_disjoint
from einc_runtime.plan.regions import ExecutablePlan, find_output_buffers, is_loaded, reads_of, writes_of
from einc_runtime.plan.schema import (
    AggregateTask,
    AnyTask,
    Block,
    CopyTask,
    FenceTask,
    KernelTask,
    Region,
    TransferTask,
)
from einc_runtime.plan.states import STATE


def deduplicate(bundle: ExecutablePlan, tasks: Sequence[AnyTask], *, merge_states: bool = False) -> tuple[AnyTask, ...]:
    """The tasks of a bundle, some of them rewritten before, with less gathered and computed more than once. With
    `merge_states`, the executor lays states over each other where only one is written (`find_merged_states`)."""
    return _Deduplication(bundle, tasks, merge_states).run()


def find_merged_states(bundle: ExecutablePlan, tasks: Iterable[AnyTask]) -> dict[int, int]:
    """For each buffer of a state that these tasks do not write over any more, that of the equal one that they do, and
    the same for what is written over it."""
    written = {region.buffer for task in tasks for region in writes_of(task)}
    results = {
        (buffer.site, buffer.offset): number
        for number, buffer in enumerate(bundle.buffers)
        if buffer.role == STATE and not is_loaded(bundle, number)
    }
    states = {
        number: results[buffer.site, buffer.offset]
        for number, buffer in enumerate(bundle.buffers)
        if buffer.role == STATE and is_loaded(bundle, number)
    }
    kept: dict[tuple[int, Block], int] = {}
    for state, result in states.items():
        if result in written:
            kept.setdefault((bundle.buffers[state].tensor, bundle.buffers[state].block), state)
    merged: dict[int, int] = {}
    for state, result in states.items():
        if result not in written:
            first = kept[bundle.buffers[state].tensor, bundle.buffers[state].block]
            merged |= {state: first, result: states[first]}
    return merged


@dataclass(frozen=True, slots=True)
class _WrittenBuffers:
    """Buffers that some tasks write, which write nothing else; nobody else writes them."""

    buffers: tuple[int, ...]
    writers: tuple[int, ...]


class _Deduplication:
    def __init__(self, bundle: ExecutablePlan, tasks: Sequence[AnyTask], merge_states: bool) -> None:
        self.bundle, self.tasks, self.changed = bundle, tasks, list(tasks)
        self.merge_states = merge_states
        self.lifetimes, self.saved = Lifetimes(bundle, tasks), find_output_buffers(bundle)
        self.same: dict[int, int] = {}
        """Buffer -> the buffer that is read in its place; for loaded buffers, the first with the same block."""
        self.same_states: dict[int, int] = {}
        """State -> the first one with the same block, which it equals if both are written over alike."""
        loaded: dict[tuple[int, Block], int] = {}
        for number, buffer in enumerate(bundle.buffers):
            if is_loaded(bundle, number):
                same = self.same_states if buffer.role == STATE else self.same
                same[number] = loaded.setdefault((buffer.tensor, buffer.block), number)

    def run(self) -> tuple[AnyTask, ...]:
        known: dict[Hashable, _WrittenBuffers] = {}
        for written in sorted(self._list_written(), key=lambda group: (group.writers[-1], group.buffers)):
            recipe = self._find_recipe(written)
            first = written if recipe is None else known.setdefault(recipe, written)
            if first is not written and self._can_replace(written, first):
                self._replace(written, first)
        return tuple(self.changed)

    def _list_written(self) -> Iterator[_WrittenBuffers]:
        for buffer, writers in self.lifetimes.writers.items():
            if all(only_moves(self.tasks[number], buffer) for number in writers):
                yield _WrittenBuffers((buffer,), tuple(writers))
                continue
            task = self.tasks[writers[0]]
            buffers = [region.buffer for region in writes_of(task)]
            computed = (
                isinstance(task, KernelTask | AggregateTask)
                and buffers[0] == buffer
                and len({*buffers}) == len(buffers)
            )
            if computed and all(len(self.lifetimes.writers[each]) == 1 for each in buffers):
                yield _WrittenBuffers(tuple(buffers), (writers[0],))

    def _find_recipe(self, written: _WrittenBuffers) -> Hashable | None:
        """What the buffers hold. None where one loses bytes before it is complete, or where sources still change."""
        first, last = written.writers[0], written.writers[-1]
        if any(self.lifetimes.loses_bytes(buffer, first, last) for buffer in written.buffers):
            return None
        reads = [region for number in written.writers for region in reads_of(self.changed[number])]
        if any(self._changes_after(region.buffer, first) for region in reads):
            return None
        records = [self.bundle.buffers[buffer] for buffer in written.buffers]
        held = tuple((record.tensor, record.block) for record in records)
        task = self.changed[first]
        if isinstance(task, KernelTask):
            return held, task.operation, self._name_sources(task), tuple(region.block for region in task.writes)
        if isinstance(task, AggregateTask):
            return held, task.aggregation, self._name_sources(task), tuple(region.block for region in task.writes)
        moved = [self.changed[number] for number in written.writers]
        parts = [
            (write.block, read)
            for move in moved
            for write, read in zip(writes_of(move), self._name_sources(move), strict=True)
        ]
        if not are_disjoint([block for block, _ in parts]):
            return None
        return held, tuple(sorted(parts, key=lambda part: (part[0].lower, part[0].upper)))

    def _name_sources(self, task: AnyTask) -> tuple[Region, ...]:
        """What a task reads, in the buffers that stand for all with the same values."""
        regions = [Region(self.same.get(region.buffer, region.buffer), region.block) for region in reads_of(task)]
        if self.merge_states and self._writes_over_state(task):
            regions[0] = Region(self.same_states[regions[0].buffer], regions[0].block)
        return tuple(regions)

    def _writes_over_state(self, task: AnyTask) -> bool:
        """Whether the first thing that a task reads is a state that it writes over."""
        return isinstance(task, KernelTask) and self.bundle.buffers[task.writes[0].buffer].role == STATE

    def _changes_after(self, buffer: int, number: int) -> bool:
        """Whether a buffer is written by this task or by a later one."""
        writers = self.lifetimes.writers.get(buffer)
        return writers is not None and writers[-1] >= number

    def _can_replace(self, written: _WrittenBuffers, first: _WrittenBuffers) -> bool:
        readers = [self.lifetimes.readers[buffer] for buffer in written.buffers]
        if not any(readers) or self._must_last(written) or self.saved.intersection(written.buffers):
            return False
        return all(
            not numbers or self._can_serve(buffer, numbers)
            for buffer, numbers in zip(first.buffers, readers, strict=True)
        )

    def _must_last(self, written: _WrittenBuffers) -> bool:
        """Whether what lies at a state's bytes is needed there: the next run, or another task, reads the state."""
        if all(self.bundle.buffers[buffer].role != STATE for buffer in written.buffers):
            return False
        number = written.writers[0]
        state = reads_of(self.tasks[number])[0].buffer
        return not self.merge_states or self.lifetimes.readers[state] != [number]

    def _can_serve(self, buffer: int, readers: Sequence[int]) -> bool:
        """Whether the buffer is complete before all of these readers, and keeps its bytes until the last of them."""
        complete = self.lifetimes.writers[buffer][-1]
        return complete < readers[0] and not self.lifetimes.loses_bytes(buffer, complete, readers[-1])

    def _replace(self, written: _WrittenBuffers, first: _WrittenBuffers) -> None:
        for replaced, kept in zip(written.buffers, first.buffers, strict=True):
            self.same[replaced] = kept
            for number in self.lifetimes.readers[replaced]:
                reads = (Region(kept, r.block) if r.buffer == replaced else r for r in reads_of(self.changed[number]))
                self.changed[number] = replace_reads(self.changed[number], tuple(reads))
        for number in written.writers:
            task = self.tasks[number]
            self.changed[number] = FenceTask(task.site, task.serves, task.after)


def only_moves(task: AnyTask, buffer: int) -> bool:
    """Whether the task moves something into the buffer, and does nothing else."""
    return isinstance(task, TransferTask | CopyTask) and all(region.buffer == buffer for region in writes_of(task))
