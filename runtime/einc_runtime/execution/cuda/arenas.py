"""The arenas of all sites: by CUDA's usual allocation, or as memory that one multicast object stands for.

With multicast memory, the switches between GPUs add what all of them hold at one offset (`multimem.ld_reduce`). It is
taken only where `EINC_MULTICAST=1` asks for it, every site has a GPU of its own, and all of these reach each other and
have multicast. Whatever fails on the way, the usual allocation is taken, and a note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from einc_runtime import environment
from einc_runtime.execution.cuda.devices import PeerAccess
from einc_runtime.execution.cuda.driver import Driver, DriverError, VirtualMemory
from einc_runtime.execution.cuda.resources import CudaResources


@dataclass(frozen=True, slots=True)
class Arenas:
    """The address of every site's arena, the bytes that each takes, and the address at which an offset stands for that
    offset in all of them (0: there is none). `note` says why there is none although it was asked for."""

    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    multicast: int = 0
    note: str = ""


def wants_multicast() -> bool:
    """Whether the switches between GPUs shall add."""
    return environment.read(environment.MULTICAST) == "1"


def take_arenas(
    driver: Driver,
    resources: CudaResources,
    sizes: Sequence[int],
    devices: Sequence[int],
    peers: PeerAccess,
    allocate: Callable[[int, int], int],
) -> Arenas:
    """Arenas of at least these sizes on these devices, filled with zeros; `allocate` is the usual way."""
    note = ""
    if wants_multicast():
        note = _find_obstacle(devices, peers)
        memory = None if note else driver.virtual_memory()
        if not note:
            attempt = CudaResources(driver)
            try:
                unit = 0 if memory is None else memory.unit(devices)
                if memory is not None and unit:
                    arenas = take_multicast_arenas(driver, attempt, memory, max(sizes), devices, unit)
                    resources.adopt(attempt)
                    return arenas
                note = "these GPUs have no multicast memory"
            except DriverError as error:
                attempt.require_release()
                note = f"multicast memory cannot be had: {error}"
            except BaseException:
                attempt.release()
                raise
    return Arenas(
        tuple(allocate(device, size) for device, size in zip(devices, sizes, strict=True)), tuple(sizes), 0, note
    )


def _find_obstacle(devices: Sequence[int], peers: PeerAccess) -> str:
    """Why the switches cannot add what these sites hold; empty where they may."""
    if len(devices) < 2 or len({*devices}) < len(devices):
        return "multicast memory needs a GPU for every site, and two or more"
    if peers.staged:
        return "multicast memory needs GPUs that reach each other's memory"
    return ""


def take_multicast_arenas(
    driver: Driver, resources: CudaResources, memory: VirtualMemory, largest: int, devices: Sequence[int], unit: int
) -> Arenas:
    """Arenas of one size, and the object that stands for all of them. What is taken is in `resources`."""
    size = -(-max(largest, 1) // unit) * unit
    keep = resources.keep
    handles = []
    for device in devices:
        driver.use(device)
        handle = memory.create(device, size)
        keep(partial(memory.release, handle))
        handles.append(handle)
    addresses = tuple(_map(resources, memory, handle, size, unit, devices) for handle in handles)
    multicast = memory.create_multicast(len(devices), size)
    keep(partial(memory.release, multicast))
    for device in devices:
        memory.add_device(multicast, device)
    for device, handle in zip(devices, handles, strict=True):
        memory.bind(multicast, handle, size)
        keep(partial(memory.unbind, multicast, device, size))
    shared = _map(resources, memory, multicast, size, unit, devices)
    for device, address in zip(devices, addresses, strict=True):
        driver.fill_bytes(device, address, 0, size)
        resources.wait_for(device)
    return Arenas(addresses, (size,) * len(devices), shared)


def _map(
    resources: CudaResources, memory: VirtualMemory, handle: int, size: int, unit: int, devices: Sequence[int]
) -> int:
    """An address at which all devices may access what a handle stands for."""
    address = memory.reserve(size, unit)
    resources.keep(partial(memory.free, address, size))
    memory.map(address, size, handle)
    resources.keep(partial(memory.unmap, address, size))
    memory.allow(address, size, devices)
    return address
