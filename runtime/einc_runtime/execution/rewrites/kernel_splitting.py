"""Kernel splitting: a kernel becomes several tasks where an operation has too few kernels to keep all workers busy.

A plan is cut for its sites. On a machine with more cores than the plan has sites, or with a number of cores that the
sites do not divide, each kernel becomes several tasks that write parts of its results: as many as keep all workers
busy, if the parts are still large enough. They read and write parts of the same regions, so that nothing else changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from einc_runtime.kernels.base import COMPOSED_KERNELS, Invocation
from einc_runtime.kernels.splits import IndexSplits, KernelSplit, SplitAxis, add_map, find_splits
from einc_runtime.plan.index_equations import Names, parse_index_equation
from einc_runtime.plan.schema import Block, KernelTask, Operation, Region

MIN_PART_NS = 20_000.0
"""What a part should take at least, as kernels estimate it; smaller tasks stay with the worker that made them ready."""

MIN_STREAM_NS, STREAM_PARTS = 30_000.0, 4
"""The same for parts of a stream, where each worker has several, and how many it has: when one is slower than another,
they divide the rest."""

BUSY = 0.9
"""The share of the workers' time that must be used."""

MAX_KERNEL_PARTS = 64
"""Parts of one kernel: each is a task that has to be started."""


class KernelTime(NamedTuple):
    """How long a kernel takes, and whether it reads its operands in one stream: then its parts take no longer
    together."""

    nanoseconds: float
    is_stream: bool = False


def count_parts(kernels: int, workers: int, time: KernelTime) -> int:
    """Into how many parts each of `kernels` equal kernels is split: few, but enough to keep all workers busy. A stream
    is split into more, so that faster workers take what a slower one leaves.

    The result is 0 where the time of one kernel is less than the least time of a part.
    """
    if time.is_stream and workers > 1:
        most = int(time.nanoseconds / MIN_STREAM_NS)
        rounds = min(STREAM_PARTS, kernels * most // workers)  # whole ones, so that all end together
        if rounds > 1:
            return max(1, rounds * workers // kernels)
    return min(_count_busy_parts(kernels, workers), int(time.nanoseconds / MIN_PART_NS))


def _count_busy_parts(kernels: int, workers: int) -> int:
    for parts in range(1, MAX_KERNEL_PARTS):
        rounds = -(-kernels * parts // workers)
        if kernels * parts >= BUSY * rounds * workers:
            return min(MAX_KERNEL_PARTS, rounds * workers // kernels)
    return MAX_KERNEL_PARTS


def split_kernel(
    operation: Operation,
    task: KernelTask,
    parts: int,
    order: Sequence[int] = (),
    then: tuple[Operation, int] | None = None,
) -> Sequence[KernelTask]:
    """The task in `parts` parts, or in fewer where its kernel cannot be split so often; the task fits its kernel.
    `order` is that of its result's dimensions in memory, and `then` the map that is joined to it, with the place of its
    operand."""
    further_names: list[Names] = []
    if then is not None:
        equation = parse_index_equation(str(then[0].kernel_attributes["indices"]))
        further_names = [names for position, names in enumerate(equation.inputs) if position != then[1]]
    if operation.kernel in COMPOSED_KERNELS:
        return _split_index(operation, task, parts, order, further_names, () if then is None else equation.output)
    reads, writes = ([region.block.shape for region in regions] for regions in (task.reads, task.writes))
    first_reads = reads[: len(reads) - len(further_names)]
    invocation = Invocation(operation.kernel, operation.kernel_attributes, first_reads, writes)
    possible = find_splits(invocation, order) if parts > 1 else []
    if then is not None:
        possible = [add_map(cut, further_names, equation.output) for cut in possible]
    cut = next(
        (cut for cut in possible if _is_even(cut, parts)), max(possible, key=lambda cut: cut.extent, default=None)
    )
    if cut is None:
        return (task,)
    parts = min(parts, cut.extent)
    bounds = [cut.extent * part // parts for part in range(parts + 1)]
    return [
        msgspec.structs.replace(
            task, reads=_narrow(task.reads, cut.inputs, *ends), writes=_narrow(task.writes, cut.outputs, *ends)
        )
        for ends in itertools.pairwise(bounds)
    ]


def _split_index(
    operation: Operation, task: KernelTask, parts: int, order: Sequence[int], further: Sequence[Names], output: Names
) -> Sequence[KernelTask]:
    """The parts of an index program: each reads what its own positions need, halos included. `further` are the indices
    of what a map of the result reads, which has the indices `output`."""
    if parts < 2:
        return (task,)
    first_reads = task.reads[: len(task.reads) - len(further)]
    blocks = [region.block for region in first_reads]
    program = IndexSplits.of(
        Invocation(operation.kernel, operation.kernel_attributes, (), (), blocks, [task.writes[0].block])
    )
    possible = [axis for axis in order or range(program.rank) if axis in program.axes]
    extents = [program.extent(axis) for axis in possible]
    axis = next(
        (axis for axis, extent in zip(possible, extents, strict=True) if _divides(extent, parts)),
        max(possible, key=program.extent, default=None),
    )
    parts = 1 if axis is None else min(parts, program.extent(axis))
    if axis is None or parts == 1:
        return (task,)
    bounds = [program.extent(axis) * part // parts for part in range(parts + 1)]
    ways = [SplitAxis(names.index(output[axis])) if output[axis] in names else None for names in further]
    divided = []
    for start, stop in itertools.pairwise(bounds):
        inputs, block = program.cut(axis, start, stop)
        reads = (*_cut(first_reads, inputs), *_narrow(task.reads[len(first_reads) :], ways, start, stop))
        divided.append(msgspec.structs.replace(task, reads=reads, writes=_cut(task.writes, [block] * len(task.writes))))
    return divided


def _cut(regions: Sequence[Region], blocks: Sequence[Block]) -> tuple[Region, ...]:
    return tuple(Region(region.buffer, block) for region, block in zip(regions, blocks, strict=True))


def _is_even(cut: KernelSplit, parts: int) -> bool:
    """Whether the parts differ by little, and are large enough."""
    return cut.extent >= cut.least * parts and _divides(cut.extent, parts)


def _divides(extent: int, parts: int) -> bool:
    """Whether parts of an extent differ by little."""
    return extent % parts == 0 or extent * (1 - BUSY) >= parts


def _narrow(regions: Sequence[Region], along: Sequence[SplitAxis | None], start: int, stop: int) -> tuple[Region, ...]:
    narrowed = []
    for region, way in zip(regions, along, strict=True):
        lower, upper = list(region.block.lower), list(region.block.upper)
        if way is not None:
            first = lower[way.axis]
            lower[way.axis], upper[way.axis] = first + start * way.unit, first + stop * way.unit
        narrowed.append(Region(region.buffer, Block(tuple(lower), tuple(upper))))
    return tuple(narrowed)
