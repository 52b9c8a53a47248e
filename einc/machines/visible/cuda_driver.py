"""The GPUs that CUDA's driver shows to this process, by `libcuda` alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from einc.machines.model import Pair

_MULTIPROCESSOR_COUNT, _CLOCK_KHZ, _CACHE, _MAJOR, _MINOR, _MEMORY_KHZ, _BUS_BITS = 16, 13, 38, 75, 76, 36, 37
"""CUDA's numbers of attributes of a device."""
_NATIVE_ATOMICS = 3
"""CUDA's number of the attribute of a pair that says whether atomic operations on a peer's memory are supported, which
NVLink does and PCIe does not."""


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """What the driver says of a GPU; a clock or a rate of 0 is not known."""

    name: str
    memory_bytes: int
    bus_id: str
    multiprocessors: int
    clock_ghz: float
    cache_mb: float
    memory_gbs: float
    """By the clock of its memory, at double data rate."""
    arch: str


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The visible GPUs in CUDA's order, the pairs without peers, and those that NVLink seems to join."""

    gpus: tuple[VisibleGpu, ...]
    staged: frozenset[Pair]
    linked: frozenset[Pair]


def ask_driver(library: Any = "libcuda.so.1") -> DriverFacts | None:
    """What the driver says; None where there is none, or no GPU is visible."""
    try:
        driver = ctypes.CDLL(library) if isinstance(library, str) else library
        count = ctypes.c_int(0)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value < 1:
            return None
        handles = [_ask_int(driver.cuDeviceGet, position) for position in range(count.value)]
        gpus = tuple(_describe(driver, handle) for handle in handles)
        return DriverFacts(gpus, *_ask_about_pairs(driver, handles))
    except (OSError, AttributeError):
        return None


def _describe(driver: Any, handle: int) -> VisibleGpu:
    name, bus_id = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
    memory = ctypes.c_size_t(0)
    _check(driver.cuDeviceGetName(name, 256, handle))
    _check(driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle))
    _check(driver.cuDeviceGetPCIBusId(bus_id, 64, handle))
    units, clock, cache, major, minor, memory_khz, bus_bits = (
        _ask_int(driver.cuDeviceGetAttribute, attribute, handle)
        for attribute in (_MULTIPROCESSOR_COUNT, _CLOCK_KHZ, _CACHE, _MAJOR, _MINOR, _MEMORY_KHZ, _BUS_BITS)
    )
    return VisibleGpu(
        name.value.decode(errors="replace"),
        memory.value,
        bus_id.value.decode(errors="replace").lower(),
        units,
        clock * 1e-6,
        cache * 1e-6,
        round(2 * memory_khz * bus_bits / 8 * 1e-6, 1),
        f"{major}{minor}",
    )


def _ask_about_pairs(driver: Any, handles: Sequence[int]) -> tuple[frozenset[Pair], frozenset[Pair]]:
    """The pairs without peers, in either direction, and those with native atomics in both."""
    staged: set[Pair] = set()
    linked: set[Pair] = set()
    for a, source in enumerate(handles):
        for b, target in enumerate(handles):
            if a == b:
                continue
            if not _ask_int(driver.cuDeviceCanAccessPeer, source, target):
                staged |= {(a, b), (b, a)}
            elif _ask_int(driver.cuDeviceGetP2PAttribute, _NATIVE_ATOMICS, source, target):
                linked.add((a, b))
    both = {(a, b) for a, b in linked if (b, a) in linked}
    return frozenset(staged), frozenset(both - staged)


def _ask_int(function: Any, *arguments: int) -> int:
    value = ctypes.c_int(0)
    _check(function(ctypes.byref(value), *arguments))
    return value.value


def _check(status: int) -> None:
    if status != 0:
        raise OSError(f"CUDA's driver answers {status}")
