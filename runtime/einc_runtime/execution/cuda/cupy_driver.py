"""CUDA through cupy's thin binding of its runtime library: one call of CUDA for one call here.

cupy's own streams, events, graphs and memory pools are not used: they release what they hold when they are garbage
collected, and the executor has to release every handle itself.
"""

from __future__ import annotations

import ctypes
from typing import Any

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import DriverError, VirtualMemory
from einc_runtime.execution.cuda.runtime_driver import NO_DEVICE, RuntimeDriver
from einc_runtime.execution.cuda.virtual_memory import CudaVirtualMemory
from einc_runtime.installing import suggest_cuda
from einc_runtime.kernels.gpu import GpuTarget

_NATIVE_ATOMICS = 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED

_MAJOR, _MINOR, _CACHE_BYTES = 75, 76, 38
"""cudaDevAttrComputeCapabilityMajor, Minor and cudaDevAttrL2CacheSize, which cupy names in some versions only."""


class CupyDriver(RuntimeDriver):
    """CUDA. Raises MissingFault where cupy, a driver or a device is missing."""

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
        super().__init__(runtime, runtime.CUDARuntimeError)
        self.version: str = cupy.__version__
        try:
            self.device_count()
        except DriverError as error:
            if error.status == NO_DEVICE:
                raise MissingFault("CUDA finds no GPU here", hint="--backend cpu runs plans without one") from error
            hint = "update NVIDIA's driver, or replace cupy by one that fits it; --backend cpu needs no GPU"
            raise MissingFault(f"CUDA cannot be used here: {error.text}", hint=hint) from error

    def target(self, device: int) -> GpuTarget:
        name: bytes = self._call("getDeviceProperties", device)["name"]
        attributes = (_MAJOR, _MINOR, self._runtime.cudaDevAttrMultiProcessorCount, _CACHE_BYTES)
        major, minor, count, cache = (int(self._call("deviceGetAttribute", a, device)) for a in attributes)
        return GpuTarget(device, name.decode(errors="replace"), (major, minor), count, cache_bytes=cache)

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

    def virtual_memory(self) -> VirtualMemory | None:
        try:
            return CudaVirtualMemory()
        except (OSError, AttributeError):
            return None
