"""Transfers that need no copy where all sites share one memory: their readers read the source instead.

A transfer becomes a fence if every reader of what it wrote can be pointed at the source region, and the source's bytes
can be kept until they have read it: later writers of those bytes are made to wait for the readers. All dependencies
lead from smaller to larger positions, so that this never closes a cycle; where a writer stands before a reader, the
transfer stays. The plan itself is left as it is: this is one executor's way of running it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec

from runtime.boxes import inside
from runtime.bundle import (
    ITEMSIZE,
    AggregateTask,
    AnyTask,
    Block,
    Bundle,
    CopyTask,
    FenceTask,
    KernelTask,
    Region,
    TransferTask,
)

MAX_SHARING = 1 << 20
"""Pairs of buffers that share bytes; plans with more run as they are."""


def forward(
    bundle: Bundle,
    tasks: Sequence[AnyTask] | None = None,
    *,
    devices: Sequence[int] | None = None,
    only: Collection[int] | None = None,
) -> tuple[AnyTask, ...]:
    """The tasks of a validated bundle, with as many transfers as possible replaced by fences.

    `tasks` are the bundle's own unless it is run otherwise already. `devices` tells which sites share a memory: those
    of one device. Without it, all do. `only` the transfers at these positions are looked at, if it is given.
    """
    own, sharing = bundle.tasks if tasks is None else tuple(tasks), _sharing(bundle)
    return own if sharing is None else _Forwarding(bundle, own, sharing, devices).run(only)


def reads_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.read,)
    return () if isinstance(task, FenceTask) else task.reads


def writes_of(task: AnyTask) -> tuple[Region, ...]:
    if isinstance(task, TransferTask):
        return (task.write,)
    return () if isinstance(task, FenceTask) else task.writes


class _Forwarding:
    def __init__(
        self,
        bundle: Bundle,
        tasks: Sequence[AnyTask],
        sharing: Sequence[Sequence[int]],
        devices: Sequence[int] | None,
    ) -> None:
        sites = devices or [0] * len(bundle.memory)
        self.devices = [sites[buffer.site] for buffer in bundle.buffers]
        self.tasks = list(tasks)
        self.sharing = sharing
        self.fixed = {region.buffer for output in bundle.outputs for region in output.regions}
        self.reads: dict[int, set[int]] = defaultdict(set)  # buffer -> tasks
        self.writes: dict[int, list[int]] = defaultdict(list)
        self.after: dict[int, set[int]] = {}
        for number, task in enumerate(self.tasks):
            for region in reads_of(task):
                self.reads[region.buffer].add(number)
            for region in writes_of(task):
                self.writes[region.buffer].append(number)

    def run(self, only: Collection[int] | None) -> tuple[AnyTask, ...]:
        """Later transfers first, so that one that passes on what another brought reads that one's source, too."""
        for number in sorted(range(len(self.tasks)) if only is None else only, reverse=True):
            task = self.tasks[number]
            if isinstance(task, TransferTask) and self.devices[task.read.buffer] == self.devices[task.write.buffer]:
                self._try(number, task)
        for number, after in self.after.items():
            self.tasks[number] = msgspec.structs.replace(self.tasks[number], after=tuple(sorted(after)))
        return tuple(self.tasks)

    def _try(self, number: int, transfer: TransferTask) -> None:
        readers = self._readers(number, transfer.write)
        if readers is None:
            return
        later = [writer for other in self.sharing[transfer.read.buffer] for writer in self.writes[other]
                 if writer > number and self._touches(writer, transfer.read, other)]  # fmt: skip
        if readers and any(writer <= readers[-1] for writer in later):
            return
        for reader in readers:
            self.tasks[reader] = _redirected(self.tasks[reader], transfer)
            self.reads[transfer.read.buffer].add(reader)
        for writer in later:
            self._wait(writer, readers)
        self.tasks[number] = FenceTask(transfer.site, transfer.serves, transfer.after)
        self.reads[transfer.read.buffer].discard(number)
        self.writes[transfer.write.buffer].remove(number)

    def _readers(self, number: int, written: Region) -> list[int] | None:
        """The tasks that read what the transfer wrote, ascending; None where one needs it to be where it was sent."""
        if written.buffer in self.fixed:
            return None
        later = (writer for writer in self.writes[written.buffer] if writer > number)
        rewritten = min((w for w in later if self._touches(w, written, written.buffer)), default=None)
        readers: list[int] = []
        for reader in sorted(self.reads[written.buffer]):
            if reader <= number:
                continue
            regions = (region for region in reads_of(self.tasks[reader]) if region.buffer == written.buffer)
            touching = [region for region in regions if overlap(region.block, written.block)]
            if touching and rewritten is not None and reader > rewritten:
                return readers if self._covers(rewritten, written) else None
            if not all(inside(region.block, written.block) for region in touching):
                return None
            if touching:
                readers.append(reader)
        return readers

    def _covers(self, writer: int, region: Region) -> bool:
        writes = writes_of(self.tasks[writer])
        return any(write.buffer == region.buffer and inside(region.block, write.block) for write in writes)

    def _touches(self, writer: int, region: Region, buffer: int) -> bool:
        """Whether a task's writes to `buffer` can hit the region: where the buffer is another one, by its bytes."""
        return buffer != region.buffer or any(
            write.buffer == buffer and overlap(write.block, region.block) for write in writes_of(self.tasks[writer])
        )

    def _wait(self, writer: int, readers: Sequence[int]) -> None:
        known = self.after.setdefault(writer, set(self.tasks[writer].after))
        known.update(reader for reader in readers if reader != writer)


def _redirected(task: AnyTask, transfer: TransferTask) -> AnyTask:
    """The task with its reads inside what the transfer wrote taken from the source, and waiting for the transfer."""

    def source(region: Region) -> Region:
        if region.buffer == transfer.write.buffer and inside(region.block, transfer.write.block):
            return Region(transfer.read.buffer, region.block)
        return region

    if isinstance(task, TransferTask):
        return msgspec.structs.replace(task, read=source(task.read))
    if isinstance(task, KernelTask | AggregateTask | CopyTask):
        return msgspec.structs.replace(task, reads=tuple(map(source, task.reads)))
    return task


def _sharing(bundle: Bundle) -> list[list[int]] | None:
    """For every buffer, those with bytes in common, itself among them; None where there are too many."""
    spans: list[list[tuple[int, int, int]]] = [[] for _ in bundle.memory]
    for number, buffer in enumerate(bundle.buffers):
        size = ITEMSIZE[bundle.tensors[buffer.tensor].dtype]
        for lo, up in zip(buffer.block.lower, buffer.block.upper, strict=True):
            size *= up - lo
        spans[buffer.site].append((buffer.offset, buffer.offset + size, number))
    sharing: list[list[int]] = [[number] for number in range(len(bundle.buffers))]
    pairs = 0
    for site in spans:
        open_spans: list[tuple[int, int]] = []
        for start, end, number in sorted(site):
            open_spans = [(reach, other) for reach, other in open_spans if reach > start]
            for _, other in open_spans:
                sharing[number].append(other)
                sharing[other].append(number)
            open_spans.append((end, number))
            pairs += len(open_spans)
            if pairs > MAX_SHARING:
                return None
    return sharing


def overlap(one: Block, other: Block) -> bool:
    for a, b, c, d in zip(one.lower, one.upper, other.lower, other.upper, strict=True):
        if a >= d or c >= b:
            return False
    return True
