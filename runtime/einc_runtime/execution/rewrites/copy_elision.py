"""Copy elision: where sites share one memory, transfers are removed and their readers read the source instead.

So do aggregations on GPUs that reach the memory of the sender: they read each copy where it lies, once, instead of
having it brought and then reading it.

A transfer becomes a fence if every reader of what it wrote can read the source region instead, and if no task writes
that region before the last of them has read it. Tasks that write it later have to wait for those readers:
`dependencies` finds that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import msgspec

from einc_runtime.plan.regions import ExecutablePlan, find_output_buffers, reads_of, span, writes_of
from einc_runtime.plan.schema import AggregateTask, AnyTask, Block, FenceTask, Region, TransferTask

MAX_COMPARED_WRITES = 1 << 24
"""Writes that are compared with what transfers read, some seconds; behind them, all transfers stay. Between a transfer
and the last reader of its copy there are few, in a plan of many layers, too."""


def elide_copies(
    bundle: ExecutablePlan,
    tasks: Sequence[AnyTask],
    devices: Sequence[int] | None = None,
    peers: Collection[tuple[int, int]] = (),
) -> tuple[AnyTask, ...]:
    """The tasks of a validated bundle with as many transfers as possible replaced by fences.

    `devices` gives every site its device: sites of one device share their memory. Without it, all sites do. The first
    device of a pair in `peers` reaches the memory of the second. The `after` of tasks is not changed, and is not enough
    any more: see `dependencies`.
    """
    return _CopyElision(bundle, tasks, devices, peers).run()


class _OperandUse:
    """Operand `operand` of task `reader` is `block` of a buffer; `torn` if a task passed so far writes a part of it."""

    __slots__ = ("block", "operand", "reader", "torn")

    def __init__(self, block: Block, reader: int, operand: int) -> None:
        self.block, self.reader, self.operand = block, reader, operand
        self.torn = False


class _CopyElision:
    """Walks from the last task to the first. So if a transfer reads what another one wrote, it is handled before that.

    `uses[buffer]` are the reads, by the tasks passed so far, of what the buffer holds at this point of the walk.
    `writes[site]` are the writes of those tasks to memory that may be reused; the write that runs first is at the end.
    """

    def __init__(
        self,
        bundle: ExecutablePlan,
        tasks: Sequence[AnyTask],
        devices: Sequence[int] | None,
        peers: Collection[tuple[int, int]],
    ) -> None:
        sites = devices or [0] * len(bundle.memory)
        self.devices = [sites[buffer.site] for buffer in bundle.buffers]
        self.peers = peers
        self.tasks = list(tasks)
        self.buffers = bundle.buffers
        self.spans = [span(bundle, number) for number in range(len(bundle.buffers))]
        self.looks = 0
        self.saved = find_output_buffers(bundle)
        self.uses: dict[int, list[_OperandUse]] = defaultdict(list)
        self.writes: dict[int, list[tuple[int, Region]]] = defaultdict(list)
        self.sources: dict[int, list[Region]] = {}
        """For tasks that read other regions than before: all regions that they read."""

    def run(self) -> tuple[AnyTask, ...]:
        for number in range(len(self.tasks) - 1, -1, -1):
            task = self.tasks[number]
            if isinstance(task, TransferTask) and self._redirect_readers(task):
                self.tasks[number] = FenceTask(task.site, task.serves, task.after)
                continue
            for region in writes_of(task):
                self.uses[region.buffer] = list(_keep_earlier(self.uses[region.buffer], region.block))
                self.writes[self.buffers[region.buffer].site].append((number, region))
            for operand, region in enumerate(reads_of(task)):
                self.uses[region.buffer].append(_OperandUse(region.block, number, operand))
        for number, reads in self.sources.items():
            self.tasks[number] = replace_reads(self.tasks[number], reads)
        return tuple(self.tasks)

    def _redirect_readers(self, transfer: TransferTask) -> bool:
        """Lets all readers of what the transfer writes read its source. False, and no change, if one of them cannot."""
        source, target = transfer.read, transfer.write
        pair = self.devices[target.buffer], self.devices[source.buffer]
        if target.buffer in self.saved or (pair[0] != pair[1] and pair not in self.peers):
            return False
        served: list[_OperandUse] = []
        unserved: list[_OperandUse] = []
        for use in self.uses[target.buffer]:
            (served if use.block.overlaps(target.block) else unserved).append(use)
        if any(use.torn or not target.block.contains(use.block) for use in served):
            return False
        if pair[0] != pair[1] and not all(isinstance(self.tasks[use.reader], AggregateTask) for use in served):
            return False  # others may read an operand many times, and over a link each time
        if self._is_overwritten(source, max((use.reader for use in served), default=-1)):
            return False
        for use in served:
            reads = self.sources.setdefault(use.reader, list(reads_of(self.tasks[use.reader])))
            reads[use.operand] = Region(source.buffer, use.block)
        self.uses[target.buffer] = unserved
        self.uses[source.buffer] += served
        return True

    def _is_overwritten(self, region: Region, last: int) -> bool:
        """Whether a task up to and including `last` writes bytes of the region, or to a buffer that shares bytes; also
        where this would take long to find out."""
        start, end = self.spans[region.buffer]
        for number, written in reversed(self.writes[self.buffers[region.buffer].site]):
            if number > last:
                return False
            self.looks += 1
            low, high = self.spans[written.buffer]
            shares = (
                written.block.overlaps(region.block) if written.buffer == region.buffer else low < end and start < high
            )
            if shares or self.looks > MAX_COMPARED_WRITES:
                return True
        return False


def _keep_earlier(uses: Sequence[_OperandUse], written: Block) -> Iterator[_OperandUse]:
    """The reads of which at least a part is older than the written block."""
    for use in uses:
        if not written.contains(use.block):
            use.torn = use.torn or use.block.overlaps(written)
            yield use


def replace_reads(task: AnyTask, regions: Sequence[Region]) -> AnyTask:
    if isinstance(task, TransferTask):
        return msgspec.structs.replace(task, read=regions[0])
    return msgspec.structs.replace(task, reads=tuple(regions))
