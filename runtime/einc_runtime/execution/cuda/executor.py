"""Runs a bundle on GPUs as one CUDA graph over all of them: prepared once, replayed by one launch per execution.

Each site has one arena on its device, with the memory layout of the plan; nothing is allocated after the executor has
been made. Kernels are prepared for their views and run once on zeros: then everything that they load lazily has been
loaded, and a kernel that fails can be named. They are then captured with all transfers, on several streams
(`streams.py`) with the fewest events that keep the order of the plan (`events.py`). Aggregations add up in the order
that the plan gives, and nothing is chosen at run time, so every replay gives the same bits. If something fails up to
here and an optional library was in use, everything begins again without that library.

Sites may share a device. Transfers between them are elided where their readers can read the source (`rewrites`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import KernelFault, RuntimeFault, ValueFault
from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.cuda.capture import Profile, capture, enqueue, warm_up, warm_up_messages
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.errors import describe_error, make_plan_fault
from einc_runtime.execution.cuda.hip_driver import HipDriver, HipError, has_amd_gpus, open_hip
from einc_runtime.execution.cuda.lanes import Lanes
from einc_runtime.execution.cuda.peer_flags import PeersFault
from einc_runtime.execution.cuda.preparation import PreparedPlan, prepare_plan
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.execution.facts import CudaFacts, DeviceFacts, ExecutionFacts, GraphFacts, KernelFacts
from einc_runtime.kernels.copies_2d import count_2d_copies, list_2d_copies
from einc_runtime.kernels.gpu import LATE_PEERS, Kernels
from einc_runtime.plan.regions import find_offsets
from einc_runtime.plan.schema import Bundle, Region

if TYPE_CHECKING:
    from pathlib import Path

    from einc_runtime.execution.cuda.tuning import TimedProduct
    from einc_runtime.execution.shared_buffers import SharedBuffers
    from einc_runtime.kernels.cuda.tuning import Tuning

MAX_FETCH_COPIES = 64
"""The most copies that fetch a region for offloading; if more are needed, the whole buffer is fetched."""

_RANK_FOR_EACH_GPU = "a rank for each GPU is safer: NCCL's guide says that graphs over several GPUs may wait forever"

_NO_FLAGS = "GPUs wait for each other by events, as kernels that wait by flags did not run"


class CudaExecutor:
    """See `execution.base.Executor`. Raises MissingFault where a GPU, memory, cupy or access between GPUs is missing.

    `devices` gives every site its device (None: site i on device i). `no_peer` says what happens where two devices that
    exchange data cannot reach each other's memory: `stage` through the host, or `refuse`. `tunings` are choices of
    algorithms that were measured before (`einc tune`), and `kernel_folders` have kernels that were compiled before, for
    this plan. `common` is memory that it shares with executors of other plans.
    `lanes` are the messages of a bundle that is one process's part of a plan; all processes make their executors at one
    time, and execute together. A test may bring a driver and kernels of its own. Close the executor to release
    everything; it closes itself when something fails.
    """

    name = "cuda"

    def __init__(
        self,
        bundle: Bundle,
        devices: Sequence[int] | None = None,
        *,
        no_peer: str = "stage",
        tunings: Sequence[Tuning] = (),
        kernel_folders: Sequence[Path] = (),
        common: SharedBuffers | None = None,
        driver: Driver | None = None,
        kernels: Kernels | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        self.bundle, self._common, self._lanes = bundle, common, lanes
        self.host_us = 0.0
        self._pending = False  # whether something is enqueued that nobody has waited for
        self._driver = _load_driver() if driver is None else driver
        self._kernels = _load_kernels(kernel_folders, tunings) if kernels is None else kernels
        before, self._with_flags = "", True
        while True:
            try:
                self._prepare(devices, no_peer)
                break
            except PeersFault:
                self._with_flags = False
            except RuntimeFault as fault:
                if not self._kernels.give_up(fault.message):
                    fault.message += before
                    raise
                before = f" (before that: {fault.message})"
        if lanes is not None:  # nothing above waits for other processes, and each may try it several times
            with self._closing_on_failure():
                lanes.connect(self._resources)
                warm_up_messages(self._driver, self._plan, lanes, self._resources)
                self._instance = capture(self._driver, self._resources, self._plan)

    def _prepare(self, devices: Sequence[int] | None, no_peer: str) -> None:
        """Does everything before the first execution; where it fails, everything has been released."""
        self._resources = CudaResources(self._driver)
        with self._closing_on_failure():
            self._resources.keep(self._kernels.close)
            self._plan: PreparedPlan = prepare_plan(
                self._driver, self._resources, self._kernels, self.bundle, devices, no_peer, self._common, self._lanes,
                with_flags=self._with_flags,
            )  # fmt: skip
            origin = self._plan.schedule.streams[0].device
            self._start, self._end = (self._resources.create_event(origin, timing=True) for _ in range(2))
            with self._keeping_states():
                warm_up(self._driver, self._plan)
                self._plan.status.clear()  # zeros are not always allowed as inputs
                if self._lanes is None:
                    self._instance = capture(self._driver, self._resources, self._plan)
                if self._plan.peer_sums:
                    self._try_flags()

    def _try_flags(self) -> None:
        """Executes once. Raises PeersFault where CUDA does not run kernels of all GPUs beside each other."""
        self._replay()
        if any(check.message == LATE_PEERS for check in self._plan.status.pop_failed()):
            raise PeersFault(LATE_PEERS)

    def fill(self, buffer: int, values: Array) -> None:
        self._settle()
        if self._plan.mirrors.fill(buffer, values):
            return
        view = self._plan.memory.buffers[buffer]
        zeros = _are_zeros(values)
        with self._closing_on_failure():
            if zeros:
                self._driver.fill_bytes(view.device, view.pointer, 0, view.nbytes)
            elif view.nbytes:
                dense, size = np.empty(view.shape, storage_dtype(view.dtype)), view.nbytes
                np.copyto(dense, values, casting="unsafe")
                self._driver.copy(view.device, view.pointer, size, dense.ctypes.data, size, size, 1)
        self._plan.shared.mark_filled(buffer, zeros=zeros)

    def holds(self, buffer: int) -> bool:
        return True

    def memory_of(self, buffer: int) -> None:
        return None

    def is_filled(self, buffer: int) -> bool:
        return self._plan.shared.is_filled(buffer)

    def common_states(self) -> frozenset[Hashable] | None:
        shared = self._plan.shared
        return frozenset(shared.states.values()) if self._common is not None and shared.shares_states else None

    def fetch(self, region: Region) -> Array:
        self._settle()
        mirrored = self._plan.mirrors.read(region)
        if mirrored is not None:
            return mirrored
        view = self._plan.memory.view(region)
        array = np.empty(view.shape, storage_dtype(view.dtype))
        if count_2d_copies(view.shape, view.itemsize, array.strides, view.strides) > MAX_FETCH_COPIES:
            full_region = Region(region.buffer, self.bundle.buffers[region.buffer].block)
            return self.fetch(full_region)[tuple(slice(*ends) for ends in find_offsets(self.bundle, region))]
        with self._closing_on_failure():
            for row in list_2d_copies(view.shape, view.itemsize, array.strides, view.strides):
                target, source = array.ctypes.data + row.target, view.pointer + row.source
                pitches = row.target_pitch, row.source_pitch
                self._driver.copy(view.device, target, pitches[0], source, pitches[1], row.width, row.height)
        return array

    def fetch_own(self, region: Region) -> Array:
        return self.fetch(region)

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        """Launches the graph once, and returns the milliseconds between two events around it.

        With `records` the steps are enqueued one by one instead, each between events of its own.
        """
        self._settle()
        self._plan.shared.mark_executed()
        with self._closing_on_failure():
            self._send_inputs()
            milliseconds = self._replay() if records is None else self._run_profiled(records)
        self._require_valid_values()
        return milliseconds

    def enqueue(self) -> None:
        """Launches the graph without waiting for it: for timing many executions in a row."""
        self._require_open()
        self._plan.shared.mark_executed()
        with self._closing_on_failure():
            self._send_inputs()
            self._driver.launch(self._instance, self._plan.stream_handles[0])
            self._pending = True

    def wait(self) -> None:
        """Waits for all that was enqueued. Raises ValueFault as `execute` does, for any of these executions."""
        self._require_open()
        with self._closing_on_failure():
            self._driver.record(self._end, self._plan.stream_handles[0])
            self._wait_for(self._end)
            self._pending = False
        self._require_valid_values()

    def tune(self, proposals: int, seconds: float) -> list[TimedProduct]:
        """Times other algorithms for the products of the plan, on the data that is loaded and computed.

        What the arenas hold afterwards is of no more use: load and execute again.
        """
        from einc_runtime.execution.cuda.tuning import time_products

        self._settle()
        with self._closing_on_failure():
            return time_products(self._driver, self._kernels.list_alternatives(proposals), seconds)

    @property
    def notes(self) -> tuple[str, ...]:
        pairs = sorted({(min(pair), max(pair)) for pair in self._plan.peers.staged})
        staged = (
            f"GPUs {first} and {second} cannot reach each other's memory: what they exchange goes through the host's"
            for first, second in pairs
        )
        joined = self._lanes is not None and len(set(self._plan.devices)) > 1
        notes = [_RANK_FOR_EACH_GPU] * joined + [_NO_FLAGS] * (not self._with_flags)
        return (*staged, *self._plan.notes, *self._kernels.notes, *notes)

    def count_streams(self) -> int:
        """How many streams all devices have; records of tasks number them."""
        return len(self._plan.stream_handles)

    def facts(self) -> ExecutionFacts:
        plan, lanes = self._plan, self._lanes
        numbers = range(len(plan.devices)) if lanes is None else lanes.sites
        devices = tuple(
            DeviceFacts(
                device,
                target.name,
                target.architecture,
                tuple(
                    number
                    for number, device_of_site in zip(numbers, plan.devices, strict=True)
                    if device_of_site == device
                ),
                plan.device_bytes[device],
            )
            for device, target in sorted(plan.targets.items())
        )
        graph = GraphFacts(
            steps=sum(step.stream is not None for step in plan.schedule.steps),
            streams=self.count_streams(),
            events=len(plan.events),
            waits=plan.event_schedule.edges,
        )
        kernels = tuple(
            KernelFacts(name, by.provider, by.version, by.variant, count)
            for (name, by), count in sorted(plan.kernel_counts.items(), key=lambda item: (item[0][0], str(item[0][1])))
        )
        versions = dict(sorted([*plan.versions.items(), *(() if lanes is None else lanes.versions.items())]))
        cuda = CudaFacts(devices, graph, kernels, versions, self.notes, self.host_us)
        return ExecutionFacts(messages=None if lanes is None else len(lanes.ends), cuda=cuda)

    @property
    def closed(self) -> bool:
        return self._resources.released

    def close(self) -> None:
        """Waits for the devices and releases everything; further calls do nothing. Raises KernelFault if that fails."""
        if not self._resources.released:
            error = self._resources.release()
            if error is not None:
                raise KernelFault(f"what the GPUs held could not be released: {describe_error(error)}") from error

    @contextmanager
    def _keeping_states(self) -> Iterator[None]:
        """Keeps what states hold that other executors use, too: warming up writes them."""
        shared, buffers = self._plan.shared, self.bundle.buffers
        kept = {b: self.fetch(Region(b, buffers[b].block)) for b in sorted(shared.old_states) if shared.is_written(b)}
        yield
        for b in sorted(shared.old_states):
            view = self._plan.memory.buffers[b]
            if b in kept:
                self.fill(b, kept[b])
            else:
                self._driver.fill_bytes(view.device, view.pointer, 0, view.nbytes)

    def _send_inputs(self) -> None:
        origin = self._plan.schedule.streams[0].device
        self._plan.mirrors.send(origin, self._plan.stream_handles[0])

    def _replay(self) -> float:
        driver, origin = self._driver, self._plan.stream_handles[0]
        driver.record(self._start, origin)
        begin = perf_counter()
        driver.launch(self._instance, origin)
        self.host_us = (perf_counter() - begin) * 1e6
        driver.record(self._end, origin)
        self._wait_for(self._end)
        return driver.elapsed_ms(self._start, self._end)

    def _run_profiled(self, records: list[TaskRecord]) -> float:
        driver, plan = self._driver, self._plan
        profile = Profile(driver, plan.schedule, plan.stream_handles)
        try:
            profile.start()
            driver.record(self._start, plan.stream_handles[0])
            enqueue(driver, plan, profile)
            driver.record(self._end, plan.stream_handles[0])
            self._wait_for(self._end)
            records.extend(profile.records())
            milliseconds = driver.elapsed_ms(self._start, self._end)
        except BaseException:
            profile.close()
            raise
        error = profile.close()
        if error is not None:
            raise error
        return milliseconds

    def _wait_for(self, event: int) -> None:
        if self._lanes is None:
            self._driver.wait_on_host(event)
        else:
            self._lanes.wait(self._driver, event)

    def _settle(self) -> None:
        """Waits for what was enqueued: copies from and to the host are on a stream that does not wait for others."""
        self._require_open()
        if self._pending:
            self.wait()

    def _require_valid_values(self) -> None:
        """Raises ValueFault if a kernel found a value that its input may not have, such as an id out of range."""
        with self._closing_on_failure():
            failed = self._plan.status.pop_failed()
        for check in failed:
            errors, kind = self._plan.errors, KernelFault if check.message == LATE_PEERS else ValueFault
            data = f"; {errors.name_data(check.task)}" if kind is ValueFault else ""
            message = f"{errors.name_subject(check.task)} failed: {check.message}{data}"
            raise kind(message, where=errors.name_task(check.task))

    def _require_open(self) -> None:
        if self._resources.released:
            raise KernelFault("the CUDA executor is closed", hint="make a new session")

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Releases everything if something fails, and turns errors into faults of the runtime."""
        try:
            yield
        except BaseException as error:
            if self._lanes is None:
                self._resources.release()
            else:
                self._lanes.end(self._resources)
            if isinstance(error, Exception) and not isinstance(error, RuntimeFault):
                raise make_plan_fault(error, self.bundle.model) from error
            raise


def _are_zeros(values: Array) -> bool:
    """Whether all elements are one in memory, whose bytes are zeros."""
    return values.size > 0 and not any(values.strides) and not any(values[(0,) * values.ndim].tobytes())


def _load_driver() -> Driver:
    from einc_runtime.execution.cuda.cupy_driver import CupyDriver

    return HipDriver(open_hip()) if has_amd_gpus() else CupyDriver()


def _load_kernels(folders: Sequence[Path], tunings: Sequence[Tuning]) -> Kernels:
    from einc_runtime.kernels.cuda.kernels import open_hip_kernels, open_kernels

    return open_hip_kernels(open_hip(), HipError, folders) if has_amd_gpus() else open_kernels(folders, tunings)
