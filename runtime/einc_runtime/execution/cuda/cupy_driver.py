"""CUDA through cupy's thin binding of its runtime library: one call of CUDA for one call here.

cupy's own streams, events, graphs and memory pools are not used: they release what they hold when they are garbage
collected, and the executor has to release every handle itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import DriverError, VirtualMemory
from einc_runtime.execution.cuda.virtual_memory import CudaVirtualMemory
from einc_runtime.installing import suggest_cuda
from einc_runtime.kernels.gpu import GpuTarget

_ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled
_NO_DEVICE = 100  # cudaErrorNoDevice
_NOT_READY = 600  # cudaErrorNotReady
_NATIVE_ATOMICS = 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
_PORTABLE = 1  # cudaHostAllocPortable: pinned for every device

DRIVER_CALLS: dict[str, int] = {
    "deviceCanAccessPeer": 2, "deviceEnablePeerAccess": 1, "deviceGetAttribute": 2, "deviceGetPCIBusId": 1,
    "deviceSynchronize": 0, "eventCreateWithFlags": 1, "eventDestroy": 1, "eventElapsedTime": 2, "eventQuery": 1,
    "eventRecord": 2, "eventSynchronize": 1, "free": 1, "freeHost": 1, "getDeviceCount": 0, "getDeviceProperties": 1,
    "graphDestroy": 1, "graphExecDestroy": 1, "graphInstantiate": 1, "graphLaunch": 2, "graphUpload": 2, "hostAlloc": 2,
    "malloc": 1, "memGetInfo": 0, "memcpy": 4, "memcpy2D": 7, "memcpy2DAsync": 8, "memcpyAsync": 5, "memset": 3,
    "setDevice": 1, "streamBeginCapture": 2, "streamCreateWithFlags": 1, "streamDestroy": 1, "streamEndCapture": 1,
    "streamSynchronize": 1, "streamWaitEvent": 2,
}  # fmt: skip
"""The functions of `cupy.cuda.runtime` in use and their argument counts; a test checks the installed cupy."""

CONSTANTS = (
    "cudaDevAttrMultiProcessorCount", "eventDisableTiming", "memcpyDefault", "streamCaptureModeThreadLocal",
    "streamNonBlocking",
)  # fmt: skip

_MAJOR, _MINOR, _CACHE_BYTES = 75, 76, 38
"""cudaDevAttrComputeCapabilityMajor, Minor and cudaDevAttrL2CacheSize, which cupy names in some versions only."""


class CupyDriver:
    """See `driver.Driver`. Raises MissingFault where cupy, a driver or a device is missing."""

    def __init__(self) -> None:
        try:
            import cupy
            from cupy.cuda import runtime
        except ImportError as error:
            hint = f"--backend cpu needs no GPU; with one: {suggest_cuda()}"
            raise MissingFault("the CUDA backend needs cupy, which is not installed", hint=hint) from error
        except OSError as error:
            hint = "cupy keeps what it compiles in CUPY_CACHE_DIR, or ~/.cupy: name a directory that can be written"
            raise MissingFault(f"the CUDA backend needs cupy, which cannot be imported: {error}", hint=hint) from error
        self._runtime: Any = runtime
        self._error: type[Exception] = runtime.CUDARuntimeError
        self.version: str = cupy.__version__
        try:
            self._devices = self._call("getDeviceCount")
        except DriverError as error:
            if error.status == _NO_DEVICE:
                raise MissingFault("CUDA finds no GPU here", hint="--backend cpu runs plans without one") from error
            hint = "update NVIDIA's driver, or replace cupy by one that fits it; --backend cpu needs no GPU"
            raise MissingFault(f"CUDA cannot be used here: {error.text}", hint=hint) from error

    def _call(self, name: str, *arguments: int) -> Any:
        function: Callable[..., Any] = getattr(self._runtime, name)
        try:
            return function(*arguments)
        except self._error as error:
            raise DriverError(name, int(getattr(error, "status", -1)), str(error)) from error

    def device_count(self) -> int:
        return int(self._devices)

    def target(self, device: int) -> GpuTarget:
        name: bytes = self._call("getDeviceProperties", device)["name"]
        attributes = (_MAJOR, _MINOR, self._runtime.cudaDevAttrMultiProcessorCount, _CACHE_BYTES)
        major, minor, count, cache = (int(self._call("deviceGetAttribute", a, device)) for a in attributes)
        return GpuTarget(device, name.decode(errors="replace"), (major, minor), count, cache_bytes=cache)

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

    def can_signal(self, device: int, peer: int) -> bool:
        try:
            library: Any = ctypes.CDLL("libcuda.so.1")  # cupy's binding has no such call
        except OSError:
            return False
        ends, value = (ctypes.c_int(), ctypes.c_int()), ctypes.c_int()
        for end, number in zip(ends, (device, peer), strict=True):
            library.cuDeviceGet(ctypes.byref(end), number)
        status = library.cuDeviceGetP2PAttribute(ctypes.byref(value), _NATIVE_ATOMICS, *ends)
        return status == 0 and bool(value.value)

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

    def virtual_memory(self) -> VirtualMemory | None:
        try:
            return CudaVirtualMemory()
        except (OSError, AttributeError):
            return None

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
