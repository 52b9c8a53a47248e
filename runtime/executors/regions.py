"""What tasks read and write, and where that lies."""

from __future__ import annotations

from runtime.boxes import size
from runtime.bundle import ITEMSIZE, AnyTask, Bundle, FenceTask, Region, TransferTask


def reads_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.read,)
    return () if isinstance(task, FenceTask) else task.reads


def writes_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.write,)
    return () if isinstance(task, FenceTask) else task.writes


def span(bundle: Bundle, number: int) -> tuple[int, int]:
    """The bytes of a buffer in its site's arena."""
    buffer = bundle.buffers[number]
    return buffer.offset, buffer.offset + size(buffer.block) * ITEMSIZE[bundle.tensors[buffer.tensor].dtype]
