"""Turns the tasks of a plan into steps on streams, before any memory is taken.

Kernels, aggregations and copies of a site follow one another on the compute stream of the site. Transfers have a stream
for every pair of sites, on the sender's device, so that each direction of each link is busy on its own. A transfer
between devices that cannot reach each other's memory goes through pinned host memory in pieces, two steps for each: out
on a stream of the sender, in on a stream of the receiver. While a piece goes in, the next one goes out.

Weights that are read ahead (`plan/early_reads.py`) have a stream of their own at every site, for which nothing waits.

Messages to and from other processes have one stream on each device, its lane. Those of a group are one step. Where
there are several devices, it waits for all that comes before it on its own (`plan/lanes.py` says why).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from einc_runtime.plan.early_reads import EarlyRead, find_early_reads
from einc_runtime.plan.lanes import group_messages
from einc_runtime.plan.peer_sums import PeerSum, list_waits
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import ITEMSIZE, AnyTask, Bundle, FenceTask, Region, TransferTask

STAGING_BUFFERS = 2
"""Host buffers for a pair of sites whose transfers are staged: one is filled while the other is emptied."""

MAX_STAGED_BYTES = 4 << 20
"""A piece of a staged transfer: long enough that starting its copies costs little, short enough for them to overlap."""

Box = tuple[tuple[int, int], ...]
"""A part of an array: from where to where, for each of its dimensions."""


class StepKind(Enum):
    """What a step does: a whole task, one half of a staged transfer, a group of messages with other processes, reading
    weights of a task into the cache before it runs, or at the end fetching the small outputs or the status words of a
    device, or taking back the flags that were set there."""

    TASK = "task"
    STAGE_OUT = "out"
    STAGE_IN = "in"
    MESSAGES = "messages"
    EARLY = "early"
    OUTPUTS = "outputs"
    STATUS = "status"
    FLAGS = "flags"


_STREAM_WAYS = {StepKind.STAGE_OUT: ", to the host", StepKind.STAGE_IN: ", from the host", StepKind.EARLY: ", ahead"}


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream of a device: one of a site for what it computes, one for what it reads ahead, one for a direction in
    which it sends, or its lane."""

    device: int
    name: str


@dataclass(frozen=True, slots=True)
class StreamStep:
    """What is enqueued on `stream` once the earlier steps `after` have ended; without a stream it only passes that on.

    `task` is the position of its task, and -1 for outputs and status words. `staging` is the host buffer of a staged
    transfer, a position in `StreamSchedule.staging_bytes`, and `piece` the part of the region that it moves.
    `messages` are the tasks of a group of messages, and `regions` what is read ahead for the task. Steps of one
    `peer_sum`, which follow each other, also wait until all of them have begun, by flags (-1: the step is of none).
    """

    stream: int | None
    after: tuple[int, ...]
    task: int = -1
    kind: StepKind = StepKind.TASK
    staging: int = -1
    piece: Box = ()
    messages: tuple[int, ...] = ()
    regions: tuple[Region, ...] = ()
    peer_sum: int = -1


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """Streams, steps, and the sizes in bytes of the host buffers; stream s is the compute stream of site s."""

    streams: tuple[StreamSpec, ...]
    steps: tuple[StreamStep, ...]
    staging_bytes: tuple[int, ...]

    def device_of(self, step: int) -> int:
        """The device of a step that has a stream."""
        stream = self.steps[step].stream
        assert stream is not None, "fences are on no device"
        return self.streams[stream].device

    def fuse_steps(self, groups: Mapping[int, Sequence[int]]) -> StreamSchedule:
        """Lets the first step of each group (positions of steps) do the work of the others, too.

        The first step waits for what any of them waits for, and the others only pass on that the first has ended.
        """
        steps = list(self.steps)
        for first, more in groups.items():
            group = {first, *more}
            later = tuple(
                dict.fromkeys(earlier for number in more for earlier in steps[number].after if earlier not in group)
            )
            for number in more:
                steps[number] = replace(steps[number], stream=None, after=(first, *later))
            steps[first] = replace(steps[first], after=tuple(dict.fromkeys((*steps[first].after, *later))))
        return replace(self, steps=tuple(steps))

    def leave_out(self, numbers: Collection[int]) -> StreamSchedule:
        """Lets these steps do nothing."""
        left = set(numbers)
        steps = (replace(step, stream=None) if number in left else step for number, step in enumerate(self.steps))
        return replace(self, steps=tuple(steps))

    def add_end_steps(self, kind: StepKind, devices: Collection[int]) -> StreamSchedule:
        """Adds a step of this kind on each of these devices, when all others have ended but reading ahead."""
        waited = {earlier for step in self.steps for earlier in step.after}
        ends = [n for n, step in enumerate(self.steps) if n not in waited and step.kind is not StepKind.EARLY]
        streams = {stream.device: number for number, stream in reversed([*enumerate(self.streams)])}
        more = (StreamStep(streams[device], tuple(ends), kind=kind) for device in devices)
        return replace(self, steps=(*self.steps, *more))

    def add_last_steps(self, kind: StepKind, after: Collection[int]) -> StreamSchedule:
        """Adds a step of this kind for every device of the steps `after`, when those of the device have ended."""
        steps = list(self.steps)
        by_device: dict[int, list[int]] = {}
        for number in sorted(after):
            by_device.setdefault(self.device_of(number), []).append(number)
        for _, steps_here in sorted(by_device.items()):
            steps.append(StreamStep(self.steps[steps_here[-1]].stream, tuple(steps_here), kind=kind))
        return replace(self, steps=tuple(steps))


def schedule_steps(
    bundle: Bundle,
    tasks: Sequence[AnyTask],
    devices: Sequence[int],
    staged: Collection[tuple[int, int]],
    messages: Collection[int] = (),
    peer_sums: Sequence[PeerSum] = (),
) -> StreamSchedule:
    """The steps of the tasks of a bundle, in their order; `staged` are the pairs of devices that use host memory,
    `messages` the tasks that send something to another process or receive something from it, and `peer_sums` those of
    which nothing is sent.

    Sites that have a device for themselves read weights ahead: others keep a device busy while one of them waits."""
    builder = _ScheduleBuilder(bundle, devices, staged)
    for early in find_early_reads(bundle, tasks, messages):
        if devices.count(devices[tasks[early.task].site]) == 1:
            builder.early.setdefault(early.after, []).append(early)
    return builder.run(tasks, messages, peer_sums)


def split_box(shape: Sequence[int], order: Sequence[int], most: int) -> Iterator[Box]:
    """Parts of at most `most` elements (at least 1) of an array, long runs of its memory, in the order of memory.

    `order` names the dimensions from the slowest to the fastest; where it is empty, that is their own order.
    """
    dims = list(order or range(len(shape)))
    run = 1
    while dims and run * shape[dims[-1]] <= most:
        run *= shape[dims.pop()]
    if not dims:
        yield tuple((0, extent) for extent in shape)
        return
    split, step = dims.pop(), most // run
    for positions in itertools.product(*(range(shape[dim]) for dim in dims)):
        fixed = dict(zip(dims, positions, strict=True))
        for start in range(0, shape[split], step):
            ends = {dim: (at, at + 1) for dim, at in fixed.items()}
            ends[split] = start, min(start + step, shape[split])
            yield tuple(ends.get(dim, (0, extent)) for dim, extent in enumerate(shape))


class _ScheduleBuilder:
    def __init__(self, bundle: Bundle, devices: Sequence[int], staged: Collection[tuple[int, int]]) -> None:
        self.bundle, self.devices, self.staged = bundle, devices, staged
        self.streams = [StreamSpec(device, f"site {site}") for site, device in enumerate(devices)]
        self.steps: list[StreamStep] = []
        self.staging_bytes: list[int] = []
        self._stream_of: dict[tuple[int, int, StepKind], int] = {}
        self._buffers_of: dict[tuple[int, int], list[int]] = {}
        self._last_use: list[int | None] = []  # per host buffer, the step that emptied it last
        self._turn: dict[tuple[int, int], int] = {}
        self.early: dict[int, list[EarlyRead]] = {}  # by the task after which they may begin
        self._lanes: dict[int, int] = {}  # device -> its stream for messages
        self._passed: dict[int, int] = {}  # device -> how many steps there were when its last group or sum was added

    def run(self, tasks: Sequence[AnyTask], messages: Collection[int], peer_sums: Sequence[PeerSum]) -> StreamSchedule:
        home = {number: self._device_of_message(tasks[number]) for number in messages}
        group_of = {number: group for group in group_messages(tasks, home) for number in group}
        sums_of = {number: n for n, s in enumerate(peer_sums) for number in (*s.moves, *s.tasks, *s.gathers)}
        last = [-1] * len(tasks)  # per task, its last step
        for number, task in enumerate(tasks):
            group = group_of.get(number, (number,))
            if number != group[-1]:
                continue  # one step does all of a group, after the fences between its messages
            after = tuple(last[earlier] for member in group for earlier in tasks[member].after)
            if number in sums_of:
                self._add_sum(tasks, sums_of[number], peer_sums[sums_of[number]], last)
            elif number in home:
                self._add_group(group, home[number], after)
            elif isinstance(task, TransferTask):
                self._add_transfer(number, task, after)
            else:
                stream = None if isinstance(task, FenceTask) else task.site
                self.steps.append(StreamStep(stream, after, number))
            for member in group if number not in sums_of else ():
                last[member] = len(self.steps) - 1
            for early in self.early.get(number, ()):
                self._add_early(early, task.site, last[number])
        return StreamSchedule(tuple(self.streams), tuple(self.steps), tuple(self.staging_bytes))

    def _add_sum(self, tasks: Sequence[AnyTask], number: int, peer_sum: PeerSum, last: list[int]) -> None:
        """All of a sum at the place of its first task, once; each part begins after all that comes before on its
        device, and after all that what it gathers waits for. A part ends when all have written what it gets of them."""
        if last[peer_sum.tasks[0]] >= 0:
            return
        for move in peer_sum.moves:
            self.steps.append(StreamStep(None, tuple(last[before] for before in tasks[move].after), move))
            last[move] = len(self.steps) - 1
        before_sum = {task: self._list_new_steps(self.devices[tasks[task].site]) for task in peer_sum.tasks}
        gathered = {tasks[g].site: list_waits(tasks, g) for g in peer_sum.gathers}
        for task, before_here in before_sum.items():
            waits = [*tasks[task].after, *(b for b in gathered.get(tasks[task].site, ()) if b < peer_sum.first)]
            after = dict.fromkeys((*(last[before] for before in waits), *before_here))
            self.steps.append(StreamStep(tasks[task].site, tuple(after), task, peer_sum=number))
            last[task] = len(self.steps) - 1
        at = {tasks[task].site: task for task in peer_sum.tasks}
        for gather in peer_sum.gathers:
            (written,) = writes_of(tasks[gather])
            self.steps.append(StreamStep(None, (last[at[self.bundle.buffers[written.buffer].site]],), gather))
            last[gather] = len(self.steps) - 1

    def _list_new_steps(self, device: int) -> list[int]:
        """The steps of a device that were added since this was asked for last, but for those that nobody waits for."""
        start, self._passed[device] = self._passed.get(device, 0), len(self.steps)
        steps = ((number, self.steps[number]) for number in range(start, len(self.steps)))
        return [
            number
            for number, step in steps
            if step.kind is not StepKind.EARLY
            and step.stream is not None
            and self.streams[step.stream].device == device
        ]

    def _add_early(self, early: EarlyRead, site: int, after: int) -> None:
        stream = self._stream(site, site, StepKind.EARLY)
        self.steps.append(StreamStep(stream, (after,), early.task, StepKind.EARLY, regions=early.regions))

    def _device_of_message(self, task: AnyTask) -> int:
        (region,) = (*reads_of(task), *writes_of(task))
        return self.devices[self.bundle.buffers[region.buffer].site]

    def _add_group(self, group: tuple[int, ...], device: int, after: tuple[int, ...]) -> None:
        if device not in self._lanes:
            self._lanes[device] = len(self.streams)
            self.streams.append(StreamSpec(device, f"messages of device {device}"))
        if len(set(self.devices)) > 1:
            after = (*after, *self._list_new_steps(device))
        after = tuple(dict.fromkeys(after))
        self.steps.append(StreamStep(self._lanes[device], after, group[0], StepKind.MESSAGES, messages=group))

    def _add_transfer(self, number: int, task: TransferTask, after: tuple[int, ...]) -> None:
        source, target = (self.bundle.buffers[region.buffer].site for region in (task.read, task.write))
        if (self.devices[source], self.devices[target]) not in self.staged:
            self.steps.append(StreamStep(self._stream(source, target, StepKind.TASK), after, number))
            return
        tensor = self.bundle.tensors[self.bundle.buffers[task.read.buffer].tensor]
        itemsize = ITEMSIZE[tensor.dtype]
        for piece in split_box(task.read.block.shape, tensor.order, MAX_STAGED_BYTES // itemsize):
            staging = self._next_staging_buffer(
                source, target, math.prod(end - start for start, end in piece) * itemsize
            )
            emptied = self._last_use[staging]
            before = after if emptied is None else (*after, emptied)
            for kind in (StepKind.STAGE_OUT, StepKind.STAGE_IN):
                self.steps.append(StreamStep(self._stream(source, target, kind), before, number, kind, staging, piece))
                before = (len(self.steps) - 1,)
            self._last_use[staging] = len(self.steps) - 1

    def _stream(self, source: int, target: int, kind: StepKind) -> int:
        key = source, target, kind
        if key not in self._stream_of:
            device = self.devices[target if kind is StepKind.STAGE_IN else source]
            ways = {
                StepKind.EARLY: ", ahead",
                StepKind.STAGE_OUT: ", to the host",
                StepKind.STAGE_IN: ", from the host",
            }
            way = ways.get(kind, "")
            self._stream_of[key] = len(self.streams)
            pair = f"{source}" if source == target else f"{source} to {target}"
            self.streams.append(StreamSpec(device, f"site {pair}{way}"))
        return self._stream_of[key]

    def _next_staging_buffer(self, source: int, target: int, needed: int) -> int:
        """The next host buffer of the pair, in turn, made large enough."""
        pair_buffers = self._buffers_of.setdefault((source, target), [])
        turn = self._turn.get((source, target), 0)
        self._turn[source, target] = turn + 1
        if len(pair_buffers) < STAGING_BUFFERS:
            pair_buffers.append(len(self.staging_bytes))
            self.staging_bytes.append(0)
            self._last_use.append(None)
        staging = pair_buffers[turn % STAGING_BUFFERS]
        self.staging_bytes[staging] = max(self.staging_bytes[staging], needed)
        return staging
