"""The task graph as a scheduler wants it: successors, numbers of predecessors, and what to start first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OVERHEAD_NS = 2000.0
"""What it takes to start any task."""


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Successors and number of predecessors of every task, the time that each is thought to take in nanoseconds, and
    its rank: with the highest first, tasks start in the order in which they are thought to be urgent."""

    successors: tuple[tuple[int, ...], ...]
    predecessors: tuple[int, ...]
    nanoseconds: tuple[float, ...]
    ranks: tuple[float, ...]

    @staticmethod
    def of(
        after: Sequence[Sequence[int]], nanoseconds: Sequence[float], ranks: Sequence[float] | None = None
    ) -> TaskGraph:
        """From what every task waits for. Unless ranks are given, they are the times of the longest chains of tasks."""
        successors: list[list[int]] = [[] for _ in after]
        for number, earlier_tasks in enumerate(after):
            for earlier in earlier_tasks:
                successors[earlier].append(number)
        if ranks is None:
            lengths = [0.0] * len(after)
            for number in range(len(after) - 1, -1, -1):
                rest = max((lengths[later] for later in successors[number]), default=0.0)
                lengths[number] = OVERHEAD_NS + nanoseconds[number] + rest
            ranks = lengths
        return TaskGraph(tuple(map(tuple, successors)), tuple(map(len, after)), tuple(nanoseconds), tuple(ranks))
