"""Buffers that are filled by many small moves, where all sites share one memory: one task makes all of them.

With many sites, starting a task takes longer than what it moves. The moves into a buffer are made together by the last
of them, if nobody needs one before, and all that they read is still there then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from einc_runtime.execution.rewrites.gather_deduplication import only_moves
from einc_runtime.execution.rewrites.lifetimes import Lifetimes
from einc_runtime.plan.boxes import size
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import ITEMSIZE, AnyTask, Bundle, CopyTask, FenceTask

SMALL = 1 << 15
"""Bytes that are moved in about the time that starting a task takes."""


def gather(bundle: Bundle, tasks: Sequence[AnyTask], most: float = SMALL) -> tuple[AnyTask, ...]:
    """The tasks of a validated bundle, or what has become of them, with fewer tasks that move `most` bytes or less."""
    lifetimes, changed = Lifetimes(bundle, tasks), list(tasks)
    for buffer, movers in lifetimes.writers.items():
        *others, last = movers
        if not others or not all(_moves_little(bundle, tasks[number], buffer, most) for number in movers):
            continue
        readers = lifetimes.readers[buffer]
        if (readers and readers[0] <= last) or lifetimes.lost_within(buffer, movers[0], last):
            continue
        if all(
            _stays(lifetimes, region.buffer, number, last) for number in others for region in reads_of(tasks[number])
        ):
            moves = [tasks[number] for number in movers]
            reads, writes = (tuple(r for task in moves for r in of(task)) for of in (reads_of, writes_of))
            final, site = moves[-1], bundle.buffers[buffer].site
            changed[last] = CopyTask(site, final.serves, final.after, reads=reads, writes=writes)
            for number in others:
                changed[number] = FenceTask(tasks[number].site, tasks[number].serves, tasks[number].after)
    return tuple(changed)


def _moves_little(bundle: Bundle, task: AnyTask, buffer: int, most: float) -> bool:
    itemsize = ITEMSIZE[bundle.tensors[bundle.buffers[buffer].tensor].dtype]
    return only_moves(task, buffer) and sum(size(region.block) for region in writes_of(task)) * itemsize <= most


def _stays(lifetimes: Lifetimes, buffer: int, start: int, end: int) -> bool:
    """Whether the buffer holds the same after the task at `end` as at `start`."""
    writers = lifetimes.writers.get(buffer, [])
    place = bisect_right(writers, start)
    return not (place < len(writers) and writers[place] <= end) and not lifetimes.lost_within(buffer, start, end)
