"""Runs a bundle on GPUs as one CUDA graph over all of them: made ready once, replayed by one launch per execution.

Each site has one arena on its device, from the plan's own memory layout; nothing is allocated after the executor has
been made. Kernels are prepared for their views, run once on zeros (so that what they load lazily is there and a kernel
that fails is named), and then captured with all transfers on streams of their own (`steps.py`), held together by the
fewest events that keep the plan's order (`order.py`). Aggregations add up in the order that the plan gives, and
nothing is chosen at run time: every replay gives the same bits. Where libraries took part that are not necessary, and
anything failed up to here, all of it begins again without them.

Sites may share a device. Transfers between them are spared where their readers can read the source (`forwarding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import KernelFault, RuntimeFault, ValueFault
from einc_runtime.execution.base import Record
from einc_runtime.execution.cuda.capture import captured, enqueue, warm_up
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.faults import plan_fault, told
from einc_runtime.execution.cuda.holdings import Holdings
from einc_runtime.execution.cuda.profile import Profile
from einc_runtime.execution.cuda.ready import Ready, make_ready
from einc_runtime.kernels.copies_2d import count_2d_copies, list_2d_copies
from einc_runtime.kernels.gpu import Kernels
from einc_runtime.plan.schema import Bundle, Region

MAX_FETCH_COPIES = 64
"""Copies that fetch a region for offloading; what takes more comes with the whole buffer."""


class CudaExecutor:
    """See `executors.base.Executor`. Raises MissingFault where a GPU, memory, cupy or access between GPUs is missing.

    `devices` gives every site its device (site i on device i, if it is None); `no_peer` says what happens where two
    devices that exchange data cannot reach each other's memory: `stage` through the host, or `refuse`. The driver and
    the kernels are cupy's and the registry's unless a test brings its own. Close it to give everything back; it does
    so itself when something fails.
    """

    name = "cuda"

    def __init__(
        self,
        bundle: Bundle,
        devices: Sequence[int] | None = None,
        *,
        no_peer: str = "stage",
        driver: Driver | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.bundle = bundle
        self.host_us = 0.0
        self._driver = _real_driver() if driver is None else driver
        self._kernels = _real_kernels() if kernels is None else kernels
        before = ""
        while True:
            try:
                self._make_ready(devices, no_peer)
                return
            except RuntimeFault as fault:
                if not self._kernels.give_up(fault.message):
                    fault.message += before
                    raise
                before = f" (before that: {fault.message})"

    def _make_ready(self, devices: Sequence[int] | None, no_peer: str) -> None:
        """All that is done before the first execution; where it fails, everything has been given back."""
        self._holdings = Holdings(self._driver)
        with self._closing_on_failure():
            self._holdings.keep(self._kernels.close)
            self._ready: Ready = make_ready(self._driver, self._holdings, self._kernels, self.bundle, devices, no_peer)
            origin = self._ready.layout.lanes[0].device
            self._start, self._end = (self._holdings.event(origin, timing=True) for _ in range(2))
            warm_up(self._driver, self._ready)
            self._ready.status.clear()  # zeros may be what no input may have
            self._instance = captured(self._driver, self._holdings, self._ready)

    def fill(self, buffer: int, values: Array) -> None:
        self._require_open()
        view = self._ready.memory.buffers[buffer]
        dense = np.empty(view.shape, storage_dtype(view.dtype))
        np.copyto(dense, values, casting="unsafe")
        if dense.nbytes:
            with self._closing_on_failure():
                size = dense.nbytes
                self._driver.copy(view.device, view.pointer, size, dense.ctypes.data, size, size, 1)

    def fetch(self, region: Region) -> Array:
        self._require_open()
        view = self._ready.memory.view(region)
        array = np.empty(view.shape, storage_dtype(view.dtype))
        if count_2d_copies(view.shape, view.itemsize, array.strides, view.strides) > MAX_FETCH_COPIES:
            block = self.bundle.buffers[region.buffer].block
            bounds = zip(region.block.lower, region.block.upper, block.lower, strict=True)
            return self.fetch(Region(region.buffer, block))[tuple(slice(lo - at, up - at) for lo, up, at in bounds)]
        with self._closing_on_failure():
            for row in list_2d_copies(view.shape, view.itemsize, array.strides, view.strides):
                target, source = array.ctypes.data + row.target, view.pointer + row.source
                pitches = row.target_pitch, row.source_pitch
                self._driver.copy(view.device, target, pitches[0], source, pitches[1], row.width, row.height)
        return array

    def execute(self, records: list[Record] | None = None) -> float:
        """One launch of the graph, and the milliseconds between two events around it.

        With `records` the steps are enqueued one by one instead, each between events of its own.
        """
        self._require_open()
        with self._closing_on_failure():
            milliseconds = self._replayed() if records is None else self._profiled(records)
            complaint = self._ready.status.first()
        if complaint is not None:
            blame = self._ready.blame
            message = f"{blame.subject(complaint.task)} failed: {complaint.text}"
            raise ValueFault(message, where=blame.place(complaint.task))
        return milliseconds

    def enqueue(self) -> None:
        """Launches the graph without waiting for it: for timing many executions in a row."""
        self._require_open()
        with self._closing_on_failure():
            self._driver.launch(self._instance, self._ready.streams[0])

    def wait(self) -> None:
        """Waits for all that was enqueued."""
        self._require_open()
        with self._closing_on_failure():
            self._driver.record(self._end, self._ready.streams[0])
            self._driver.wait_on_host(self._end)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how the plan runs here."""
        pairs = sorted({(min(pair), max(pair)) for pair in self._ready.reach.staged})
        staged = (
            f"GPUs {one} and {other} cannot reach each other's memory: what they exchange goes through the host's"
            for one, other in pairs
        )
        return (*staged, *self._kernels.notes)

    def facts(self) -> dict[str, object]:
        """How the plan runs here: devices, the graph's size, who runs the tasks, and how long the last launch took."""
        ready = self._ready
        devices = [
            {
                "device": device,
                "name": target.name,
                "architecture": target.architecture,
                "sites": [site for site, own in enumerate(ready.devices) if own == device],
                "bytes": ready.bytes[device],
            }
            for device, target in sorted(ready.targets.items())
        ]
        graph = {
            "steps": sum(step.lane is not None for step in ready.layout.steps),
            "streams": len(ready.streams),
            "events": len(ready.events),
            "waits": ready.order.edges,
        }
        kernels = [
            {"kernel": name, "provider": who.provider, "version": who.version, "variant": who.variant, "tasks": count}
            for (name, who), count in sorted(ready.ran.items(), key=lambda item: (item[0][0], str(item[0][1])))
        ]
        versions = dict(sorted(ready.versions.items()))
        return {
            "devices": devices,
            "graph": graph,
            "kernels": kernels,
            "versions": versions,
            "notes": list(self.notes),
            "host_us": self.host_us,
        }

    def close(self) -> None:
        """Waits for the devices and releases everything; further calls do nothing. Raises KernelFault if that fails."""
        if not self._holdings.released:
            error = self._holdings.release()
            if error is not None:
                raise KernelFault(f"what the GPUs held could not be released: {told(error)}") from error

    def _replayed(self) -> float:
        driver, origin = self._driver, self._ready.streams[0]
        driver.record(self._start, origin)
        begin = perf_counter()
        driver.launch(self._instance, origin)
        self.host_us = (perf_counter() - begin) * 1e6
        driver.record(self._end, origin)
        driver.wait_on_host(self._end)
        return driver.elapsed_ms(self._start, self._end)

    def _profiled(self, records: list[Record]) -> float:
        driver, ready = self._driver, self._ready
        profile = Profile(driver, ready.layout, ready.streams)
        try:
            profile.start()
            driver.record(self._start, ready.streams[0])
            enqueue(driver, ready, profile)
            driver.record(self._end, ready.streams[0])
            driver.wait_on_host(self._end)
            records.extend(profile.records())
            milliseconds = driver.elapsed_ms(self._start, self._end)
        except BaseException:
            profile.close()
            raise
        error = profile.close()
        if error is not None:
            raise error
        return milliseconds

    def _require_open(self) -> None:
        if self._holdings.released:
            raise KernelFault("the CUDA executor is closed", hint="make a new session")

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Gives everything back where something fails, and makes one error of the runtime's of it."""
        try:
            yield
        except BaseException as error:
            self._holdings.release()
            if isinstance(error, Exception) and not isinstance(error, RuntimeFault):
                raise plan_fault(error, self.bundle.model) from error
            raise


def _real_driver() -> Driver:
    from einc_runtime.execution.cuda.cupy_driver import CupyDriver

    return CupyDriver()


def _real_kernels() -> Kernels:
    from einc_runtime.kernels.cuda.kernels import open_kernels

    return open_kernels()
