"""Which stream does what, and the fewest events that keep a plan's dependencies: pure, and the same for every run.

Steps are enqueued in their order, each on one stream (here: lane), so that a lane's steps follow one another without
an event. Of all other dependencies only those are kept that no path implies: the transitive reduction of the plan's
dependencies and the lanes' own order. Lane 0 is the origin: a capture begins and ends there, so that every lane's
first step follows the origin's start, and the origin's end follows every lane's last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array

START = -1
"""As a step that is waited for: the start of the origin."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream of a device: a site's own for what it computes, and one for each direction in which it sends."""

    device: int
    name: str


@dataclass(frozen=True, slots=True)
class Step:
    """What is enqueued for a task, or for a part of it, on `lane`, once the earlier steps `after` have ended.

    A step without a lane does nothing and only passes on what it waits for.
    """

    lane: int | None
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """`waits[step]` are the steps (or START) whose events a step waits for, and `last_waits` those of the origin's end.

    `event_of[step]` is the event that is recorded right after a step, or None; an event is used again when all that
    wait for it have been enqueued. `start_event` stands for START. `event_devices` are the devices of all events.
    """

    waits: tuple[tuple[int, ...], ...]
    last_waits: tuple[int, ...]
    event_of: tuple[int | None, ...]
    start_event: int | None
    event_devices: tuple[int, ...]

    @property
    def edges(self) -> int:
        """How many waits there are."""
        return sum(map(len, self.waits)) + len(self.last_waits)


def ordered(steps: Sequence[Step], lanes: Sequence[Lane]) -> Order:
    """The order of steps whose `after` names earlier ones; there is at least one lane."""
    waits, last_waits = _reduced(steps, len(lanes))
    event_of, start_event, devices = _events(steps, lanes, waits, last_waits)
    return Order(waits, last_waits, event_of, start_event, devices)


def _reduced(steps: Sequence[Step], lanes: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The waits that are needed.

    `known[step][lane]` is the number of steps of that lane that have surely ended when the step has; for the origin
    its start counts as one. For a step without a lane, that is what waiting for it means.
    """
    known = np.zeros((len(steps), lanes), np.int32)
    members: list[list[int]] = [[START], *([] for _ in range(lanes - 1))]
    position = [0] * len(steps)  # how many of its lane's steps have ended when it has
    tails: list[Array] = [np.zeros(lanes, np.int32) for _ in range(lanes)]  # known at the end of a lane so far
    tails[0][0] = 1
    clock_of_start = tails[0].copy()

    def wait(clock: Array, wanted: dict[int, int]) -> tuple[int, ...]:
        """The needed ones among `wanted` (per lane, how many must have ended); they are added to what is known."""
        needed: list[int] = []
        candidates = [(members[lane][count - 1], lane, count) for lane, count in wanted.items() if count]
        for number, lane, count in sorted(candidates, reverse=True):
            if clock[lane] < count:
                needed.append(number)
                np.maximum(clock, clock_of_start if number == START else known[number], out=clock)
        return tuple(needed)

    waits: list[tuple[int, ...]] = []
    for number, step in enumerate(steps):
        if step.lane is None:
            clock = known[number]
            for earlier in step.after:
                np.maximum(clock, known[earlier], out=clock)
            waits.append(())
            continue
        wanted: dict[int, int] = {}
        for earlier in step.after:
            own = steps[earlier].lane
            reached = enumerate(known[earlier].tolist()) if own is None else [(own, position[earlier])]
            for lane, count in reached:
                wanted[lane] = max(wanted.get(lane, 0), count)
        if not members[step.lane]:
            wanted[0] = max(wanted.get(0, 0), 1)
        clock = known[number]
        clock[:] = tails[step.lane]
        waits.append(wait(clock, wanted))
        members[step.lane].append(number)
        position[number] = len(members[step.lane])
        clock[step.lane] = position[number]
        tails[step.lane] = clock
    ends = {lane: len(steps_of) for lane, steps_of in enumerate(members) if lane}
    return tuple(waits), wait(tails[0].copy(), ends)


def _events(
    steps: Sequence[Step], lanes: Sequence[Lane], waits: Sequence[Sequence[int]], last_waits: Sequence[int]
) -> tuple[tuple[int | None, ...], int | None, tuple[int, ...]]:
    """An event for everything that is waited for, taken from those that are free again; events belong to devices."""
    left: dict[int, int] = {}
    for wanted in (*waits, last_waits):
        for number in wanted:
            left[number] = left.get(number, 0) + 1
    event_of: list[int | None] = [None] * len(steps)
    start_event: int | None = None
    devices: list[int] = []
    free: dict[int, list[int]] = {}

    def take(lane: int) -> int:
        device = lanes[lane].device
        if free.get(device):
            return free[device].pop()
        devices.append(device)
        return len(devices) - 1

    if START in left:
        start_event = take(0)
    for number, step in enumerate(steps):
        for earlier in waits[number]:
            left[earlier] -= 1
            event = start_event if earlier == START else event_of[earlier]
            if not left[earlier] and event is not None:
                free.setdefault(devices[event], []).append(event)
        if number in left and step.lane is not None:
            event_of[number] = take(step.lane)
    return tuple(event_of), start_event, tuple(devices)
