"""What an executor holds of CUDA, released in the opposite order of its taking, however it ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from einc_runtime.execution.cuda.driver import Driver

Release = Callable[[], None]


class Holdings:
    """Everything that is taken from a driver is taken here, and remembered before anything else can fail."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._devices: set[int] = set()
        self._releases: list[Release] = []
        # For an executor that nobody closes: when it is collected, or at the end of the process.
        self._finalizer = weakref.finalize(self, _release_all, driver, self._devices, self._releases)

    def keep(self, release: Release) -> None:
        """To be called once at the end. It must not refer to these holdings, which would never be collected then."""
        self._releases.append(release)

    def memory(self, device: int, size: int) -> int:
        driver = self._driver
        pointer = driver.allocate(device, size)
        self._devices.add(device)
        self.keep(lambda: driver.free(device, pointer))
        return pointer

    def host_memory(self, size: int) -> int:
        driver = self._driver
        pointer = driver.allocate_host(size)
        self.keep(lambda: driver.free_host(pointer))
        return pointer

    def stream(self, device: int) -> int:
        driver = self._driver
        stream = driver.create_stream(device)
        self._devices.add(device)
        self.keep(lambda: driver.destroy_stream(stream))
        return stream

    def event(self, device: int, *, timing: bool = False) -> int:
        driver = self._driver
        event = driver.create_event(device, timing=timing)
        self.keep(lambda: driver.destroy_event(event))
        return event

    def peer(self, device: int, peer: int) -> None:
        driver = self._driver
        if driver.enable_peer(device, peer):
            self.keep(lambda: driver.disable_peer(device, peer))

    def graph(self, graph: int) -> int:
        driver = self._driver
        self.keep(lambda: driver.destroy_graph(graph))
        return graph

    def instance(self, graph: int) -> int:
        driver = self._driver
        instance = driver.instantiate(graph)
        self.keep(lambda: driver.destroy_instance(instance))
        return instance

    def release(self) -> Exception | None:
        """Waits for the devices and releases everything, once; the first error on the way, if there was one.

        After a device is lost every call fails: each is made all the same, for the others' sake.
        """
        found: Exception | None = self._finalizer()
        return found

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
