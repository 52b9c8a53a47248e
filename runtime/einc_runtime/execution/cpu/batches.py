"""Batches of tiny tasks: starting a task takes about as long as a tiny one runs, so several are started as one.

A plan for many sites has as many tiny tasks side by side. On a few cores they would run one after the other, with the
interpreter between them, and none of them is worth waking another thread. Together they are.

Tasks are taken together only if the longest chains of tasks before them have the same length. None of them waits for
another one, then, and batches never wait for each other in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.execution.cpu.thread_pool import START_NS, TINY_NS


@dataclass(frozen=True, slots=True)
class TaskBatches:
    """`members` are the tasks of every batch in ascending order, `after` the batches that it waits for, which come
    before it, and `nanoseconds` what it takes."""

    members: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    nanoseconds: tuple[float, ...]


def batch_tasks(after: Sequence[Sequence[int]], nanoseconds: Sequence[float], workers: int) -> TaskBatches:
    """All tasks, tiny ones in at most as many batches per level as there are workers; each alone for no workers.

    `after` names earlier tasks.
    """
    levels: list[int] = []
    for earlier in after:
        levels.append(1 + max((levels[one] for one in earlier), default=-1))
    tiny: dict[int, list[int]] = defaultdict(list)
    found: list[tuple[int, tuple[int, ...]]] = []
    for number, level in enumerate(levels):
        if workers and nanoseconds[number] < TINY_NS:
            tiny[level].append(number)
        else:
            found.append((level, (number,)))
    for level, numbers in tiny.items():
        found += [(level, part) for part in _divide(numbers, nanoseconds, workers)]
    members = tuple(part for _, part in sorted(found))
    batch_of = {number: batch for batch, part in enumerate(members) for number in part}
    return TaskBatches(
        members,
        tuple(tuple(sorted({batch_of[one] for number in part for one in after[number]})) for part in members),
        tuple(sum(nanoseconds[number] for number in part) for part in members),
    )


def _divide(numbers: Sequence[int], nanoseconds: Sequence[float], workers: int) -> list[tuple[int, ...]]:
    """Consecutive tasks in parts that take about as long: one for every worker, if they are long enough for that."""
    costs = [START_NS / 2 + nanoseconds[number] for number in numbers]
    total = sum(costs)
    count = min(len(numbers), workers, max(1, int(total / TINY_NS)))
    parts: list[list[int]] = [[] for _ in range(count)]
    passed = 0.0
    for number, cost in zip(numbers, costs, strict=True):
        parts[min(count - 1, int((passed + cost / 2) * count / total))].append(number)
        passed += cost
    return [tuple(part) for part in parts if part]
