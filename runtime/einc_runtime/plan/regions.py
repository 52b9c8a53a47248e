"""What the tasks of a plan read and write, and where that lies in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import (
    ITEMSIZE,
    AnyTask,
    Buffer,
    FenceTask,
    InputPlacement,
    Operation,
    Output,
    Region,
    Tensor,
    TransferTask,
)

Owner = TypeVar("Owner")


class ExecutablePlan(Protocol):
    """The part of a plan that is executed. A `Bundle` has it, and so has the compiler's device program.

    `memory` has the size in bytes of the arena of every site.
    """

    @property
    def tensors(self) -> tuple[Tensor, ...]: ...
    @property
    def operations(self) -> tuple[Operation, ...]: ...
    @property
    def buffers(self) -> tuple[Buffer, ...]: ...
    @property
    def tasks(self) -> tuple[AnyTask, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...
    @property
    def memory(self) -> tuple[int, ...]: ...
    @property
    def input_placement(self) -> InputPlacement: ...


def reads_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.read,)
    return () if isinstance(task, FenceTask) else task.reads


def writes_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.write,)
    return () if isinstance(task, FenceTask) else task.writes


Users = tuple[dict[int, list[int]], dict[int, list[int]]]
"""For every buffer the tasks that read it, and those that write it."""


def find_users(tasks: Sequence[AnyTask]) -> Users:
    """For every buffer the tasks that read it and those that write it, ascending, each once for every region."""
    readers: dict[int, list[int]] = defaultdict(list)
    writers: dict[int, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        for region in reads_of(task):
            readers[region.buffer].append(number)
        for region in writes_of(task):
            writers[region.buffer].append(number)
    return readers, writers


def find_output_buffers(bundle: ExecutablePlan) -> set[int]:
    return {region.buffer for output in bundle.outputs for region in output.regions}


def find_needed_tensors(bundle: ExecutablePlan) -> set[int]:
    """The inputs, weights and states that buffers and operations take, by position; nothing depends on any others."""
    used = {buffer.tensor for buffer in bundle.buffers} | {output.tensor for output in bundle.outputs}
    used |= {tensor for operation in bundle.operations for tensor in operation.inputs}
    return {number for number in used if bundle.tensors[number].kind != "value"}


def is_loaded(plan: ExecutablePlan, number: int) -> bool:
    """Whether a buffer has a block of an input, a weight or a state before the first task."""
    buffer = plan.buffers[number]
    return buffer.role == plan.tensors[buffer.tensor].kind


def buffer_bytes(plan: ExecutablePlan, buffer: Buffer) -> int:
    """The size of a buffer."""
    return buffer.block.size * ITEMSIZE[plan.tensors[buffer.tensor].dtype]


def region_bytes(plan: ExecutablePlan, region: Region) -> int:
    """The size of a region."""
    return region.block.size * ITEMSIZE[plan.tensors[plan.buffers[region.buffer].tensor].dtype]


def find_offsets(plan: ExecutablePlan, region: Region) -> list[tuple[int, int]]:
    """The first position of a region in its buffer, and the end, along every dimension. Raises PlanFault outside."""
    outer, inner = plan.buffers[region.buffer].block, region.block
    bounds = list(zip(inner.lower, inner.upper, outer.lower, outer.upper, strict=True))
    if not all(first <= lo < up <= last for lo, up, first, last in bounds):
        raise PlanFault("the region is outside its buffer", where=f"buffers[{region.buffer}]")
    return [(lo - first, up - first) for lo, up, first, _ in bounds]


def span(plan: ExecutablePlan, number: int) -> tuple[int, int]:
    """The first byte of a buffer in its site's arena, and the end."""
    buffer = plan.buffers[number]
    return buffer.offset, buffer.offset + buffer_bytes(plan, buffer)


class ByteOwners(Generic[Owner]):
    """The owner that claimed each byte of an arena last: disjoint spans in ascending order, each with its owner."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: list[tuple[int, int, Owner]] = []

    def claim(self, start: int, end: int, owner: Owner) -> list[Owner]:
        """Gives bytes to a new owner, and returns the owners that had some of them, in the order of their spans."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._spans[first][1] <= start:
            first += 1
        last = bisect_left(self._starts, end)
        claimed = self._spans[first:last]
        if len(claimed) == 1 and claimed[0][0] == start and claimed[0][1] == end:
            self._spans[first] = start, end, owner
            return [claimed[0][2]]
        spans = [(start, end, owner)]
        if claimed and claimed[0][0] < start:
            spans.insert(0, (claimed[0][0], start, claimed[0][2]))
        if claimed and claimed[-1][1] > end:
            spans.append((end, claimed[-1][1], claimed[-1][2]))
        self._spans[first:last] = spans
        self._starts[first:last] = [span[0] for span in spans]
        return [previous for _, _, previous in claimed]
