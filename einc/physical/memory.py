"""The memory plan: offsets of buffers, and dependencies that make the reuse of memory safe in every order of tasks.

Inputs, weights, states and results have bytes of their own at the bottom of their site's arena. A scratch buffer lives
from the first task that writes it to the last that touches it, in the order of positions, and may take the bytes of
buffers that are dead by then. Since tasks run in any order that dependencies allow, everything that touched the old
buffer last must then come before everything that writes the new one; a fence stands between where both are several.

Of equal layers, scratch buffers that live from one layer to the next lie apart from the others. So no layer leaves
bytes in use among those that the next one takes, and all layers get the same offsets, but for a few at either end. What
a layer of a training step leaves for its gradients, or these for its update, has bytes of its own, layer by layer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from einc.errors import CapacityError
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc_runtime.plan.record import Section
from einc_runtime.plan.regions import ByteOwners, reads_of, writes_of
from einc_runtime.plan.repetition import find_copied
from einc_runtime.plan.schema import ITEMSIZE, AnyTask, Buffer, FenceTask, Tensor
from einc_runtime.text import format_memory

ALIGNMENT = 64
"""Offsets are multiples of this, so that no two buffers share a cache line."""


def align(size: int) -> int:
    """The least multiple of ALIGNMENT that is not below `size`, and not 0."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT


class ArenaAllocator:
    """Best-fit allocation above `base`; ties take the lowest offset. `top` is the first byte never used."""

    def __init__(self, base: int) -> None:
        self.top = base
        self._free: list[tuple[int, int]] = []  # (start, end), ascending, apart from each other, below top
        self._owners: ByteOwners[int] = ByteOwners()

    def allocate(self, size: int, buffer: int) -> tuple[int, tuple[int, ...]]:
        """An offset for `size` bytes (aligned), and the earlier buffers whose bytes these were."""
        best: tuple[int, int] | None = None
        for start, end in self._free:
            if end - start >= size and (best is None or (end - start, start) < best):
                best = (end - start, start)
        if best is not None:
            start = best[1]
            self._take(start, start + size)
        else:
            start = self.top
            if self._free and self._free[-1][1] == self.top:
                start = self._free.pop()[0]
            self.top = start + size
        return start, tuple(dict.fromkeys(self._owners.claim(start, start + size, buffer)))

    def release(self, start: int, size: int) -> None:
        """Frees bytes."""
        at = bisect_left(self._free, (start, start))
        end = start + size
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at > 0 and self._free[at - 1][1] == start:
            start = self._free.pop(at - 1)[0]
        insort(self._free, (start, end))

    def _take(self, start: int, end: int) -> None:
        at = bisect_right(self._free, (start, self.top)) - 1
        first, last = self._free.pop(at)
        if end < last:
            self._free.insert(at, (end, last))
        if first < start:
            self._free.insert(at, (first, start))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The tasks with all dependencies (positions renumbered), and the buffers with their offsets.

    `kept[s]` are the bytes of site s that are never reused, at the bottom of its arena of `sizes[s]` bytes; `peaks[s]`
    names the operator or output at which the arena grew to that size ("" where it never grew above `kept[s]`).
    `layers` are the tasks of layers, and `stacked` the scratch buffers that have bytes of their own in each.
    """

    tasks: tuple[AnyTask, ...]
    buffers: tuple[Buffer, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    peaks: tuple[str, ...]
    layers: tuple[Section, ...]
    stacked: frozenset[int]


@dataclass(frozen=True, slots=True)
class BuiltLayers:
    """The layers of a program in which others are left out: where they are among its tasks and buffers.

    Behind the layers that come before those, memory is kept for `left_out` more like the last of them; `head` says
    which that is (`Repetition`).
    """

    tasks: tuple[Section, ...]
    buffers: tuple[Section, ...]
    head: int
    left_out: int

    def stack(
        self, numbers: Iterable[int], buffers: Sequence[Buffer], sizes: Sequence[int], offsets: list[int],
        bottoms: list[int],
    ) -> None:  # fmt: skip
        """Gives these buffers, ascending, bytes of their own above `bottoms`, which grow."""
        copied = [find_copied(section, self.head) for section in self.buffers]
        begins, ends = {layer.first for layer in copied}, {layer.end for layer in copied}
        before, marks = bottoms.copy(), iter([*sorted(begins | ends), len(buffers)])
        mark = next(marks)

        def pass_marks(b: int) -> None:
            nonlocal mark, before
            while b >= mark and mark < len(buffers):
                if mark in ends:
                    bottoms[:] = [
                        end + self.left_out * (end - start) for start, end in zip(before, bottoms, strict=True)
                    ]
                before = bottoms.copy()
                mark = next(marks)

        for b in numbers:
            pass_marks(b)
            offsets[b] = bottoms[buffers[b].site]
            bottoms[buffers[b].site] += sizes[b]
        pass_marks(len(buffers))

    def find_stacked(self, uses: Sequence[_Use | None]) -> frozenset[int]:
        """The scratch buffers that a run of layers leaves for another one, or that many layers read: were their bytes
        used again, what does so would wait for all these layers."""
        if len(self.tasks) < 2:
            return frozenset()
        firsts = [section.starts[0] for section in self.tasks]

        def find_part(task: int) -> tuple[int, int]:
            """The section, or that before a gap, and the number of the layer there."""
            s = bisect_right(firsts, task) - 1
            starts = self.tasks[s].starts if s >= 0 else (0,)
            inside = s >= 0 and task < starts[-1]
            return (2 * s + 1, bisect_right(starts, task)) if inside else (2 * s + 2, 0)

        stacked: set[int] = set()
        for b, use in enumerate(uses):
            if use is not None:
                (first, layer), (last, last_layer) = find_part(use.writers[0]), find_part(use.last)
                if first != last or last_layer - layer > 1:
                    stacked.add(b)
        return frozenset(stacked)


def plan_memory(
    tensors: Sequence[Tensor],
    buffers: Sequence[Buffer],
    tasks: Sequence[AnyTask],
    sites: int,
    joined: Mapping[int, int],
    aliases: Mapping[int, int] = MappingProxyType({}),
    layers: BuiltLayers | None = None,
    begins: Mapping[int, int] = MappingProxyType({}),
) -> MemoryPlan:
    """Places all buffers; arenas are as large as they need to be.

    `joined` names tasks, by position, that one kernel may run together with a later task: what they read stays until
    the later task has written, so that the kernel does not write over what it reads. `aliases` has the buffers that lie
    at the bytes of another one, which stands before them. `begins` has buffers that may be written before their first
    writer, when the task at this position begins.
    """
    sizes = [align(buffer.block.size * ITEMSIZE[tensors[buffer.tensor].dtype]) for buffer in buffers]
    offsets = [0] * len(buffers)
    bottoms = [0] * sites
    layers = layers or BuiltLayers((), (), 0, 0)
    kept = [b for b, buffer in enumerate(buffers) if buffer.role != "scratch" and b not in aliases]
    layers.stack(kept, buffers, sizes, offsets, bottoms)
    for b, old in aliases.items():
        offsets[b] = offsets[old]
    uses = _collect_uses(buffers, tasks, joined, begins)
    stacked = layers.find_stacked(uses)
    tops = bottoms.copy()
    layers.stack(sorted(stacked), buffers, sizes, offsets, tops)
    starts = [start for section in layers.tasks for start in section.starts]
    peaks = [""] * sites
    ordering = _Dependencies(tasks, uses)
    passing = [None if b in stacked else use for b, use in enumerate(uses)]
    for group in _group_uses(passing, starts):
        arenas = [ArenaAllocator(top) for top in tops]
        ends: dict[int, list[int]] = {}
        for position, task in enumerate(tasks):
            for b in group.get(position, ()):
                site, use = buffers[b].site, uses[b]
                assert use is not None
                top = arenas[site].top
                offsets[b], evicted = arenas[site].allocate(sizes[b], b)
                if arenas[site].top > top:
                    peaks[site] = task.serves
                ordering.separate(evicted, b, site)
                ends.setdefault(use.last, []).append(b)
            for b in ends.pop(position, ()):
                arenas[buffers[b].site].release(offsets[b], sizes[b])
        tops = [arena.top for arena in arenas]
    placed = tuple(
        [
            Buffer(buffer.site, offset, buffer.tensor, buffer.block, buffer.role)
            for buffer, offset in zip(buffers, offsets, strict=True)
        ]
    )
    ordered, first = ordering.order(starts)
    ordered_starts = iter(first)
    sections = tuple(
        Section(tuple([next(ordered_starts) for _ in section.starts]), section.backwards) for section in layers.tasks
    )
    return MemoryPlan(ordered, placed, tuple(tops), tuple(bottoms), tuple(peaks), sections, stacked)


@dataclass(frozen=True, slots=True)
class _Use:
    """The tasks that write and read a scratch buffer, ascending, without repetitions, and from which to which its bytes
    are its own."""

    writers: tuple[int, ...]
    readers: tuple[int, ...]
    first: int
    last: int


def _collect_uses(
    buffers: Sequence[Buffer], tasks: Sequence[AnyTask], joined: Mapping[int, int], begins: Mapping[int, int]
) -> list[_Use | None]:
    """The uses of every buffer; None for buffers that are never reused."""
    last = [0] * len(buffers)
    writers: list[list[int]] = [[] for _ in buffers]
    readers: list[list[int]] = [[] for _ in buffers]
    for position, task in enumerate(tasks):
        for region in reads_of(task):
            users = readers[region.buffer]
            if not users or users[-1] != position:
                users.append(position)
            last[region.buffer] = max(last[region.buffer], joined.get(position, position))
        for region in writes_of(task):
            users = writers[region.buffer]
            if not users or users[-1] != position:
                users.append(position)
            last[region.buffer] = max(last[region.buffer], position)
    return [
        _Use(tuple(w), tuple(r), min(w[0], begins.get(b, w[0])), end) if buffer.role == "scratch" else None
        for b, (buffer, w, r, end) in enumerate(zip(buffers, writers, readers, last, strict=True))
    ]


def _group_uses(uses: Sequence[_Use | None], starts: Sequence[int]) -> list[dict[int, list[int]]]:
    """The scratch buffers by the task from which they live: those that live from a layer to the next, and all others.
    `starts` are the first tasks of layers."""
    crossing: dict[int, list[int]] = {}
    inside: dict[int, list[int]] = {}
    for b, use in enumerate(uses):
        if use is not None:
            crosses = bisect_right(starts, use.first) != bisect_right(starts, use.last)
            (crossing if crosses else inside).setdefault(use.first, []).append(b)
    return [crossing, inside] if starts else [inside]


class _Dependencies:
    """The dependencies of all tasks, and those that the reuse of memory adds."""

    def __init__(self, tasks: Sequence[AnyTask], uses: Sequence[_Use | None]) -> None:
        self._tasks = tasks
        self._uses = uses
        self._added: dict[int, set[int]] = {}  # by task: what it waits for beside its own dependencies
        self._last: dict[int, set[int]] = {}  # by buffer
        self._fences: dict[int, list[tuple[int, set[int]]]] = {}  # in front of a task: (site, what it waits for)
        self._behind: dict[int, list[tuple[int, int]]] = {}  # of a task: the fences (task in front, number there)

    def separate(self, evicted: Sequence[int], buffer: int, site: int) -> None:
        """Makes every write of `buffer` wait for the last uses of the evicted buffers."""
        use = self._uses[buffer]
        assert use is not None
        before = {task for evicted_buffer in evicted for task in self._last_uses(evicted_buffer)}
        if len(before) > 1 and len(use.writers) > 1:
            first = use.writers[0]
            fences = self._fences.setdefault(first, [])
            fences.append((site, before))
            for writer in use.writers:
                self._behind.setdefault(writer, []).append((first, len(fences) - 1))
        else:
            for writer in use.writers:
                self._added.setdefault(writer, set()).update(before)

    def _last_uses(self, buffer: int) -> set[int]:
        """The uses of a buffer that no other use of it depends on directly."""
        if buffer not in self._last:
            self._last[buffer] = self._find_last_uses(buffer)
        return self._last[buffer]

    def _find_last_uses(self, buffer: int) -> set[int]:
        use = self._uses[buffer]
        assert use is not None
        last_uses = {*use.writers, *use.readers}
        for reader in use.readers:
            for task in self._tasks[reader].after:
                last_uses.discard(task)
                if isinstance(self._tasks[task], FenceTask):
                    last_uses.difference_update(self._tasks[task].after)
        return last_uses

    def order(self, starts: Sequence[int] = ()) -> tuple[tuple[AnyTask, ...], tuple[int, ...]]:
        """All tasks in order, with the fences, without dependencies that another dependency implies directly; and where
        the tasks at `starts` are in this order, with the fences in front of them."""
        number: list[int] = []
        fence_number: dict[tuple[int, int], int] = {}
        result: list[AnyTask] = []

        def append(old: AnyTask, after: Collection[int]) -> int:
            if len(after) > 1:
                implied = set().union(*[result[before].after for before in after])
                after = [before for before in after if before not in implied] if implied else after
            thin = tuple(sorted(after))
            result.append(old if thin == old.after else msgspec.structs.replace(old, after=thin))
            return len(result) - 1

        for position, task in enumerate(self._tasks):
            for k, (site, before) in enumerate(self._fences.get(position, ())):
                fence = FenceTask(site, task.serves, ())
                fence_number[position, k] = append(fence, {number[earlier] for earlier in before})
            after: Collection[int] = task.after
            if position in self._added:
                after = self._added[position].union(after)
            if fence_number:
                after = {number[earlier] for earlier in after}
                after.update(fence_number[fence] for fence in self._behind.get(position, ()))
            number.append(append(task, after))
        number.append(len(result))
        return tuple(result), tuple(number[start] - len(self._fences.get(start, ())) for start in starts)


def check_capacity(plan: LogicalPlan, machine: Machine, tensors: Sequence[Tensor], memory: MemoryPlan) -> None:
    """Raises CapacityError for the site that lacks most, naming the operator at which its memory peaks."""
    lacking = [needed - machine.sites[site].memory_bytes for site, needed in enumerate(memory.sizes)]
    site = max(range(plan.sites), key=lambda s: (lacking[s], -s))
    if lacking[site] <= 0:
        return
    needed, kept, available = memory.sizes[site], memory.kept[site], machine.sites[site].memory_bytes
    name = memory.peaks[site] or _find_heaviest_reader(plan, tensors, memory.buffers, site)
    span = next((node.span for node in plan.graph.nodes if node.name == name), None)
    limited = machine.memory_limit is not None and machine.memory_limit <= available
    allowed = "may take" if limited else "has"
    least = plan.memory_points[0].memory if plan.memory_points else 0
    known = f"; the smallest plan found needs {format_memory(least)} per site" if least > available else ""
    larger = "a larger --memory" if limited else "a machine with more memory"
    raise CapacityError(
        f"{name}: site {site} of {machine.name} would need {format_memory(needed)} of memory ({format_memory(kept)} "
        f"for inputs, weights and results, {format_memory(needed - kept)} for values in between) and {allowed} "
        f"{format_memory(available)}: {format_memory(lacking[site])} too little{known}",
        where=span,
        hint=f"more devices (--devices), {larger}, a smaller dtype or smaller dims would help",
    )


def _find_heaviest_reader(plan: LogicalPlan, tensors: Sequence[Tensor], buffers: Sequence[Buffer], site: int) -> str:
    """The first operator that reads the largest tensor kept at a site (the tensor itself, where none does)."""
    sizes: Counter[str] = Counter()
    for buffer in buffers:
        if buffer.site == site and buffer.role != "scratch":
            tensor = tensors[buffer.tensor]
            sizes[tensor.name] += buffer.block.size * ITEMSIZE[tensor.dtype]
    largest = max(sorted(sizes), key=lambda name: sizes[name])
    return next((node.name for node in plan.graph.nodes if largest in (*node.inputs, *node.outputs)), largest)
