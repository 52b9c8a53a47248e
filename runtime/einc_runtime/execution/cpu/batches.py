"""Batches of short tasks: starting a task takes about as long as a short one runs, so several are started as one.

A plan for many sites has as many short tasks side by side. On a few cores they would run one after the other, with the
interpreter between them, and hardly one of them is worth waking another thread. Together they are.

Tasks are taken together only if the longest chains of tasks before them have the same length. None of them waits for
another one, then, and batches never wait for each other in a circle. A batch that alone waits for another one, and for
nothing else, follows it at once as a part of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.execution.cpu.thread_pool import START_NS, TINY_NS

SHORT_NS = 5 * TINY_NS
"""A task of this time or longer is a batch of its own."""

MAX_STEPS = 64
"""Steps back to find out which batches are waited for anyway."""


@dataclass(frozen=True, slots=True)
class TaskBatches:
    """`members` are the tasks of every batch in an order in which they may run, `after` the batches that it waits for,
    which come before it, and `nanoseconds` what it takes."""

    members: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    nanoseconds: tuple[float, ...]


def batch_tasks(after: Sequence[Sequence[int]], nanoseconds: Sequence[float], workers: int) -> TaskBatches:
    """All tasks, short ones in at most as many batches per level as there are workers; each alone for no workers.

    `after` names earlier tasks.
    """
    levels: list[int] = []
    for earlier in after:
        levels.append(1 + max((levels[one] for one in earlier), default=-1))
    short: dict[int, list[int]] = defaultdict(list)
    found: list[tuple[int, tuple[int, ...]]] = []
    for number, level in enumerate(levels):
        if workers and nanoseconds[number] < SHORT_NS:
            short[level].append(number)
        else:
            found.append((level, (number,)))
    for level, numbers in short.items():
        found += [(level, part) for part in _divide(numbers, nanoseconds, workers)]
    members = [part for _, part in sorted(found)]
    waits = _find_waits(members, after)
    if workers:
        members = _append_followers(members, waits)
        waits = _find_waits(members, after)
    return TaskBatches(tuple(members), waits, tuple(sum(nanoseconds[number] for number in part) for part in members))


def _find_waits(members: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The other batches that every batch waits for, but for those for which one of them waits, where that is seen in a
    few steps."""
    batch_of = {number: batch for batch, part in enumerate(members) for number in part}
    waits: list[tuple[int, ...]] = []
    for batch, part in enumerate(members):
        found = {batch_of[one] for number in part for one in after[number]} - {batch}
        if len(found) > 1:
            first, steps, behind = min(found), MAX_STEPS, sorted(found)
            while behind and steps:
                steps -= 1
                for earlier in waits[behind.pop()]:
                    found.discard(earlier)
                    if earlier > first:
                        behind.append(earlier)
        waits.append(tuple(sorted(found)))
    return tuple(waits)


def _append_followers(members: Sequence[tuple[int, ...]], waits: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The batches, each with those behind it for which nothing else waits and which wait for nothing else."""
    followers = Counter(earlier for own in waits for earlier in own)
    heads: list[int] = []
    joined: dict[int, list[int]] = {}
    for batch, own in enumerate(waits):
        head = heads[own[0]] if len(own) == 1 and followers[own[0]] == 1 else batch
        heads.append(head)
        joined.setdefault(head, []).extend(members[batch])
    return [tuple(part) for part in joined.values()]


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
