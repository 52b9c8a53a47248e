"""What the tasks of a plan read and write, and where that lies in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from einc_runtime.plan.schema import (
    ITEMSIZE,
    AnyTask,
    Buffer,
    Bundle,
    FenceTask,
    Operation,
    Output,
    Region,
    Tensor,
    TransferTask,
)


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


def reads_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.read,)
    return () if isinstance(task, FenceTask) else task.reads


def writes_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.write,)
    return () if isinstance(task, FenceTask) else task.writes


def users(tasks: Sequence[AnyTask]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """By buffer: the tasks that read regions of it, and those that write some, ascending, each once per region."""
    readers: dict[int, list[int]] = defaultdict(list)
    writers: dict[int, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        for found, regions in ((readers, reads_of(task)), (writers, writes_of(task))):
            for region in regions:
                found[region.buffer].append(number)
    return readers, writers


def results(bundle: Bundle) -> set[int]:
    """The buffers that outputs are taken from."""
    return {region.buffer for output in bundle.outputs for region in output.regions}


def buffer_bytes(plan: ExecutablePlan, buffer: Buffer) -> int:
    """The size of a buffer."""
    return buffer.block.size * ITEMSIZE[plan.tensors[buffer.tensor].dtype]


def region_bytes(plan: ExecutablePlan, region: Region) -> int:
    """The size of a region."""
    return region.block.size * ITEMSIZE[plan.tensors[plan.buffers[region.buffer].tensor].dtype]


def span(plan: ExecutablePlan, number: int) -> tuple[int, int]:
    """The first byte of a buffer in its site's arena, and the end."""
    buffer = plan.buffers[number]
    return buffer.offset, buffer.offset + buffer_bytes(plan, buffer)
