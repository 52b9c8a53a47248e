"""The memory plan: an offset for every buffer, and the dependencies that make reuse safe in every schedule.

Inputs, weights and results have bytes of their own at the bottom of their site's arena. A scratch buffer lives from
the first task that writes it to the last that touches it, in the order of positions, and may take the bytes of
buffers that are dead by then. Since tasks run in any order that dependencies allow, everything that touched the old
buffer last must then come before everything that writes the new one; a fence stands between where both are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc.physical.arena import Arena, aligned
from einc.physical.program import Buffer, BufferRole, Task, TaskKind


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The tasks with all dependencies (positions renumbered), and where buffers lie.

    `kept[s]` are the bytes of site s that are never reused, at the bottom of its arena of `sizes[s]` bytes; `peaks[s]`
    names the operator or output at which the arena grew to that size ("" where it never grew above `kept[s]`).
    """

    tasks: tuple[Task, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    peaks: tuple[str, ...]


def plan_memory(buffers: Sequence[Buffer], tasks: Sequence[Task], sites: int) -> MemoryPlan:
    """Places all buffers; arenas are as large as they need to be."""
    offsets = [0] * len(buffers)
    bottoms = [0] * sites
    for b, buffer in enumerate(buffers):
        if buffer.role is not BufferRole.SCRATCH:
            offsets[b] = bottoms[buffer.site]
            bottoms[buffer.site] += aligned(buffer.size_bytes)
    uses = _uses(buffers, tasks)
    arenas, peaks = [Arena(bottom) for bottom in bottoms], [""] * sites
    begins: dict[int, list[int]] = {}
    for b, use in enumerate(uses):
        if use is not None:
            begins.setdefault(use.writers[0], []).append(b)
    ends: dict[int, list[int]] = {}
    ordering = _Ordering(tasks, uses)
    for position, task in enumerate(tasks):
        for b in begins.get(position, ()):
            site, size, use = buffers[b].site, aligned(buffers[b].size_bytes), uses[b]
            assert use is not None
            top = arenas[site].top
            offsets[b], evicted = arenas[site].allocate(size, b)
            if arenas[site].top > top:
                peaks[site] = task.node
            ordering.separate(evicted, b, site)
            ends.setdefault(use.last, []).append(b)
        for b in ends.pop(position, ()):
            arenas[buffers[b].site].release(offsets[b], aligned(buffers[b].size_bytes))
    sizes = tuple(arena.top for arena in arenas)
    return MemoryPlan(ordering.tasks(), tuple(offsets), sizes, tuple(bottoms), tuple(peaks))


@dataclass(frozen=True, slots=True)
class _Use:
    """The tasks that write and read a scratch buffer, ascending, without repetitions."""

    writers: tuple[int, ...]
    readers: tuple[int, ...]

    @property
    def last(self) -> int:
        return max(self.writers[-1], self.readers[-1] if self.readers else 0)


def _uses(buffers: Sequence[Buffer], tasks: Sequence[Task]) -> list[_Use | None]:
    """By buffer; None for those that are never reused."""
    writers: list[list[int]] = [[] for _ in buffers]
    readers: list[list[int]] = [[] for _ in buffers]
    for position, task in enumerate(tasks):
        for regions, table in ((task.reads, readers), (task.writes, writers)):
            for region in regions:
                users = table[region.buffer]
                if not users or users[-1] != position:
                    users.append(position)
    scratch = [buffer.role is BufferRole.SCRATCH for buffer in buffers]
    return [
        _Use(tuple(w), tuple(r)) if own else None for own, w, r in zip(scratch, writers, readers, strict=True)
    ]  # fmt: skip


class _Ordering:
    """The dependencies of all tasks, with those that reuse of memory adds."""

    def __init__(self, tasks: Sequence[Task], uses: Sequence[_Use | None]) -> None:
        self._tasks = tasks
        self._uses = uses
        self._after: list[set[int]] = [set(task.after) for task in tasks]
        self._fences: dict[int, list[tuple[int, set[int]]]] = {}  # in front of a task: (site, what it waits for)
        self._behind: dict[int, list[tuple[int, int]]] = {}  # of a task: the fences (task in front, number there)

    def separate(self, evicted: Sequence[int], buffer: int, site: int) -> None:
        """Lets every write of `buffer` wait for the last uses of the evicted ones."""
        use = self._uses[buffer]
        assert use is not None
        before = {task for other in evicted for task in self._last_uses(other)}
        if len(before) > 1 and len(use.writers) > 1:
            first = use.writers[0]
            fences = self._fences.setdefault(first, [])
            fences.append((site, before))
            for writer in use.writers:
                self._behind.setdefault(writer, []).append((first, len(fences) - 1))
        else:
            for writer in use.writers:
                self._after[writer] |= before

    def _last_uses(self, buffer: int) -> set[int]:
        """The uses of a buffer that come before no other use of it, as far as direct dependencies tell."""
        use = self._uses[buffer]
        assert use is not None
        found = {*use.writers, *use.readers}
        for reader in use.readers:
            for task in self._tasks[reader].after:
                found.discard(task)
                if self._tasks[task].kind is TaskKind.FENCE:
                    found.difference_update(self._tasks[task].after)
        return found

    def tasks(self) -> tuple[Task, ...]:
        """All tasks in order, fences put in, without dependencies that one step of others implies."""
        number: list[int] = []
        fence_number: dict[tuple[int, int], int] = {}
        result: list[Task] = []

        def append(old: Task, after: set[int]) -> int:
            thin = tuple(sorted(after.difference(*(result[before].after for before in after))))
            result.append(
                Task(old.kind, old.site, old.node, old.reads, old.writes, thin, old.function, old.aggregation)
            )
            return len(result) - 1

        for position, task in enumerate(self._tasks):
            for k, (site, before) in enumerate(self._fences.get(position, ())):
                fence = Task(TaskKind.FENCE, site, task.node)
                fence_number[position, k] = append(fence, {number[other] for other in before})
            after = {number[other] for other in self._after[position]}
            after.update(fence_number[fence] for fence in self._behind.get(position, ()))
            number.append(append(task, after))
        return tuple(result)
