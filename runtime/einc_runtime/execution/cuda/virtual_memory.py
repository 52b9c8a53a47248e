"""Memory by handles, mapped to addresses, and multicast objects over several GPUs: the part of CUDA's driver for it.

cupy's thin binding lacks these calls, so they go to libcuda through ctypes. A multicast object stands for the memory of
several GPUs at once: what is read there with `multimem.ld_reduce` is the sum over them, computed by the switches in
between. The order of the calls is CUDA's: all GPUs are added to an object before memory is bound to it, and what is
mapped is unmapped, and what is bound unbound, before it is released.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from einc_runtime.execution.cuda.driver import DriverError

_PINNED, _ON_DEVICE, _READ_WRITE, _RECOMMENDED = 1, 1, 3, 1
_MEMORY_BY_HANDLES, _MULTICAST = 102, 132  # CUdevice_attribute


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("kind", ctypes.c_int), ("device", ctypes.c_int))


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("where", _Location),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("where", _Location), ("flags", ctypes.c_int))


class _MulticastProperties(ctypes.Structure):
    """CUmulticastObjectProp."""

    _fields_ = (
        ("count", ctypes.c_uint),
        ("size", ctypes.c_size_t),
        ("handles", ctypes.c_ulonglong),
        ("flags", ctypes.c_ulonglong),
    )


_INT, _SIZE, _WIDE, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p

DRIVER_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuDeviceGet": (_POINTER, _INT),
    "cuDeviceGetAttribute": (_POINTER, _INT, _INT),
    "cuMemGetAllocationGranularity": (_POINTER, _POINTER, _INT),
    "cuMemCreate": (_POINTER, _SIZE, _POINTER, _WIDE),
    "cuMemRelease": (_WIDE,),
    "cuMemAddressReserve": (_POINTER, _SIZE, _SIZE, _WIDE, _WIDE),
    "cuMemAddressFree": (_WIDE, _SIZE),
    "cuMemMap": (_WIDE, _SIZE, _SIZE, _WIDE, _WIDE),
    "cuMemUnmap": (_WIDE, _SIZE),
    "cuMemSetAccess": (_WIDE, _SIZE, _POINTER, _SIZE),
    "cuMulticastGetGranularity": (_POINTER, _POINTER, _INT),
    "cuMulticastCreate": (_POINTER, _POINTER),
    "cuMulticastAddDevice": (_WIDE, _INT),
    "cuMulticastBindMem": (_WIDE, _SIZE, _WIDE, _SIZE, _SIZE, _WIDE),
    "cuMulticastUnbind": (_WIDE, _INT, _SIZE, _SIZE),
}
"""The functions of libcuda that are called, with the types of their arguments; all return a CUresult."""


class CudaVirtualMemory:
    """See `driver.VirtualMemory`. Raises OSError and AttributeError where the driver is missing, or too old for it."""

    def __init__(self, library: Any = None) -> None:
        self._library: Any = library or ctypes.CDLL("libcuda.so.1")
        for name, types in DRIVER_PROTOTYPES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = types, _INT

    def unit(self, devices: Sequence[int]) -> int:
        properties = _MulticastProperties(len(devices), 2 << 20, 0, 0)
        units = []
        for device in devices:
            if not all(self._attribute(device, attribute) for attribute in (_MEMORY_BY_HANDLES, _MULTICAST)):
                return 0
            units.append(
                self._ask("cuMemGetAllocationGranularity", _SIZE, _describe(self._device(device)), _RECOMMENDED)
            )
        units.append(self._ask("cuMulticastGetGranularity", _SIZE, properties, _RECOMMENDED))
        return max(units)  # all of them are powers of two

    def create(self, device: int, size: int) -> int:
        handle = _WIDE()
        properties = _describe(self._device(device))
        self._call("cuMemCreate", ctypes.addressof(handle), size, ctypes.addressof(properties), 0)
        return handle.value

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def reserve(self, size: int, unit: int) -> int:
        address = _WIDE()
        self._call("cuMemAddressReserve", ctypes.addressof(address), size, unit, 0, 0)
        return address.value

    def free(self, address: int, size: int) -> None:
        self._call("cuMemAddressFree", address, size)

    def map(self, address: int, size: int, handle: int) -> None:
        self._call("cuMemMap", address, size, 0, handle, 0)

    def unmap(self, address: int, size: int) -> None:
        self._call("cuMemUnmap", address, size)

    def allow(self, address: int, size: int, devices: Sequence[int]) -> None:
        accesses = (_Access * len(devices))(
            *(_Access(_Location(_ON_DEVICE, self._device(device)), _READ_WRITE) for device in devices)
        )
        self._call("cuMemSetAccess", address, size, ctypes.addressof(accesses), len(devices))

    def create_multicast(self, count: int, size: int) -> int:
        handle, properties = _WIDE(), _MulticastProperties(count, size, 0, 0)
        self._call("cuMulticastCreate", ctypes.addressof(handle), ctypes.addressof(properties))
        return handle.value

    def add_device(self, multicast: int, device: int) -> None:
        self._call("cuMulticastAddDevice", multicast, self._device(device))

    def bind(self, multicast: int, handle: int, size: int) -> None:
        self._call("cuMulticastBindMem", multicast, 0, handle, 0, size, 0)

    def unbind(self, multicast: int, device: int, size: int) -> None:
        self._call("cuMulticastUnbind", multicast, self._device(device), 0, size)

    def _device(self, ordinal: int) -> int:
        return self._ask("cuDeviceGet", _INT, None, ordinal)

    def _attribute(self, device: int, attribute: int) -> int:
        value = _INT()
        self._call("cuDeviceGetAttribute", ctypes.addressof(value), attribute, self._device(device))
        return value.value

    def _ask(self, name: str, kind: Any, properties: Any, number: int) -> int:
        """What a function writes to its first argument."""
        answer = kind()
        described = () if properties is None else (ctypes.addressof(properties),)
        self._call(name, ctypes.addressof(answer), *described, number)
        return int(answer.value)

    def _call(self, name: str, *arguments: int) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DriverError(name, status, f"status {status}")


def _describe(device: int) -> _AllocationProperties:
    """Pinned memory of a device that no other process gets."""
    return _AllocationProperties(_PINNED, 0, _Location(_ON_DEVICE, device), None)
