"""HIP, the runtime library of AMD's GPUs, by its C interface.

HIP has the functions of CUDA's runtime under its own names. So a table of names is a binding like cupy's, and the
driver over it is CUDA's (`runtime_driver.py`). cupy's build for ROCm is not needed.

Nothing of this has run on a GPU of AMD: it is checked by a stand-in for the library that keeps to HIP's documentation.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import DriverError, VirtualMemory
from einc_runtime.execution.cuda.runtime_driver import NO_DEVICE, RuntimeDriver
from einc_runtime.kernels.gpu import GpuTarget

_INT, _SIZE, _POINTER, _FLOAT = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_float
_UNSIGNED = ctypes.c_uint
_PROPERTY_BYTES = ctypes.c_char * 4096
"""hipDeviceProp_t, which has 1,472 bytes in ROCm 6; later versions may add to them."""
_BUS_ID = ctypes.c_char * 64  # longer than 0000:c1:00.0


@dataclass(frozen=True, slots=True)
class HipCall:
    """A function of HIP: what it writes through its first pointers, or its last one, the types of its other arguments,
    and the values of those that CUDA's binding does not name."""

    name: str
    results: tuple[Any, ...]
    arguments: tuple[Any, ...]
    constants: tuple[int, ...] = ()
    writes_last: bool = False


_COPY_TYPES = (_POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _SIZE, _INT)

HIP_CALLS: dict[str, HipCall] = {
    "deviceCanAccessPeer": HipCall("hipDeviceCanAccessPeer", (_INT,), (_INT, _INT)),
    "deviceEnablePeerAccess": HipCall("hipDeviceEnablePeerAccess", (), (_INT, _UNSIGNED), (0,)),
    "deviceGetAttribute": HipCall("hipDeviceGetAttribute", (_INT,), (_INT, _INT)),
    "deviceGetPCIBusId": HipCall("hipDeviceGetPCIBusId", (_BUS_ID,), (_INT, _INT)),
    "deviceSynchronize": HipCall("hipDeviceSynchronize", (), ()),
    "eventCreateWithFlags": HipCall("hipEventCreateWithFlags", (_POINTER,), (_UNSIGNED,)),
    "eventDestroy": HipCall("hipEventDestroy", (), (_POINTER,)),
    "eventElapsedTime": HipCall("hipEventElapsedTime", (_FLOAT,), (_POINTER, _POINTER)),
    "eventQuery": HipCall("hipEventQuery", (), (_POINTER,)),
    "eventRecord": HipCall("hipEventRecord", (), (_POINTER, _POINTER)),
    "eventSynchronize": HipCall("hipEventSynchronize", (), (_POINTER,)),
    "free": HipCall("hipFree", (), (_POINTER,)),
    "freeHost": HipCall("hipHostFree", (), (_POINTER,)),
    "getDeviceCount": HipCall("hipGetDeviceCount", (_INT,), ()),
    "getDeviceProperties": HipCall("hipGetDevicePropertiesR0600", (_PROPERTY_BYTES,), (_INT,)),
    "graphDestroy": HipCall("hipGraphDestroy", (), (_POINTER,)),
    "graphExecDestroy": HipCall("hipGraphExecDestroy", (), (_POINTER,)),
    "graphInstantiate": HipCall("hipGraphInstantiateWithFlags", (_POINTER,), (_POINTER, ctypes.c_ulonglong), (0,)),
    "graphLaunch": HipCall("hipGraphLaunch", (), (_POINTER, _POINTER)),
    "graphUpload": HipCall("hipGraphUpload", (), (_POINTER, _POINTER)),
    "hostAlloc": HipCall("hipHostMalloc", (_POINTER,), (_SIZE, _UNSIGNED)),
    "malloc": HipCall("hipMalloc", (_POINTER,), (_SIZE,)),
    "memGetInfo": HipCall("hipMemGetInfo", (_SIZE, _SIZE), ()),
    "memcpy": HipCall("hipMemcpy", (), (_POINTER, _POINTER, _SIZE, _INT)),
    "memcpy2D": HipCall("hipMemcpy2D", (), _COPY_TYPES),
    "memcpy2DAsync": HipCall("hipMemcpy2DAsync", (), (*_COPY_TYPES, _POINTER)),
    "memcpyAsync": HipCall("hipMemcpyAsync", (), (_POINTER, _POINTER, _SIZE, _INT, _POINTER)),
    "memset": HipCall("hipMemset", (), (_POINTER, _INT, _SIZE)),
    "setDevice": HipCall("hipSetDevice", (), (_INT,)),
    "streamBeginCapture": HipCall("hipStreamBeginCapture", (), (_POINTER, _INT)),
    "streamCreateWithFlags": HipCall("hipStreamCreateWithFlags", (_POINTER,), (_UNSIGNED,)),
    "streamDestroy": HipCall("hipStreamDestroy", (), (_POINTER,)),
    "streamEndCapture": HipCall("hipStreamEndCapture", (_POINTER,), (_POINTER,), writes_last=True),
    "streamSynchronize": HipCall("hipStreamSynchronize", (), (_POINTER,)),
    "streamWaitEvent": HipCall("hipStreamWaitEvent", (), (_POINTER, _POINTER, _UNSIGNED), (0,)),
    "moduleLoadData": HipCall("hipModuleLoadData", (_POINTER,), (ctypes.c_char_p,)),
    "moduleGetFunction": HipCall("hipModuleGetFunction", (_POINTER,), (_POINTER, ctypes.c_char_p)),
    "moduleUnload": HipCall("hipModuleUnload", (), (_POINTER,)),
    "launchKernel": HipCall("hipModuleLaunchKernel", (), (_POINTER, *[_UNSIGNED] * 7, _POINTER, _POINTER, _POINTER)),
}
"""What cupy's bindings of CUDA call a function -> HIP's function, from hip/hip_runtime_api.h of ROCm 6. All return a
hipError_t, whose numbers are those of cudaError_t where both have the error."""

_HIP_MULTIPROCESSORS, _HIP_CACHE_BYTES = 63, 19
"""hipDeviceAttributeMultiprocessorCount and hipDeviceAttributeL2CacheSize."""


class HipError(Exception):
    """A call that HIP refused, with its status."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name}: HIP's status {status}")
        self.status = status


class HipRuntime:
    """HIP's library with the functions and constants of cupy's bindings that are in use."""

    eventDisableTiming, memcpyDefault, memcpyHostToDevice = 2, 4, 1
    streamCaptureModeThreadLocal, streamNonBlocking = 1, 1

    def __init__(self, library: Any) -> None:
        self._functions: dict[str, Any] = {}
        for name, call in HIP_CALLS.items():
            function = getattr(library, call.name)
            function.argtypes = _list_types(call)
            function.restype = _INT
            self._functions[name] = function

    def __getattr__(self, name: str) -> Any:
        if name not in HIP_CALLS:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        call = HIP_CALLS[name]
        results = [kind() for kind in call.results]
        if name == "deviceGetPCIBusId":
            arguments = (ctypes.sizeof(_BUS_ID), *arguments)
        if name == "moduleGetFunction":
            arguments = (arguments[0], arguments[1].encode())
        places = [ctypes.byref(result) for result in results]
        passed = (*arguments, *call.constants)
        status = self._functions[name](*((*passed, *places) if call.writes_last else (*places, *passed)))
        if name == "eventQuery":
            return status
        if status:
            raise HipError(call.name, status)
        values = [result.raw if hasattr(result, "raw") else result.value or 0 for result in results]
        return values[0] if len(values) == 1 else tuple(values)


def _list_types(call: HipCall) -> tuple[Any, ...]:
    places = (_POINTER,) * len(call.results)
    return (*call.arguments, *places) if call.writes_last else (*places, *call.arguments)


def has_amd_gpus(dev: Path = Path("/dev")) -> bool:
    """Whether GPUs of AMD are here, and none of NVIDIA: their device files are."""
    return (dev / "kfd").exists() and not any(dev.glob("nvidia[0-9]*"))


def open_hip() -> HipRuntime:
    """Raises MissingFault where ROCm is not installed."""
    for name in ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"):
        try:
            return HipRuntime(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
    raise MissingFault("AMD's GPUs need HIP, which is not installed", hint="install ROCm 6 or later")


class HipDriver(RuntimeDriver):
    """HIP. Raises MissingFault where a device is missing."""

    def __init__(self, runtime: HipRuntime) -> None:
        super().__init__(runtime, HipError)
        try:
            self.device_count()
        except DriverError as error:
            hint = "--backend cpu runs plans without one" if error.status == NO_DEVICE else "update AMD's driver"
            raise MissingFault(f"HIP finds no GPU that it can use: {error.text}", hint=hint) from error

    def address(self, device: int) -> str:
        return _read_text(self._call("deviceGetPCIBusId", device))

    def target(self, device: int) -> GpuTarget:
        properties: bytes = self._call("getDeviceProperties", device)
        names = re.findall(rb"gfx[0-9a-f]+", properties)  # gcnArchName, whose place depends on the version
        attributes = (_HIP_MULTIPROCESSORS, _HIP_CACHE_BYTES)
        count, cache = (int(self._call("deviceGetAttribute", attribute, device)) for attribute in attributes)
        architecture = names[-1].decode() if names else "gfx"
        return GpuTarget(device, _read_text(properties), (0, 0), count, architecture, cache)

    def can_signal(self, device: int, peer: int) -> bool:
        """No: what `hipMalloc` gives is coherent between devices when kernels end, and not while they run."""
        return False

    def virtual_memory(self) -> VirtualMemory | None:
        return None  # there are no multicast objects


def _read_text(raw: bytes) -> str:
    """A text of C at the beginning of some bytes."""
    return raw.partition(b"\0")[0].decode(errors="replace")
