"""What a probe works with: memory, a stream, and graphs of one thing alone, on a driver of CUDA or its fake."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.kernels.gpu import Kernels

Array = np.ndarray[Any, np.dtype[Any]]


class Broken(Exception):
    """A primitive does not do what it should."""


class Absent(Exception):
    """A primitive that this machine does not have, and need not have."""


class Bench:
    """One GPU's memory and a stream. What is taken is given back when the process ends."""

    def __init__(self, driver: Driver, kernels: Kernels, device: int = 0) -> None:
        self.driver, self.kernels, self.device = driver, kernels, device
        driver.use(device)
        self.stream = driver.create_stream(device)

    def upload(self, array: Array) -> int:
        """The address of a copy."""
        pointer = self.driver.allocate(self.device, array.nbytes)
        self.driver.copy(self.device, pointer, array.nbytes, array.ctypes.data, array.nbytes, array.nbytes, 1)
        return pointer

    def download(self, pointer: int, like: Array, device: int | None = None) -> Array:
        found = np.empty_like(like)
        own = self.device if device is None else device
        self.driver.copy(own, found.ctypes.data, found.nbytes, pointer, found.nbytes, found.nbytes, 1)
        return found

    def empty(self, size: int) -> int:
        pointer = self.driver.allocate(self.device, size)
        self.driver.fill_bytes(self.device, pointer, 0, size)
        return pointer

    def copy(self, target: int, source: int, size: int, stream: int | None = None) -> None:
        self.driver.copy_async(target, size, source, size, size, 1, self.stream if stream is None else stream)

    def replay(self, enqueue: Callable[[int], Any], copies: int = 1) -> float:
        """Enqueues something once to warm up, captures it `copies` times, and replays that twice; the milliseconds of
        one copy in the second replay."""
        driver = self.driver
        driver.use(self.device)
        enqueue(self.stream)
        driver.synchronize(self.device)
        driver.begin_capture(self.stream)
        for _ in range(copies):
            enqueue(self.stream)
        graph = driver.end_capture(self.stream)
        instance = driver.instantiate(graph)
        driver.upload(instance, self.stream)
        first, last = (driver.create_event(self.device, timing=True) for _ in range(2))
        for _ in range(2):
            driver.record(first, self.stream)
            driver.launch(instance, self.stream)
            driver.record(last, self.stream)
            driver.wait_on_host(last)
        milliseconds = driver.elapsed_ms(first, last) / copies
        driver.destroy_instance(instance)
        driver.destroy_graph(graph)
        return milliseconds

    def require_equal(self, found: Array, expected: Array, tolerance: float = 0.0) -> None:
        """Raises Broken where they differ by more than that, relative to the largest value."""
        own, true = (array.astype(np.float64) for array in (found, expected))
        error = float(np.abs(own - true).max() / (np.abs(true).max() or 1.0))
        if not error <= tolerance:
            raise Broken(f"it computes something else: off by {error:.2g}")


def host_bytes(pointer: int, size: int) -> Array:
    """Pinned memory of the host as an array."""
    return np.frombuffer((ctypes.c_uint8 * size).from_address(pointer), np.uint8)


def speed(size: float, milliseconds: float) -> float:
    """GB/s; 0 where there was no time to be measured."""
    return size / milliseconds / 1e6 if milliseconds > 0 else 0.0
