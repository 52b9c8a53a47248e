"""The machine that this process runs on: its GPUs where cupy sees any, else its CPU.

A detected machine is a starting point for a machine file: measured links belong there, not in code.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from einc.machines.catalogue import RESERVED
from einc.machines.importers.topology import PCIE_GBS
from einc.machines.load import load_machine
from einc.machines.model import Machine, Resource, Site
from einc_runtime.plan.schema import HOST

_KNOWN = (("GB200", "gb200-nvl72"), ("H100", "dgx-h100"), ("H200", "dgx-h100"), ("A100", "dgx-a100"))
"""Parts of a GPU's name, and the preset whose peaks and switch it has."""


_MULTIPROCESSORS, _CLOCK, _CACHE = 16, 13, 38
"""CUDA's attributes of a device: multiprocessors, kHz of the clock, bytes of the L2 cache."""


def detect() -> Machine:
    """The visible GPUs as a machine, or `host` with this machine's cores, memory and measured copy bandwidth."""
    return find_visible_gpus() or _describe_host()


def find_visible_gpus() -> Machine | None:
    """The visible GPUs as a machine, or None where there are none; measures nothing."""
    gpus = _list_gpus()
    return build_gpu_machine(gpus) if gpus else None


def build_gpu_machine(gpus: list[tuple[str, int, float]]) -> Machine:
    """The machine of GPUs given as (name, memory in bytes, HBM bandwidth in GB/s or 0 where unknown).

    GPUs of one kind that a preset with a switch has get its fabric and peaks; all others share one bridge. The DGX-1V
    has no switch: its links are in the preset of that name.
    """
    preset = next((preset for part, preset in _KNOWN if all(part in name for name, _, _ in gpus)), None)
    if preset is not None and len(gpus) <= len(load_machine(preset).sites):
        base = load_machine(preset).restrict(range(len(gpus)))
        sites = tuple(
            dataclasses.replace(site, memory_bytes=_leave_reserve(memory), hbm_gbs=hbm or site.hbm_gbs)
            for site, (_, memory, hbm) in zip(base.sites, gpus, strict=True)
        )
        return dataclasses.replace(base, name=f"{preset}-x{len(gpus)}", sites=sites)
    pairs = tuple((a, b) for a in range(len(gpus)) for b in range(len(gpus)) if a != b)
    bridge = (Resource("pcie", PCIE_GBS, pairs),) if pairs else ()
    return Machine(
        "gpus", tuple(Site(hbm or 900.0, _leave_reserve(memory)) for _, memory, hbm in gpus), bridge, 10.0, 5.0
    )


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a GPU says of itself: that its kernels are timed by."""

    name: str
    multiprocessors: int
    clock_ghz: float
    cache_mb: float


def describe_chip(device: int = 0) -> Chip:
    """One of the GPUs that cupy sees."""
    import cupy

    runtime = cupy.cuda.runtime
    count, clock_khz, cache = (int(runtime.deviceGetAttribute(a, device)) for a in (_MULTIPROCESSORS, _CLOCK, _CACHE))
    name: bytes = runtime.getDeviceProperties(device)["name"]
    return Chip(name.decode(errors="replace"), count, clock_khz * 1e-6 or 1.5, cache * 1e-6 or 4.0)


def _leave_reserve(memory: int) -> int:
    """Of the memory of a GPU, the bytes that a plan may take; half of a part that is hardly larger than the reserve."""
    return max(memory - RESERVED, memory // 2)


def _list_gpus() -> list[tuple[str, int, float]]:
    try:
        import cupy

        gpus = []
        for device in range(cupy.cuda.runtime.getDeviceCount()):
            facts: dict[str, Any] = cupy.cuda.runtime.getDeviceProperties(device)
            clock_khz, bus_bits = facts.get("memoryClockRate", 0), facts.get("memoryBusWidth", 0)
            bandwidth = 2 * clock_khz * 1e3 * bus_bits / 8 / 1e9  # double data rate
            gpus.append((facts["name"].decode(), int(facts["totalGlobalMem"]), round(bandwidth, 1)))
        return gpus
    except Exception:  # cupy has its own exceptions for a missing driver, no device or an old library
        return []


def _describe_host() -> Machine:
    """`host` with what can be known here: cores, memory and the bandwidth of a copy, shared by all sites."""
    machine = load_machine(HOST)
    cores, copy_gbs = len(machine.sites), round(measure_copy_bandwidth(), 2)
    memory = _measure_memory() // cores
    # A copy reads and writes, so memory serves twice what it moves; the sites share it.
    hbm = round(2 * copy_gbs / cores, 2)
    sites = tuple(
        dataclasses.replace(site, hbm_gbs=hbm, memory_bytes=memory or site.memory_bytes) for site in machine.sites
    )
    resources = tuple(dataclasses.replace(resource, gbs=copy_gbs) for resource in machine.resources)
    return dataclasses.replace(machine, sites=sites, resources=resources)


def measure_copy_bandwidth(size: int = 64 * 2**20, repeats: int = 5) -> float:
    """GB/s at which one core copies `size` bytes: the best of several tries, as noise only slows them."""
    import numpy as np

    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return max(size / max(best, 1e-9) / 1e9, 0.01)


def _measure_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
