"""The CUDA resources of an executor, released in the reverse order of their creation, however the executor ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from einc_runtime.execution.cuda.driver import Driver

Release = Callable[[], None]


class CudaResources:
    """Creates everything that is taken from a driver, and remembers it before anything else can fail."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._devices: set[int] = set()
        self._releases: list[Release] = []
        # For an executor that is never closed: releases when it is collected, or at the end of the process.
        self._finalizer = weakref.finalize(self, _release_all, driver, self._devices, self._releases)

    def keep(self, release: Release) -> None:
        """Calls `release` once at the end. It must not refer to this object, which would then never be collected."""
        self._releases.append(release)

    def wait_for(self, device: int) -> None:
        """Waits for this device before anything is released."""
        self._devices.add(device)

    def adopt(self, resources: CudaResources) -> None:
        """Takes over all that another one holds."""
        self._devices |= resources._devices
        self._releases += resources._releases
        resources._releases.clear()

    def allocate(self, device: int, size: int) -> int:
        driver = self._driver
        pointer = driver.allocate(device, size)
        self._devices.add(device)
        self.keep(lambda: driver.free(device, pointer))
        return pointer

    def allocate_host(self, size: int) -> int:
        driver = self._driver
        pointer = driver.allocate_host(size)
        self.keep(lambda: driver.free_host(pointer))
        return pointer

    def create_stream(self, device: int) -> int:
        driver = self._driver
        stream = driver.create_stream(device)
        self._devices.add(device)
        self.keep(lambda: driver.destroy_stream(stream))
        return stream

    def create_event(self, device: int, *, timing: bool = False) -> int:
        driver = self._driver
        event = driver.create_event(device, timing=timing)
        self.keep(lambda: driver.destroy_event(event))
        return event

    def keep_graph(self, graph: int) -> int:
        driver = self._driver
        self.keep(lambda: driver.destroy_graph(graph))
        return graph

    def instantiate(self, graph: int) -> int:
        driver = self._driver
        instance = driver.instantiate(graph)
        self.keep(lambda: driver.destroy_instance(instance))
        return instance

    def release(self) -> Exception | None:
        """Waits for the devices and releases everything, once; returns the first error on the way, if there was one.

        After a device is lost, every call for it fails. All calls are still made, since other devices may work.
        """
        error: Exception | None = self._finalizer()
        return error

    def require_release(self) -> None:
        """The same, and raises that error."""
        error = self.release()
        if error is not None:
            raise error

    @property
    def released(self) -> bool:
        return not self._finalizer.alive


def _release_all(driver: Driver, devices: set[int], releases: list[Release]) -> Exception | None:
    first: Exception | None = None

    def attempt(release: Release) -> None:
        nonlocal first
        try:
            release()
        except Exception as error:
            first = first or error

    for device in sorted(devices):
        attempt(lambda device=device: driver.synchronize(device))  # type: ignore[misc]
    while releases:
        attempt(releases.pop())
    return first
