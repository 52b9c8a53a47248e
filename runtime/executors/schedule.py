"""The task graph as a scheduler wants it: successors, numbers of predecessors, and what to start first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.bundle import AnyTask

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
    def of(tasks: Sequence[AnyTask], nanoseconds: Sequence[float], ranks: Sequence[float] | None = None) -> TaskGraph:
        """Unless ranks are given, a task's rank is the time of the longest chain of tasks that it starts."""
        successors: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for earlier in task.after:
                successors[earlier].append(number)
        if ranks is None:
            lengths = [0.0] * len(tasks)
            for number in range(len(tasks) - 1, -1, -1):
                rest = max((lengths[later] for later in successors[number]), default=0.0)
                lengths[number] = OVERHEAD_NS + nanoseconds[number] + rest
            ranks = lengths
        return TaskGraph(
            tuple(map(tuple, successors)), tuple(len(task.after) for task in tasks), tuple(nanoseconds), tuple(ranks)
        )
