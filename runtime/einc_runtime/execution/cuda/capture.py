"""Enqueues a prepared plan: step by step to warm it up, into one graph, or with a time for every step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.cuda.driver import Driver, DriverError
from einc_runtime.execution.cuda.events import START
from einc_runtime.execution.cuda.lanes import Lanes
from einc_runtime.execution.cuda.preparation import PreparedPlan
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.execution.cuda.streams import StepKind, StreamSchedule, StreamStep
from einc_runtime.kernels.gpu import Launch

_UNTIMED = (StepKind.EARLY, StepKind.OUTPUTS, StepKind.STATUS, StepKind.FLAGS)
"""Steps that compute nothing."""


def warm_up(driver: Driver, plan: PreparedPlan) -> None:
    """Runs every step once and waits for it, so that an error belongs to the step that caused it; but for messages,
    which need the other processes."""
    for number, launch in enumerate(plan.launches):
        stream = plan.schedule.steps[number].stream
        if stream is None or launch is None or plan.schedule.steps[number].kind is StepKind.MESSAGES:
            continue
        device = plan.schedule.streams[stream].device
        try:
            driver.use(device)
            launch(plan.stream_handles[stream])
            driver.synchronize(device)
        except Exception as error:
            raise plan.errors.make_fault(error, plan.schedule.steps[number].task) from error


def warm_up_messages(driver: Driver, plan: PreparedPlan, lanes: Lanes, resources: CudaResources) -> None:
    """Connects GPUs, and then exchanges all messages once, both in the order of the plan, as all processes do.

    NCCL connects two GPUs when they first meet, and must not in a capture. A group that meets several new ones would
    begin when all of them have come to their own groups, and some of these may wait for a message of this one: so GPUs
    are connected one by one, each by a byte.
    """
    groups = [
        (step, launch, plan.schedule.streams[step.stream].device)
        for step, launch in zip(plan.schedule.steps, plan.launches, strict=True)
        if step.kind is StepKind.MESSAGES and step.stream is not None and launch is not None
    ]
    devices = sorted({device for _, _, device in groups})
    events = {device: resources.create_event(device) for device in devices}
    places = {device: resources.allocate(device, 1) for device in devices}

    def run(step: StreamStep, launch: Launch, device: int, task: int) -> None:
        assert step.stream is not None, "messages are on a lane"
        handle = plan.stream_handles[step.stream]
        driver.use(device)
        try:
            launch(handle)
            driver.record(events[device], handle)
            lanes.wait(driver, events[device])
        except Exception as error:
            raise plan.errors.make_fault(error, task) from error

    for step, _, device in groups:
        for task in lanes.list_first_meetings(device, step.messages):
            run(step, partial(lanes.meet, device, task, places[device]), device, task)
    for step, launch, device in groups:
        run(step, launch, device, step.task)


def capture(driver: Driver, resources: CudaResources, plan: PreparedPlan) -> int:
    """An instance of one graph of all steps, ready on the devices."""
    instance = capture_launches(driver, resources, plan.stream_handles[0], lambda: enqueue(driver, plan))
    driver.synchronize(plan.schedule.streams[0].device)
    return instance


def capture_launches(driver: Driver, resources: CudaResources, stream: int, launch: Callable[[], None]) -> int:
    """An instance of a graph of all that `launch` enqueues on a stream and on those that it joins, uploaded."""
    with _collect_nothing():
        driver.begin_capture(stream)
        try:
            launch()
        except BaseException:
            _abandon_capture(driver, resources, stream)
            raise
        graph = resources.keep_graph(driver.end_capture(stream))
    instance = resources.instantiate(graph)
    driver.upload(instance, stream)
    return instance


def enqueue(driver: Driver, plan: PreparedPlan, profile: Profile | None = None) -> None:
    """Enqueues all steps on their streams, with the events between them; at its end, stream 0 waits for all others."""
    order, handles = plan.event_schedule, plan.stream_handles

    def event_of(step: int) -> int:
        event = order.start_event if step == START else order.event_of[step]
        assert event is not None, "what is waited for has an event"
        return plan.events[event]

    if order.start_event is not None:
        driver.record(event_of(START), handles[0])
    for number, launch in enumerate(plan.launches):
        stream = plan.schedule.steps[number].stream
        if stream is None or launch is None:
            continue
        handle = handles[stream]
        try:
            for earlier in order.waits[number]:
                driver.wait(handle, event_of(earlier))
            driver.use(plan.schedule.streams[stream].device)
            if profile is not None:
                profile.begin(number, handle)
            launch(handle)
            if profile is not None:
                profile.end(number, handle)
            if order.event_of[number] is not None:
                driver.record(event_of(number), handle)
        except Exception as error:
            raise plan.errors.make_fault(error, plan.schedule.steps[number].task) from error
    for earlier in order.last_waits:
        driver.wait(handles[0], event_of(earlier))


@contextmanager
def _collect_nothing() -> Iterator[None]:
    """Turns garbage collection off: collected objects may wait or free memory, which breaks a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _abandon_capture(driver: Driver, resources: CudaResources, origin: int) -> None:
    """Ends a broken capture. CUDA may report an error for it, or return a graph."""
    try:
        graph = driver.end_capture(origin)
    except DriverError:
        return
    resources.keep_graph(graph)


class Profile:
    """The timing events of one run, in which every step is between two events of its device.

    All events are made before the run, so that none delays a launch. Events of different devices cannot be compared, so
    each device has an origin of its own, recorded right after one event of the device of stream 0. The origins differ
    by the time that an event takes from device to device, some microseconds.
    """

    def __init__(self, driver: Driver, schedule: StreamSchedule, handles: Sequence[int]) -> None:
        self._driver, self._schedule, self._handles = driver, schedule, handles
        self._resources = CudaResources(driver)
        try:
            self._common = self._resources.create_event(schedule.streams[0].device)
            devices = sorted({stream.device for stream in schedule.streams})
            self._origins = {device: self._resources.create_event(device, timing=True) for device in devices}
            self._started: dict[int, int] = {}
            self._ended: dict[int, int] = {}
            for number, step in enumerate(schedule.steps):
                if step.stream is not None and step.kind not in _UNTIMED:
                    device = schedule.streams[step.stream].device
                    self._started[number] = self._resources.create_event(device, timing=True)
                    self._ended[number] = self._resources.create_event(device, timing=True)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Records the origins, and lets all streams begin after them."""
        first: dict[int, int] = {}  # device -> its first stream
        for stream, handle in zip(self._schedule.streams, self._handles, strict=True):
            first.setdefault(stream.device, handle)
        self._driver.record(self._common, self._handles[0])
        for device, handle in first.items():
            if handle != self._handles[0]:
                self._driver.wait(handle, self._common)
            self._driver.record(self._origins[device], handle)
        for stream, handle in zip(self._schedule.streams, self._handles, strict=True):
            if handle != first[stream.device]:
                self._driver.wait(handle, self._origins[stream.device])

    def begin(self, step: int, handle: int) -> None:
        if step in self._started:
            self._driver.record(self._started[step], handle)

    def end(self, step: int, handle: int) -> None:
        if step in self._ended:
            self._driver.record(self._ended[step], handle)

    def records(self) -> list[TaskRecord]:
        """One record per task that ran, once all steps have ended; a staged transfer is one record from out to in."""
        records: dict[int, TaskRecord] = {}
        for step, start in self._started.items():
            task, stream = self._schedule.steps[step].task, self._schedule.steps[step].stream
            assert stream is not None
            origin = self._origins[self._schedule.streams[stream].device]
            begin = self._driver.elapsed_ms(origin, start) / 1e3
            end = self._driver.elapsed_ms(origin, self._ended[step]) / 1e3
            if task in records:
                _, stream, begin, _ = records[task]
            records[task] = task, stream, begin, max(begin, end)
        return list(records.values())

    def close(self) -> Exception | None:
        """Releases the events, and returns the first error on the way, if there was one."""
        return self._resources.release()
