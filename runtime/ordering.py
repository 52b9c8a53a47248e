"""Which tasks have ended before a task starts: reachability in the task graph, walked once in its own order."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.errors import PlanFault
from runtime.schema import AnyTask

MAX_TRAFFIC = 1 << 38
"""Bytes of ancestor sets that may be merged: about a minute."""

MAX_LIVE = 4 << 30
"""Bytes of ancestor sets that may be kept at a time."""


class Ordering:
    """Ancestor sets as bit sets in integers, each kept until the last task that depends on it directly.

    Raises PlanFault where the graph would take too long or too much memory (some hundred thousand tasks).
    """

    def __init__(self, tasks: Sequence[AnyTask]) -> None:
        self._tasks = tasks
        self._last_use: dict[int, int] = {before: i for i, task in enumerate(tasks) for before in task.after}
        self._kept: dict[int, int] = {}
        self._bits = b""
        self._live = 0
        traffic = sum(len(task.after) * i // 8 for i, task in enumerate(tasks))
        if traffic > MAX_TRAFFIC:
            raise PlanFault(f"{len(tasks)} tasks with these dependencies are too many to prove", where="tasks")

    def enter(self, position: int) -> None:
        """Moves on to the next task; positions must come in ascending order, none left out."""
        ancestors = 0
        for before in self._tasks[position].after:
            ancestors |= self._kept[before] if self._last_use[before] > position else self._drop(before)
        self._bits = ancestors.to_bytes((ancestors.bit_length() + 7) // 8, "little")
        if position in self._last_use:
            self._kept[position] = ancestors | 1 << position
            self._live += position // 8
            if self._live > MAX_LIVE:
                raise PlanFault("the tasks that wait on one another are too many to prove", where=f"tasks[{position}]")

    def _drop(self, position: int) -> int:
        self._live -= position // 8
        return self._kept.pop(position)

    def ended(self, position: int) -> bool:
        """Whether the task at `position` has ended, in every run, when the task that was entered last starts."""
        byte = position >> 3
        return byte < len(self._bits) and bool(self._bits[byte] >> (position & 7) & 1)
