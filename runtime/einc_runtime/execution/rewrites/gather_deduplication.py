"""Gather de-duplication: where several sites that share one memory gather equal copies, one copy is enough.

Buffers of one block whose parts are moved from the same regions hold the same values. Readers of the later buffers read
the earliest one instead, and the moves into the later ones become fences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.execution.rewrites.copy_elision import replace_reads
from einc_runtime.execution.rewrites.lifetimes import Lifetimes
from einc_runtime.plan.boxes import are_disjoint
from einc_runtime.plan.regions import ExecutablePlan, find_output_buffers, reads_of, writes_of
from einc_runtime.plan.schema import AnyTask, Block, CopyTask, FenceTask, Region, TransferTask

GatherRecipe = tuple[int, Block, tuple[tuple[Block, Region], ...]]
"""What a gathered buffer holds: a tensor, its block, and the source region of each part."""


def deduplicate_gathers(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> tuple[AnyTask, ...]:
    """The tasks of a bundle, some of them rewritten before, with fewer buffers gathered."""
    lifetimes, changed = Lifetimes(bundle, tasks), list(tasks)
    saved = find_output_buffers(bundle)
    equal: dict[GatherRecipe, list[int]] = defaultdict(list)
    for buffer, movers in lifetimes.writers.items():
        recipe = _find_recipe(bundle, tasks, lifetimes, buffer, movers)
        if recipe is not None:
            equal[recipe].append(buffer)
    for (_, _, parts), buffers in equal.items():
        if len(buffers) < 2 or not are_disjoint([block for block, _ in parts]):
            continue
        first, *others = sorted(buffers, key=lambda buffer: (lifetimes.writers[buffer][-1], buffer))
        for other in others:
            readers = lifetimes.readers[other]
            if other in saved or not readers or not _can_serve(lifetimes, first, readers):
                continue
            for number in readers:
                reads = (Region(first, r.block) if r.buffer == other else r for r in reads_of(changed[number]))
                changed[number] = replace_reads(changed[number], tuple(reads))
            for number in lifetimes.writers[other]:
                changed[number] = FenceTask(tasks[number].site, tasks[number].serves, tasks[number].after)
    return tuple(changed)


def _find_recipe(
    bundle: ExecutablePlan, tasks: Sequence[AnyTask], lifetimes: Lifetimes, buffer: int, movers: Sequence[int]
) -> GatherRecipe | None:
    """None for a buffer that other tasks write, that loses bytes meanwhile, or whose sources change meanwhile."""
    if not all(only_moves(tasks[number], buffer) for number in movers):
        return None
    regions = [
        pair for number in movers for pair in zip(reads_of(tasks[number]), writes_of(tasks[number]), strict=True)
    ]
    parts = [(write.block, read) for read, write in regions]
    for read, _ in regions:
        if read.buffer in lifetimes.writers and lifetimes.writers[read.buffer][-1] > movers[0]:
            return None
    if lifetimes.loses_bytes(buffer, movers[0], movers[-1]):
        return None
    record = bundle.buffers[buffer]
    return record.tensor, record.block, tuple(sorted(parts, key=lambda part: (part[0].lower, part[0].upper)))


def only_moves(task: AnyTask, buffer: int) -> bool:
    """Whether the task moves something into the buffer, and does nothing else."""
    return isinstance(task, TransferTask | CopyTask) and all(region.buffer == buffer for region in writes_of(task))


def _can_serve(lifetimes: Lifetimes, buffer: int, readers: Sequence[int]) -> bool:
    """Whether the buffer is complete before all of these readers, and keeps its bytes until the last of them."""
    complete = lifetimes.writers[buffer][-1]
    return complete < readers[0] and not lifetimes.loses_bytes(buffer, complete, readers[-1])
