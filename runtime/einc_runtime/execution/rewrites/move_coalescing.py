"""Move coalescing: many small moves into one buffer become one task, where all sites share one memory.

With many sites, starting a task takes longer than its move. The last of the moves into a buffer makes all of them, if
no task reads the buffer before, and if everything that the moves read is still there then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from einc_runtime.execution.rewrites.deduplication import only_moves
from einc_runtime.execution.rewrites.lifetimes import Lifetimes
from einc_runtime.plan.regions import ExecutablePlan, reads_of, region_bytes, writes_of
from einc_runtime.plan.schema import AnyTask, CopyTask, FenceTask


def coalesce_moves(bundle: ExecutablePlan, tasks: Sequence[AnyTask], max_bytes: float) -> tuple[AnyTask, ...]:
    """The tasks of a bundle, some of them rewritten before, with fewer tasks that move `max_bytes` bytes or less."""
    lifetimes, changed = Lifetimes(bundle, tasks), list(tasks)
    for buffer, movers in lifetimes.writers.items():
        *earlier_movers, last = movers
        if not earlier_movers or not all(_is_small_move(bundle, tasks[number], buffer, max_bytes) for number in movers):
            continue
        readers = lifetimes.readers[buffer]
        if (readers and readers[0] <= last) or lifetimes.loses_bytes(buffer, movers[0], last):
            continue
        if all(
            _is_unchanged(lifetimes, region.buffer, number, last)
            for number in earlier_movers
            for region in reads_of(tasks[number])
        ):
            moves = [tasks[number] for number in movers]
            reads, writes = (tuple(r for task in moves for r in of(task)) for of in (reads_of, writes_of))
            final, site = moves[-1], bundle.buffers[buffer].site
            changed[last] = CopyTask(site, final.serves, final.after, reads=reads, writes=writes)
            for number in earlier_movers:
                changed[number] = FenceTask(tasks[number].site, tasks[number].serves, tasks[number].after)
    return tuple(changed)


def _is_small_move(bundle: ExecutablePlan, task: AnyTask, buffer: int, max_bytes: float) -> bool:
    return only_moves(task, buffer) and sum(region_bytes(bundle, region) for region in writes_of(task)) <= max_bytes


def _is_unchanged(lifetimes: Lifetimes, buffer: int, start: int, end: int) -> bool:
    """Whether the buffer holds the same after the task at `end` as at `start`."""
    writers = lifetimes.writers.get(buffer, [])
    next_writer = bisect_right(writers, start)
    return not (next_writer < len(writers) and writers[next_writer] <= end) and not lifetimes.loses_bytes(
        buffer, start, end
    )
