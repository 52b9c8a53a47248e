"""Which tasks have ended before a task starts: reachability in the task graph, computed in the order of positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import AnyTask, FenceTask

MAX_TRAFFIC = 1 << 38
"""The most bytes of ancestor sets that are united: about a minute."""

MAX_LIVE = 4 << 30
"""The most bytes of ancestor sets that are kept at a time."""


class TaskAncestors:
    """The ancestors of one task after another, as bit sets in integers.

    A set is kept until the last task that depends directly on its task. Raises PlanFault where the graph would take too
    much time or memory (some hundred thousand tasks).
    """

    def __init__(self, tasks: Sequence[AnyTask]) -> None:
        self._tasks = tasks
        self._last_use: dict[int, int] = {before: i for i, task in enumerate(tasks) for before in task.after}
        self._kept: dict[int, int] = {}
        self.fences: tuple[int, ...] = ()
        """The fences that the current task waits for directly, and that later tasks wait for as well."""
        self._bits = b""
        self._live = 0
        traffic = sum(len(task.after) * i // 8 for i, task in enumerate(tasks))
        if traffic > MAX_TRAFFIC:
            raise PlanFault(f"{len(tasks)} tasks with these dependencies are too many to prove", where="tasks")

    def enter(self, position: int) -> None:
        """Moves on to the next task; positions must come in ascending order without gaps."""
        after = self._tasks[position].after
        ancestors = 0
        for before in after:
            ancestors |= self._kept[before] if self._last_use[before] > position else self._drop(before)
        self._bits = _bytes(ancestors)
        self.fences = tuple(
            before for before in after if before in self._kept and isinstance(self._tasks[before], FenceTask)
        )
        if position in self._last_use:
            self._kept[position] = ancestors | 1 << position
            self._live += position // 8
            if self._live > MAX_LIVE:
                raise PlanFault("the tasks that wait on one another are too many to prove", where=f"tasks[{position}]")

    def _drop(self, position: int) -> int:
        self._live -= position // 8
        return self._kept.pop(position)

    def ended(self, position: int) -> bool:
        """Whether the task at `position` has ended in every run when the current task starts."""
        return not _absent((position,), self._bits)

    def unfinished(self, positions: Iterable[int]) -> list[int]:
        """Those of the tasks at `positions` that may not have ended when the current task starts."""
        return _absent(positions, self._bits)

    def comes_after(self, fence: int, positions: Iterable[int]) -> bool:
        """Whether `fence`, one of `fences`, comes after all of these tasks."""
        return not _absent(positions, _bytes(self._kept[fence]))


def _bytes(members: int) -> bytes:
    return members.to_bytes((members.bit_length() + 7) // 8, "little")


def _absent(positions: Iterable[int], members: bytes) -> list[int]:
    """Those that are not in a bit set."""
    end = len(members)
    return [p for p in positions if p >> 3 >= end or not members[p >> 3] >> (p & 7) & 1]
