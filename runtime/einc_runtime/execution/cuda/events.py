"""Computes the fewest events that keep the dependencies of a plan's steps, from the steps alone.

Steps are enqueued in their order, each on one stream, so that the steps of a stream need no events among themselves.
Of all other dependencies only those are kept that no path implies: the transitive reduction of the dependencies of the
plan and the order of every stream. Stream 0 is the origin: a capture begins and ends there, so that the first step of
every stream follows the origin's start, and the origin's end follows the last step of every stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
    waits, last_waits = _reduce_waits(steps, [stream.device for stream in streams])
    event_of, start_event, devices = _assign_events(steps, streams, waits, last_waits)
    return EventSchedule(waits, last_waits, event_of, start_event, devices)


def _reduce_waits(
    steps: Sequence[StreamStep], devices: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The waits that are needed; `devices` are those of the streams.

    `known[step][stream]` is the number of steps of that stream that have surely ended when the step has ended; the
    start of the origin counts as one. For a step without a stream, that is what waiting for it means.
    """
    streams = len(devices)
    known = np.zeros((len(steps), streams), np.int32)
    members: list[list[int]] = [[START], *([] for _ in range(streams - 1))]
    position = [0] * len(steps)  # how many of its stream's steps have ended when it has
    tails: list[Array] = [np.zeros(streams, np.int32) for _ in range(streams)]  # known at the end of a stream so far
    tails[0][0] = 1
    clock_of_start = tails[0].copy()

    def require(step: StreamStep) -> dict[int, int]:
        """Per stream, how many of its steps must have ended when a step begins."""
        required: dict[int, int] = {}
        for earlier in step.after:
            home = steps[earlier].stream
            reached = enumerate(known[earlier].tolist()) if home is None else [(home, position[earlier])]
            for reached_stream, count in reached:
                required[reached_stream] = max(required.get(reached_stream, 0), count)
        return required

    def wait(clock: Array, required: dict[int, int]) -> tuple[int, ...]:
        """The needed ones among `required`; they are added to what is known."""
        needed: list[int] = []
        candidates = [(members[stream][count - 1], stream, count) for stream, count in required.items() if count]
        for number, stream, count in sorted(candidates, reverse=True):
            if clock[stream] < count:
                needed.append(number)
                np.maximum(clock, clock_of_start if number == START else known[number], out=clock)
        return tuple(needed)

    waits: list[tuple[int, ...]] = []
    for group in _list_together(steps):
        on_streams = {number: stream for number in group if (stream := steps[number].stream) is not None}
        for number in group if not on_streams else ():
            for earlier in steps[number].after:
                np.maximum(known[number], known[earlier], out=known[number])
            waits.append(())
        required = {number: require(steps[number]) for number in on_streams}
        if len(on_streams) > 1:
            _share_waits(required, {devices[stream]: number for number, stream in on_streams.items()}, devices)
        for number, stream in on_streams.items():
            if not members[stream]:
                required[number][0] = max(required[number].get(0, 0), 1)
            known[number] = tails[stream]
            waits.append(wait(known[number], required[number]))
        if len(on_streams) > 1:  # each has begun when the others go on
            known[group] = known[group].max(axis=0)
        for number, stream in on_streams.items():
            members[stream].append(number)
            known[number][stream] = position[number] = len(members[stream])
            tails[stream] = known[number]
    ends = {stream: len(steps_of) for stream, steps_of in enumerate(members) if stream}
    return tuple(waits), wait(tails[0].copy(), ends)


def _list_together(steps: Sequence[StreamStep]) -> Iterator[list[int]]:
    """The steps in their order, those of one sum together, which wait for each other's beginnings."""
    for _, group in itertools.groupby(range(len(steps)), lambda n: (steps[n].peer_sum, steps[n].peer_sum < 0 and n)):
        yield list(group)


def _share_waits(required: dict[int, dict[int, int]], step_of: dict[int, int], devices: Sequence[int]) -> None:
    """Lets each step of a sum wait for what is on its device, also for what others of them have to wait for there."""
    for number, waits in required.items():
        for stream in list(waits):
            at = step_of.get(devices[stream], number)
            if at != number:
                required[at][stream] = max(required[at].get(stream, 0), waits.pop(stream))


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
