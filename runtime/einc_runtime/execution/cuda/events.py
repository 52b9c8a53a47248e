"""Computes the fewest events that keep the dependencies of a plan's steps, from the steps alone.

Steps are enqueued in their order, each on one stream, so that the steps of a stream need no events among themselves.
Of all other dependencies only those are kept that no path implies: the transitive reduction of the dependencies of the
plan and the order of every stream. Stream 0 is the origin: a capture begins and ends there, so that the first step of
every stream follows the origin's start, and the origin's end follows the last step of every stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.execution.cuda.streams import StreamSpec, StreamStep

START = -1
"""In place of a step that is waited for: the start of the origin."""


@dataclass(frozen=True, slots=True)
class EventSchedule:
    """`waits[step]` are the steps (or START) whose events a step waits for; `last_waits` are those of the origin's end.

    `event_of[step]` is the event that is recorded right after a step, or None. An event is used again when all steps
    that wait for it have been enqueued. `start_event` stands for START; `event_devices` are the devices of all events.
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


def schedule_events(steps: Sequence[StreamStep], streams: Sequence[StreamSpec]) -> EventSchedule:
    """The events of steps whose `after` names earlier ones; there is at least one stream."""
    waits, last_waits = _reduce_waits(steps, len(streams))
    event_of, start_event, devices = _assign_events(steps, streams, waits, last_waits)
    return EventSchedule(waits, last_waits, event_of, start_event, devices)


def _reduce_waits(steps: Sequence[StreamStep], streams: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The waits that are needed.

    `known[step][stream]` is the number of steps of that stream that have surely ended when the step has ended; the
    start of the origin counts as one. For a step without a stream, that is what waiting for it means.
    """
    known = np.zeros((len(steps), streams), np.int32)
    members: list[list[int]] = [[START], *([] for _ in range(streams - 1))]
    position = [0] * len(steps)  # how many of its stream's steps have ended when it has
    tails: list[Array] = [np.zeros(streams, np.int32) for _ in range(streams)]  # known at the end of a stream so far
    tails[0][0] = 1
    clock_of_start = tails[0].copy()

    def wait(clock: Array, required: dict[int, int]) -> tuple[int, ...]:
        """The needed ones among `required` (per stream, how many must have ended); they are added to what is known."""
        needed: list[int] = []
        candidates = [(members[stream][count - 1], stream, count) for stream, count in required.items() if count]
        for number, stream, count in sorted(candidates, reverse=True):
            if clock[stream] < count:
                needed.append(number)
                np.maximum(clock, clock_of_start if number == START else known[number], out=clock)
        return tuple(needed)

    waits: list[tuple[int, ...]] = []
    for number, step in enumerate(steps):
        if step.stream is None:
            clock = known[number]
            for earlier in step.after:
                np.maximum(clock, known[earlier], out=clock)
            waits.append(())
            continue
        required: dict[int, int] = {}
        for earlier in step.after:
            home = steps[earlier].stream
            reached = enumerate(known[earlier].tolist()) if home is None else [(home, position[earlier])]
            for stream, count in reached:
                required[stream] = max(required.get(stream, 0), count)
        if not members[step.stream]:
            required[0] = max(required.get(0, 0), 1)
        clock = known[number]
        clock[:] = tails[step.stream]
        waits.append(wait(clock, required))
        members[step.stream].append(number)
        position[number] = len(members[step.stream])
        clock[step.stream] = position[number]
        tails[step.stream] = clock
    ends = {stream: len(steps_of) for stream, steps_of in enumerate(members) if stream}
    return tuple(waits), wait(tails[0].copy(), ends)


def _assign_events(
    steps: Sequence[StreamStep],
    streams: Sequence[StreamSpec],
    waits: Sequence[Sequence[int]],
    last_waits: Sequence[int],
) -> tuple[tuple[int | None, ...], int | None, tuple[int, ...]]:
    """An event for every step that is waited for, taken from those of the same device that are free again."""
    left: dict[int, int] = {}
    for required in (*waits, last_waits):
        for number in required:
            left[number] = left.get(number, 0) + 1
    event_of: list[int | None] = [None] * len(steps)
    start_event: int | None = None
    devices: list[int] = []
    free: dict[int, list[int]] = {}

    def take(stream: int) -> int:
        device = streams[stream].device
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
        if number in left and step.stream is not None:
            event_of[number] = take(step.stream)
    return tuple(event_of), start_event, tuple(devices)
