"""Transfers that need no copy where all sites share one memory: their readers read the source instead.

A transfer becomes a fence if every reader of what it wrote can be pointed at the source region, which nobody writes
before the last of them has read it. Whoever writes it later has to wait for them, as `dependencies` says. The plan
itself is left as it is: this is one executor's way of running it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from einc_runtime.plan.boxes import inside, overlap
from einc_runtime.plan.regions import reads_of, results, span, writes_of
from einc_runtime.plan.schema import AnyTask, Block, Bundle, FenceTask, Region, TransferTask

MAX_SHARING = 1 << 20
"""Pairs of buffers that share bytes; plans with more run as they are."""


def forward(
    bundle: Bundle, tasks: Sequence[AnyTask] | None = None, *, devices: Sequence[int] | None = None
) -> tuple[AnyTask, ...]:
    """The tasks of a validated bundle, with as many transfers as possible replaced by fences.

    `tasks` are the bundle's own unless it is run otherwise already. `devices` tells which sites share a memory: those
    of one device. Without it, all do. What tasks wait for stays as it was, which is not enough any more.
    """
    own, sharing = tuple(bundle.tasks if tasks is None else tasks), _sharing(bundle)
    return own if sharing is None else _Forwarding(bundle, own, sharing, devices).run()


class _Use:
    """Operand `operand` of the task `reader` is `block` of a buffer; `torn` if later tasks than one write that."""

    __slots__ = ("block", "operand", "reader", "torn")

    def __init__(self, block: Block, reader: int, operand: int) -> None:
        self.block, self.reader, self.operand = block, reader, operand
        self.torn = False


class _Forwarding:
    """A walk from the last task to the first, so that a transfer that passes on what another brought comes before it.

    `uses[buffer]` are the reads, by the tasks passed so far, of what the buffer has at this point; `writes[buffer]` is
    what those tasks write to it, the next one at the end.
    """

    def __init__(
        self, bundle: Bundle, tasks: Sequence[AnyTask], sharing: Sequence[Sequence[int]], devices: Sequence[int] | None
    ) -> None:
        sites = devices or [0] * len(bundle.memory)
        self.devices = [sites[buffer.site] for buffer in bundle.buffers]
        self.tasks = list(tasks)
        self.sharing = sharing
        self.saved = results(bundle)
        self.uses: dict[int, list[_Use]] = defaultdict(list)
        self.writes: dict[int, list[tuple[int, Block]]] = defaultdict(list)
        self.sources: dict[int, list[Region]] = {}
        """Of tasks that read other regions now: all that they read."""

    def run(self) -> tuple[AnyTask, ...]:
        for number in range(len(self.tasks) - 1, -1, -1):
            task = self.tasks[number]
            if isinstance(task, TransferTask) and self._spared(task):
                self.tasks[number] = FenceTask(task.site, task.serves, task.after)
                continue
            for region in writes_of(task):
                self.uses[region.buffer] = list(_before(self.uses[region.buffer], region.block))
                self.writes[region.buffer].append((number, region.block))
            for operand, region in enumerate(reads_of(task)):
                self.uses[region.buffer].append(_Use(region.block, number, operand))
        for number, reads in self.sources.items():
            self.tasks[number] = reading(self.tasks[number], reads)
        return tuple(self.tasks)

    def _spared(self, transfer: TransferTask) -> bool:
        """Whether all that want what the transfer writes have been pointed at what it reads."""
        source, target = transfer.read, transfer.write
        if target.buffer in self.saved or self.devices[source.buffer] != self.devices[target.buffer]:
            return False
        here: list[_Use] = []
        elsewhere: list[_Use] = []
        for use in self.uses[target.buffer]:
            (here if overlap(use.block, target.block) else elsewhere).append(use)
        if any(use.torn or not inside(use.block, target.block) for use in here):
            return False
        if self._overwritten(source, max((use.reader for use in here), default=-1)):
            return False
        for use in here:
            reads = self.sources.setdefault(use.reader, list(reads_of(self.tasks[use.reader])))
            reads[use.operand] = Region(source.buffer, use.block)
        self.uses[target.buffer] = elsewhere
        self.uses[source.buffer] += here
        return True

    def _overwritten(self, region: Region, last: int) -> bool:
        """Whether a task up to and with `last` writes bytes of the region: where to another buffer, any it shares."""
        for other in self.sharing[region.buffer]:
            for number, block in reversed(self.writes[other]):
                if number > last:
                    break
                if other != region.buffer or overlap(block, region.block):
                    return True
        return False


def _before(uses: Sequence[_Use], written: Block) -> Iterator[_Use]:
    """The reads that want something of what was there before a block is written."""
    for use in uses:
        if not inside(use.block, written):
            use.torn = use.torn or overlap(use.block, written)
            yield use


def reading(task: AnyTask, regions: Sequence[Region]) -> AnyTask:
    """The task with other regions to read."""
    if isinstance(task, TransferTask):
        return msgspec.structs.replace(task, read=regions[0])
    return msgspec.structs.replace(task, reads=tuple(regions))


def _sharing(bundle: Bundle) -> list[list[int]] | None:
    """For every buffer, those with bytes in common, itself among them; None where there are too many."""
    spans: list[list[tuple[int, int, int]]] = [[] for _ in bundle.memory]
    for number, buffer in enumerate(bundle.buffers):
        spans[buffer.site].append((*span(bundle, number), number))
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
