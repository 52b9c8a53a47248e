"""Which tasks have ended before a task starts: reachability in the task graph, computed in the order of positions.

The ancestors of a task are a set of positions. It is kept as chunks, each with the bits of `CHUNK_POSITIONS` positions.
Most ancestors of neighbouring tasks are the same, so a union takes over every chunk that one of its operands has
already, and sets of many tasks share these chunks. A task then costs little more than its last chunks: time and memory
are nearly linear in the number of tasks, where the sets of all tasks are quadratic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import AnyTask, FenceTask

CHUNK_POSITIONS = 1 << 14
"""Positions in a chunk."""

POINTER = 8
"""The bytes that a set needs for a chunk that it shares."""

MAX_TRAFFIC = 1 << 38
"""The most bytes of sets that are united: about a minute."""

MAX_LIVE = 2 << 30
"""The most bytes of sets that are kept at a time."""

Positions = tuple[int, ...]
"""A set of positions: the bits of each chunk, without empty chunks at the end."""


class TaskAncestors:
    """The ancestors of one task after another.

    A set is kept until the last task that depends directly on its task. Raises PlanFault where the graph would take too
    much time or memory (some million tasks).
    """

    def __init__(self, tasks: Sequence[AnyTask]) -> None:
        self._tasks = tasks
        self._last_use: dict[int, int] = {before: i for i, task in enumerate(tasks) for before in task.after}
        self._kept: dict[int, tuple[Positions, int]] = {}  # each with the bytes that it takes beside shared chunks
        self._after: tuple[int, ...] = ()  # what the current task waits for directly
        self._current: Positions = ()
        self._traffic = 0
        self._live = 0

    def enter(self, position: int) -> None:
        """Moves on to the next task; positions must come in ascending order without gaps."""
        after, kept, last_use = self._tasks[position].after, self._kept, self._last_use
        ancestors: Positions = ()
        added = 0
        for before in after[::-1]:  # later tasks have larger sets, which earlier ones may be part of
            if last_use[before] > position:
                inherited = kept[before][0]
            else:
                inherited, size = kept.pop(before)
                self._live -= size
            ancestors, new_bytes = unite(ancestors, inherited)
            added += new_bytes
            self._traffic += POINTER * len(inherited)
        self._traffic += added
        if self._traffic > MAX_TRAFFIC:
            message = f"{len(self._tasks)} tasks with these dependencies are too many to prove"
            raise PlanFault(message, where="tasks")
        self._current = ancestors
        self._after = after
        if position in last_use:
            own_set = insert(ancestors, position)
            size = added + POINTER * len(own_set) + CHUNK_POSITIONS // 8
            kept[position] = own_set, size
            self._live += size
            if self._live > MAX_LIVE:
                raise PlanFault("the tasks that wait on one another are too many to prove", where=f"tasks[{position}]")

    def find_fences(self) -> list[int]:
        """The fences that the current task waits for directly, and that later tasks wait for as well."""
        return [n for n in self._after if n in self._kept and isinstance(self._tasks[n], FenceTask)]

    def ended(self, position: int) -> bool:
        """Whether the task at `position` has ended in every run when the current task starts."""
        if position in self._after:
            return True
        number, bit = divmod(position, CHUNK_POSITIONS)
        return number < len(self._current) and self._current[number] >> bit & 1 == 1

    def unfinished(self, positions: Iterable[int]) -> list[int]:
        """Those of the tasks at `positions` that may not have ended when the current task starts."""
        return _absent(positions, self._current)

    def comes_after(self, fence: int, positions: Iterable[int]) -> bool:
        """Whether `fence`, one of `find_fences`, comes after all of these tasks."""
        return not _absent(positions, self._kept[fence][0])


def unite(larger: Positions, smaller: Positions) -> tuple[Positions, int]:
    """The union of two sets, and the bytes of those of its chunks that neither of the two has."""
    if len(larger) < len(smaller):
        larger, smaller = smaller, larger
    if not smaller:
        return larger, 0
    if len(larger) == 1:  # of a small plan: without looking for the chunks that differ
        both = larger[0] | smaller[0]
        if both == larger[0]:
            return larger, 0
        return (smaller, 0) if both == smaller[0] else ((both,), CHUNK_POSITIONS // 8)
    if larger[: len(smaller)] == smaller:  # compares only what is not the same object
        return larger, 0
    chunks = list(larger)
    new = 0
    for number in [n for n, (chunk, bits) in enumerate(zip(larger, smaller, strict=False)) if chunk is not bits]:
        chunk, bits = larger[number], smaller[number]
        both = chunk | bits
        if both == bits:
            chunks[number] = bits
        elif both != chunk:
            chunks[number] = both
            new += CHUNK_POSITIONS // 8
    return tuple(chunks), new


def insert(positions: Positions, position: int) -> Positions:
    """The set with one more position, which is larger than all in it."""
    number, bit = divmod(position, CHUNK_POSITIONS)
    if number < len(positions):
        return (*positions[:number], positions[number] | 1 << bit)
    return (*positions, *(0,) * (number - len(positions)), 1 << bit)


def _absent(positions: Iterable[int], members: Positions) -> list[int]:
    """Those that are not in a set."""
    if len(members) == 1:
        (bits,) = members
        return [p for p in positions if p >= CHUNK_POSITIONS or not bits >> p & 1]
    end = len(members) * CHUNK_POSITIONS
    return [p for p in positions if p >= end or not members[p // CHUNK_POSITIONS] >> p % CHUNK_POSITIONS & 1]
