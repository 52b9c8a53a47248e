"""Enqueuing a plan that is ready: once for every step to warm it up, and once into a graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from einc_runtime.execution.cuda.driver import Driver, DriverError
from einc_runtime.execution.cuda.holdings import Holdings
from einc_runtime.execution.cuda.order import START
from einc_runtime.execution.cuda.profile import Profile
from einc_runtime.execution.cuda.ready import Ready


def warm_up(driver: Driver, ready: Ready) -> None:
    """Every step once, one after another, waiting for each: an error is that of the step that caused it."""
    for number, launch in enumerate(ready.launches):
        lane = ready.layout.steps[number].lane
        if lane is None or launch is None:
            continue
        device = ready.layout.lanes[lane].device
        try:
            driver.use(device)
            launch(ready.streams[lane])
            driver.synchronize(device)
        except Exception as error:
            raise ready.blame.fault(error, ready.layout.works[number].task) from error


def captured(driver: Driver, holdings: Holdings, ready: Ready) -> int:
    """The instance of one graph of all steps, ready on the devices."""
    origin = ready.streams[0]
    with _nothing_collected():
        driver.begin_capture(origin)
        try:
            enqueue(driver, ready)
        except BaseException:
            _abandon(driver, holdings, origin)
            raise
        graph = holdings.graph(driver.end_capture(origin))
    instance = holdings.instance(graph)
    driver.upload(instance, origin)
    driver.synchronize(ready.layout.lanes[0].device)
    return instance


def enqueue(driver: Driver, ready: Ready, profile: Profile | None = None) -> None:
    """All steps on their streams, with the events between them; the origin's end comes after all of them."""
    order, streams = ready.order, ready.streams

    def event_of(step: int) -> int:
        event = order.start_event if step == START else order.event_of[step]
        assert event is not None, "what is waited for has an event"
        return ready.events[event]

    if order.start_event is not None:
        driver.record(event_of(START), streams[0])
    for number, launch in enumerate(ready.launches):
        lane = ready.layout.steps[number].lane
        if lane is None or launch is None:
            continue
        stream = streams[lane]
        try:
            for earlier in order.waits[number]:
                driver.wait(stream, event_of(earlier))
            driver.use(ready.layout.lanes[lane].device)
            if profile is not None:
                profile.begin(number, stream)
            launch(stream)
            if profile is not None:
                profile.end(number, stream)
            if order.event_of[number] is not None:
                driver.record(event_of(number), stream)
        except Exception as error:
            raise ready.blame.fault(error, ready.layout.works[number].task) from error
    for earlier in order.last_waits:
        driver.wait(streams[0], event_of(earlier))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """An executor or an array of some library that is collected in a capture would wait or free, and so end it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _abandon(driver: Driver, holdings: Holdings, origin: int) -> None:
    """Ends a capture that is broken, which CUDA may or may not say."""
    try:
        graph = driver.end_capture(origin)
    except DriverError:
        return
    holdings.graph(graph)
