"""A driver over a binding of a runtime library: one call of the library for one call of the executor.

CUDA and HIP have the same functions under other names, so that both drivers are this one, over bindings of one form
(`cupy_driver.py`, `hip_driver.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einc_runtime.execution.cuda.driver import DriverError

_ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled
NO_DEVICE = 100  # cudaErrorNoDevice, hipErrorNoDevice
_NOT_READY = 600  # cudaErrorNotReady
_PORTABLE = 1  # cudaHostAllocPortable: pinned for every device


class RuntimeDriver:
    """See `driver.Driver`; what its subclasses add differs between CUDA and HIP. The functions of `runtime` take what
    those of C take, but for places of results, which they return. They raise `error`, with a status."""

    def __init__(self, runtime: Any, error: type[Exception]) -> None:
        self._runtime, self._error = runtime, error

    def _call(self, name: str, *arguments: int) -> Any:
        function: Callable[..., Any] = getattr(self._runtime, name)
        try:
            return function(*arguments)
        except self._error as error:
            raise DriverError(name, int(getattr(error, "status", -1)), str(error)) from error

    def device_count(self) -> int:
        return int(self._call("getDeviceCount"))

    def address(self, device: int) -> str:
        return str(self._call("deviceGetPCIBusId", device))

    def use(self, device: int) -> None:
        self._call("setDevice", device)

    def memory(self, device: int) -> tuple[int, int]:
        self.use(device)
        free, total = self._call("memGetInfo")
        return int(free), int(total)

    def can_reach(self, device: int, peer: int) -> bool:
        return bool(self._call("deviceCanAccessPeer", device, peer))

    def enable_peer(self, device: int, peer: int) -> None:
        self.use(device)
        try:
            self._call("deviceEnablePeerAccess", peer)
        except DriverError as error:
            if error.status != _ALREADY_ENABLED:
                raise

    def synchronize(self, device: int) -> None:
        self.use(device)
        self._call("deviceSynchronize")

    def allocate(self, device: int, size: int) -> int:
        self.use(device)
        return int(self._call("malloc", size))

    def free(self, device: int, pointer: int) -> None:
        self.use(device)
        self._call("free", pointer)

    def allocate_host(self, size: int) -> int:
        return int(self._call("hostAlloc", size, _PORTABLE))

    def free_host(self, pointer: int) -> None:
        self._call("freeHost", pointer)

    def fill_bytes(self, device: int, pointer: int, value: int, size: int) -> None:
        self.use(device)
        self._call("memset", pointer, value, size)
        self._call("streamSynchronize", 0)  # a memset of device memory does not wait

    def copy(
        self, device: int, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int
    ) -> None:
        self.use(device)
        kind = self._runtime.memcpyDefault
        if height == 1 or width == target_pitch == source_pitch:
            self._call("memcpy", target, source, width * height, kind)
        else:
            self._call("memcpy2D", target, target_pitch, source, source_pitch, width, height, kind)
        # A copy from pageable memory returns when it has been staged, and our streams do not wait for the default one.
        self._call("streamSynchronize", 0)

    def copy_async(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, stream: int
    ) -> None:
        kind = self._runtime.memcpyDefault
        if height == 1 or width == target_pitch == source_pitch:
            self._call("memcpyAsync", target, source, width * height, kind, stream)
        else:
            self._call("memcpy2DAsync", target, target_pitch, source, source_pitch, width, height, kind, stream)

    def create_stream(self, device: int) -> int:
        self.use(device)
        return int(self._call("streamCreateWithFlags", self._runtime.streamNonBlocking))

    def destroy_stream(self, stream: int) -> None:
        self._call("streamDestroy", stream)

    def create_event(self, device: int, *, timing: bool) -> int:
        self.use(device)
        return int(self._call("eventCreateWithFlags", 0 if timing else self._runtime.eventDisableTiming))

    def destroy_event(self, event: int) -> None:
        self._call("eventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._call("eventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self._call("streamWaitEvent", stream, event)

    def wait_on_host(self, event: int) -> None:
        self._call("eventSynchronize", event)

    def has_happened(self, event: int) -> bool:
        status = int(self._call("eventQuery", event))  # returned, not raised
        if status not in (0, _NOT_READY):
            raise DriverError("eventQuery", status, f"CUDA's status {status}")
        return status == 0

    def elapsed_ms(self, start: int, end: int) -> float:
        return float(self._call("eventElapsedTime", start, end))

    def begin_capture(self, stream: int) -> None:
        # Thread-local: a call that a capture forbids fails at once in this thread, and is allowed in other threads.
        self._call("streamBeginCapture", stream, self._runtime.streamCaptureModeThreadLocal)

    def end_capture(self, stream: int) -> int:
        return int(self._call("streamEndCapture", stream))

    def instantiate(self, graph: int) -> int:
        return int(self._call("graphInstantiate", graph))

    def destroy_graph(self, graph: int) -> None:
        self._call("graphDestroy", graph)

    def destroy_instance(self, instance: int) -> None:
        self._call("graphExecDestroy", instance)

    def upload(self, instance: int, stream: int) -> None:
        self._call("graphUpload", instance, stream)

    def launch(self, instance: int, stream: int) -> None:
        self._call("graphLaunch", instance, stream)
