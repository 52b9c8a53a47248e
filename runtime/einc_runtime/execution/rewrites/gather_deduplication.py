"""Equal copies that several sites gather, where all of them share one memory: the first is enough.

Buffers of one block whose parts are moved from the same regions hold the same. Readers of the later ones read the
earliest instead, and what would have gathered the others becomes fences. As with transfers that are spared, tasks are
taken in the order in which they stand, in which every read must still see what it did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.execution.rewrites.copy_elision import reading
from einc_runtime.execution.rewrites.lifetimes import Lifetimes
from einc_runtime.plan.boxes import disjoint
from einc_runtime.plan.regions import reads_of, results, writes_of
from einc_runtime.plan.schema import AnyTask, Block, Bundle, CopyTask, FenceTask, Region, TransferTask

Recipe = tuple[int, Block, tuple[tuple[Block, Region], ...]]
"""What a gathered buffer holds: a tensor's block, and from where its parts come."""


def share(bundle: Bundle, tasks: Sequence[AnyTask]) -> tuple[AnyTask, ...]:
    """The tasks of a validated bundle, or what has become of them, with fewer buffers gathered."""
    lifetimes, changed = Lifetimes(bundle, tasks), list(tasks)
    saved = results(bundle)
    alike: dict[Recipe, list[int]] = defaultdict(list)
    for buffer, movers in lifetimes.writers.items():
        recipe = _recipe(bundle, tasks, lifetimes, buffer, movers)
        if recipe is not None:
            alike[recipe].append(buffer)
    for (_, _, parts), buffers in alike.items():
        if len(buffers) < 2 or not disjoint([block for block, _ in parts]):
            continue
        first, *others = sorted(buffers, key=lambda buffer: (lifetimes.writers[buffer][-1], buffer))
        for other in others:
            readers = lifetimes.readers[other]
            if other in saved or not readers or not _serves(lifetimes, first, readers):
                continue
            for number in readers:
                reads = (Region(first, r.block) if r.buffer == other else r for r in reads_of(changed[number]))
                changed[number] = reading(changed[number], tuple(reads))
            for number in lifetimes.writers[other]:
                changed[number] = FenceTask(tasks[number].site, tasks[number].serves, tasks[number].after)
    return tuple(changed)


def _recipe(
    bundle: Bundle, tasks: Sequence[AnyTask], lifetimes: Lifetimes, buffer: int, movers: Sequence[int]
) -> Recipe | None:
    """None for a buffer that is not only moved to, is written again, or comes from what changes meanwhile."""
    if not all(only_moves(tasks[number], buffer) for number in movers):
        return None
    regions = [
        pair for number in movers for pair in zip(reads_of(tasks[number]), writes_of(tasks[number]), strict=True)
    ]
    parts = [(write.block, read) for read, write in regions]
    for read, _ in regions:
        if read.buffer in lifetimes.writers and lifetimes.writers[read.buffer][-1] > movers[0]:
            return None
    if lifetimes.lost_within(buffer, movers[0], movers[-1]):
        return None
    record = bundle.buffers[buffer]
    return record.tensor, record.block, tuple(sorted(parts, key=lambda part: (part[0].lower, part[0].upper)))


def only_moves(task: AnyTask, buffer: int) -> bool:
    """Whether the task moves something to the buffer, and does nothing else."""
    return isinstance(task, TransferTask | CopyTask) and all(region.buffer == buffer for region in writes_of(task))


def _serves(lifetimes: Lifetimes, buffer: int, readers: Sequence[int]) -> bool:
    """Whether the buffer is complete before all of these, and still there for all of them."""
    complete = lifetimes.writers[buffer][-1]
    return complete < readers[0] and not lifetimes.lost_within(buffer, complete, readers[-1])
