"""What is enqueued for every task of a plan, and on which lane (stream): the plan as steps, before any memory.

Kernels, aggregations and copies of a site follow one another on its compute lane. Transfers have a lane for every pair
of sites, on the sender's device, so that each direction of each link is busy on its own. A transfer between devices
that cannot reach each other is two steps, by way of pinned host memory: out on a lane of the sender, in on one of the
receiver.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from einc_runtime.execution.cuda.order import Lane, Step
from einc_runtime.plan.boxes import size
from einc_runtime.plan.schema import ITEMSIZE, AnyTask, Bundle, FenceTask, Region, TransferTask

SLOTS = 2
"""Host buffers per pair of sites that are staged: one is filled while the other is emptied."""


class Part(Enum):
    """What a step does of its task."""

    TASK = "task"
    OUT = "out"
    IN = "in"
    STATUS = "status"


@dataclass(frozen=True, slots=True)
class Work:
    """What a step is for: a task (a position; of `tasks`), or the status words of a device, with task -1.

    `slot` is the host buffer of a staged transfer, a position in `Layout.slots`.
    """

    task: int
    part: Part
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """Lanes, steps with what each is for, and the sizes in bytes of the host buffers; lane s computes for site s."""

    lanes: tuple[Lane, ...]
    steps: tuple[Step, ...]
    works: tuple[Work, ...]
    slots: tuple[int, ...]

    def device(self, step: int) -> int:
        """The device of a step that does something."""
        lane = self.steps[step].lane
        assert lane is not None, "fences are on no device"
        return self.lanes[lane].device

    def with_status(self, checking: Collection[int]) -> Layout:
        """With a step for every device of the steps `checking`, after those: it fetches the device's status words."""
        steps, works = list(self.steps), list(self.works)
        by_device: dict[int, list[int]] = {}
        for number in sorted(checking):
            by_device.setdefault(self.device(number), []).append(number)
        for _, own in sorted(by_device.items()):
            steps.append(Step(self.steps[own[-1]].lane, tuple(own)))
            works.append(Work(-1, Part.STATUS))
        return Layout(self.lanes, tuple(steps), tuple(works), self.slots)


def lay_out(
    bundle: Bundle, tasks: Sequence[AnyTask], devices: Sequence[int], staged: Collection[tuple[int, int]]
) -> Layout:
    """The steps of the tasks of a bundle, in their order; `staged` are pairs of devices."""
    return _Builder(bundle, devices, staged).run(tasks)


class _Builder:
    def __init__(self, bundle: Bundle, devices: Sequence[int], staged: Collection[tuple[int, int]]) -> None:
        self.bundle, self.devices, self.staged = bundle, devices, staged
        self.lanes = [Lane(device, f"site {site}") for site, device in enumerate(devices)]
        self.steps: list[Step] = []
        self.works: list[Work] = []
        self.slots: list[int] = []
        self._lane_of: dict[tuple[int, int, Part], int] = {}
        self._slots_of: dict[tuple[int, int], list[int]] = {}
        self._last_use: list[int | None] = []  # per slot, the step that emptied it last
        self._turn: dict[tuple[int, int], int] = {}

    def run(self, tasks: Sequence[AnyTask]) -> Layout:
        last: list[int] = []  # per task, its last step
        for number, task in enumerate(tasks):
            after = tuple(last[earlier] for earlier in task.after)
            if isinstance(task, FenceTask):
                self._add(None, after, Work(number, Part.TASK))
            elif isinstance(task, TransferTask):
                self._transfer(number, task, after)
            else:
                self._add(task.site, after, Work(number, Part.TASK))
            last.append(len(self.steps) - 1)
        return Layout(tuple(self.lanes), tuple(self.steps), tuple(self.works), tuple(self.slots))

    def _transfer(self, number: int, task: TransferTask, after: tuple[int, ...]) -> None:
        source, target = (self.bundle.buffers[region.buffer].site for region in (task.read, task.write))
        if (self.devices[source], self.devices[target]) not in self.staged:
            self._add(self._lane(source, target, Part.TASK), after, Work(number, Part.TASK))
            return
        slot = self._slot(source, target, self._bytes(task.read))
        emptied = self._last_use[slot]
        before = after if emptied is None else (*after, emptied)
        self._add(self._lane(source, target, Part.OUT), before, Work(number, Part.OUT, slot))
        self._add(self._lane(source, target, Part.IN), (len(self.steps) - 1,), Work(number, Part.IN, slot))
        self._last_use[slot] = len(self.steps) - 1

    def _add(self, lane: int | None, after: tuple[int, ...], work: Work) -> None:
        self.steps.append(Step(lane, after))
        self.works.append(work)

    def _lane(self, source: int, target: int, part: Part) -> int:
        key = source, target, part
        if key not in self._lane_of:
            device = self.devices[target if part is Part.IN else source]
            way = {Part.TASK: "", Part.OUT: ", to the host", Part.IN: ", from the host"}[part]
            self._lane_of[key] = len(self.lanes)
            self.lanes.append(Lane(device, f"site {source} to {target}{way}"))
        return self._lane_of[key]

    def _slot(self, source: int, target: int, needed: int) -> int:
        """The pair's next host buffer, in turn, made large enough."""
        own = self._slots_of.setdefault((source, target), [])
        turn = self._turn.get((source, target), 0)
        self._turn[source, target] = turn + 1
        if len(own) < SLOTS:
            own.append(len(self.slots))
            self.slots.append(0)
            self._last_use.append(None)
        slot = own[turn % SLOTS]
        self.slots[slot] = max(self.slots[slot], needed)
        return slot

    def _bytes(self, region: Region) -> int:
        buffer = self.bundle.buffers[region.buffer]
        return size(region.block) * ITEMSIZE[self.bundle.tensors[buffer.tensor].dtype]
