"""What tasks read and write, and where that lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.plan.boxes import size
from einc_runtime.plan.schema import ITEMSIZE, AnyTask, Bundle, FenceTask, Region, TransferTask


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


def span(bundle: Bundle, number: int) -> tuple[int, int]:
    """The bytes of a buffer in its site's arena."""
    buffer = bundle.buffers[number]
    return buffer.offset, buffer.offset + size(buffer.block) * ITEMSIZE[bundle.tensors[buffer.tensor].dtype]
