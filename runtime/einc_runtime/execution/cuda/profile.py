"""A profiled run: every step between two timing events of its device, all against one origin.

Events of different devices cannot be compared. Each device has an origin of its own, recorded right after one event of
lane 0's device: they differ by the time in which an event crosses from device to device, some microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.execution.base import Record
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.holdings import Holdings
from einc_runtime.execution.cuda.steps import Layout, Part


class Profile:
    """The events of one run; they are made beforehand, so that no making of one delays a launch."""

    def __init__(self, driver: Driver, layout: Layout, streams: Sequence[int]) -> None:
        self._driver, self._layout, self._streams = driver, layout, streams
        self._holdings = Holdings(driver)
        try:
            self._common = self._holdings.event(layout.lanes[0].device)
            devices = sorted({lane.device for lane in layout.lanes})
            self._origins = {device: self._holdings.event(device, timing=True) for device in devices}
            self._started: dict[int, int] = {}
            self._ended: dict[int, int] = {}
            for number, (step, work) in enumerate(zip(layout.steps, layout.works, strict=True)):
                if step.lane is not None and work.part is not Part.STATUS:
                    device = layout.lanes[step.lane].device
                    self._started[number] = self._holdings.event(device, timing=True)
                    self._ended[number] = self._holdings.event(device, timing=True)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Lets all lanes begin together."""
        first: dict[int, int] = {}  # device -> its first stream
        for lane, stream in zip(self._layout.lanes, self._streams, strict=True):
            first.setdefault(lane.device, stream)
        self._driver.record(self._common, self._streams[0])
        for device, stream in first.items():
            if stream != self._streams[0]:
                self._driver.wait(stream, self._common)
            self._driver.record(self._origins[device], stream)
        for lane, stream in zip(self._layout.lanes, self._streams, strict=True):
            if stream != first[lane.device]:
                self._driver.wait(stream, self._origins[lane.device])

    def begin(self, step: int, stream: int) -> None:
        if step in self._started:
            self._driver.record(self._started[step], stream)

    def end(self, step: int, stream: int) -> None:
        if step in self._ended:
            self._driver.record(self._ended[step], stream)

    def records(self) -> list[Record]:
        """One record per task that ran, once all has ended; a transfer by way of the host is one from out to in."""
        found: dict[int, Record] = {}
        for step, start in self._started.items():
            lane, task = self._layout.steps[step].lane, self._layout.works[step].task
            assert lane is not None
            origin = self._origins[self._layout.lanes[lane].device]
            begin = self._driver.elapsed_ms(origin, start) / 1e3
            end = self._driver.elapsed_ms(origin, self._ended[step]) / 1e3
            if task in found:
                _, lane, begin, _ = found[task]
            found[task] = task, lane, begin, max(begin, end)
        return list(found.values())

    def close(self) -> Exception | None:
        """Gives the events back, and the first error on the way, if there was one."""
        return self._holdings.release()
