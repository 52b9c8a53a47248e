"""Kernels in parts, where an operation has too few of them to keep all workers busy.

A plan cuts for its sites. On a machine with more cores than the plan has sites, or with a number that does not divide
them, each kernel becomes several that write parts of its results: as many as keep all workers busy, if the parts are
still large enough. They read and write parts of the same regions, so that nothing else changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.splits import KernelSplit, SplitAxis, find_splits
from einc_runtime.plan.boxes import shape
from einc_runtime.plan.schema import Block, KernelTask, Operation, Region

SMALLEST_NS = 200_000.0
"""What a part should take at least, as kernels estimate it."""

BUSY = 0.9
"""The share of the workers' time that is enough to be used."""

MOST_PARTS = 64


def parts_wanted(kernels: int, workers: int) -> int:
    """The parts of each of some equal kernels with which the workers are busy for the fewest rounds."""
    for parts in range(1, MOST_PARTS):
        rounds = -(-kernels * parts // workers)
        if kernels * parts >= BUSY * rounds * workers:
            return min(MOST_PARTS, rounds * workers // kernels)
    return MOST_PARTS


def split(operation: Operation, task: KernelTask, parts: int) -> Sequence[KernelTask]:
    """A task that has been seen to fit its kernel, in so many parts, or fewer where it cannot be cut like that."""
    reads, writes = ([shape(region.block) for region in regions] for regions in (task.reads, task.writes))
    possible = (
        find_splits(Invocation(operation.kernel, operation.kernel_attributes, reads, writes)) if parts > 1 else []
    )
    cut = next((cut for cut in possible if _even(cut, parts)), max(possible, key=lambda cut: cut.extent, default=None))
    if cut is None:
        return (task,)
    parts = min(parts, cut.extent)
    bounds = [cut.extent * part // parts for part in range(parts + 1)]
    return [
        msgspec.structs.replace(
            task, reads=_narrowed(task.reads, cut.inputs, *ends), writes=_narrowed(task.writes, cut.outputs, *ends)
        )
        for ends in itertools.pairwise(bounds)
    ]


def _even(cut: KernelSplit, parts: int) -> bool:
    """Whether the parts differ by little."""
    return cut.extent % parts == 0 or cut.extent * (1 - BUSY) >= parts


def _narrowed(
    regions: Sequence[Region], along: Sequence[SplitAxis | None], start: int, stop: int
) -> tuple[Region, ...]:
    found = []
    for region, way in zip(regions, along, strict=True):
        lower, upper = list(region.block.lower), list(region.block.upper)
        if way is not None:
            first = lower[way.axis]
            lower[way.axis], upper[way.axis] = first + start * way.unit, first + stop * way.unit
        found.append(Region(region.buffer, Block(tuple(lower), tuple(upper))))
    return tuple(found)
