"""Weights and states on GPUs that sessions of several plans have together: each block is on a device once.

The arena of a site is smaller by what it shares (`PrivateLayout`). Shared blocks lie in chunks of memory: the executor
that first needs blocks takes a chunk for them on each device. A chunk is freed when the last executor that uses one of
its blocks is closed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.execution.shared_buffers import BufferKey, SharedBuffers, list_shared
from einc_runtime.plan.regions import buffer_bytes, is_loaded
from einc_runtime.plan.schema import Bundle
from einc_runtime.plan.states import STATE

DeviceKey = tuple[BufferKey, int]
"""A block of a weight or state, and the device that has it."""

_BUFFER_ALIGNMENT = 64
"""Offsets of buffers are multiples of it, in plans of the compiler, and in arenas without what is shared."""
_CHUNK_UNIT = 256
"""Chunks begin at multiples of it, as those of cudaMalloc do."""


@dataclass(slots=True)
class Chunk:
    """Memory on a device, for some blocks; `users` executors are open."""

    pointer: int
    keys: tuple[DeviceKey, ...]
    users: int = 0


@dataclass(slots=True)
class DeviceBlocks:
    """The addresses of blocks by their keys, and their chunks. `written` are states that are not known to be zeros."""

    addresses: dict[DeviceKey, int] = field(default_factory=dict)
    chunks: dict[DeviceKey, Chunk] = field(default_factory=dict)
    filled: set[DeviceKey] = field(default_factory=set)
    written: set[DeviceKey] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def release(self, chunk: Chunk, free: Callable[[], None]) -> None:
        """One executor is closed; `free` is called when it was the last."""
        with self.lock:
            chunk.users -= 1
            if chunk.users:
                return
            for key in chunk.keys:
                del self.addresses[key], self.chunks[key]
                self.filled.discard(key)
                self.written.discard(key)
        free()


def find_blocks(common: SharedBuffers) -> DeviceBlocks:
    """The blocks on devices that sessions with this common memory have."""
    if common.on_devices is None:
        common.on_devices = DeviceBlocks()
    assert isinstance(common.on_devices, DeviceBlocks)
    return common.on_devices


@dataclass(frozen=True, slots=True)
class PrivateLayout:
    """The keys of the buffers that are shared, what lies at their bytes too, and where all others lie.

    `same[b]` is the shared buffer whose bytes buffer b has. `sizes` are those of the arenas, without what is shared.
    `offsets[b]` is the place of buffer b in its arena; that of a shared buffer means nothing.
    """

    keys: Mapping[int, DeviceKey]
    same: Mapping[int, int]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]


def lay_out(bundle: Bundle, devices: Sequence[int], *, shared: bool) -> PrivateLayout:
    """Takes shared buffers out of the arenas. Where another buffer lies over one, nothing is shared."""
    offsets = tuple(buffer.offset for buffer in bundle.buffers)
    nothing = PrivateLayout({}, {}, tuple(bundle.memory), offsets)
    if not shared:
        return nothing
    keys = {number: (key, devices[bundle.buffers[number].site]) for number, key in list_shared(bundle)}
    places = {
        (buffer.site, buffer.offset): number
        for number, buffer in enumerate(bundle.buffers)
        if number in keys and bundle.tensors[buffer.tensor].kind == STATE
    }
    same = {
        number: places[buffer.site, buffer.offset]
        for number, buffer in enumerate(bundle.buffers)
        if buffer.role == STATE and number not in keys
    }
    holes = _find_holes(bundle, keys)
    if any(
        _overlap(holes[buffer.site], buffer.offset, buffer.offset + buffer_bytes(bundle, buffer))
        for number, buffer in enumerate(bundle.buffers)
        if number not in keys and number not in same
    ):
        return nothing
    before = [[0, *accumulate(end - start for start, end in holes_of_site)] for holes_of_site in holes]

    def move(site: int, offset: int) -> int:
        return offset - before[site][bisect_right(holes[site], (offset, offset))]

    sizes = tuple(size - before[site][-1] for site, size in enumerate(bundle.memory))
    return PrivateLayout(keys, same, sizes, tuple(move(buffer.site, buffer.offset) for buffer in bundle.buffers))


def _find_holes(bundle: Bundle, keys: Mapping[int, DeviceKey]) -> list[list[tuple[int, int]]]:
    """For every site the bytes that shared buffers leave free, in ascending order, as whole units."""
    holes: list[list[tuple[int, int]]] = [[] for _ in bundle.memory]
    for number in sorted(keys, key=lambda number: bundle.buffers[number].offset):
        buffer = bundle.buffers[number]
        start = -(-buffer.offset // _BUFFER_ALIGNMENT) * _BUFFER_ALIGNMENT
        end = (buffer.offset + buffer_bytes(bundle, buffer)) // _BUFFER_ALIGNMENT * _BUFFER_ALIGNMENT
        holes_of_site = holes[buffer.site]
        start = max(start, holes_of_site[-1][1]) if holes_of_site else start
        if end > start:
            holes_of_site.append((start, end))
    return holes


def _overlap(holes: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    at = bisect_right(holes, (start, start))
    return start < end and ((at > 0 and holes[at - 1][1] > start) or (at < len(holes) and holes[at][0] < end))


class SharedMemory:
    """What one executor shares: the addresses of its shared buffers, and what is known of their contents."""

    def __init__(self, bundle: Bundle, devices: Sequence[int], common: SharedBuffers | None) -> None:
        self.layout = lay_out(bundle, devices, shared=common is not None)
        self._blocks = DeviceBlocks() if common is None else find_blocks(common)
        self._sizes = {key: buffer_bytes(bundle, bundle.buffers[b]) for b, key in self.layout.keys.items()}
        self.states = {b: key for b, key in self.layout.keys.items() if key[0][0] == STATE}
        self._state_keys = frozenset(self.states.values())  # which knows their hashes
        states = [b for b, buffer in enumerate(bundle.buffers) if buffer.role == STATE and is_loaded(bundle, b)]
        self.shares_states = all(b in self.states for b in states)
        self.old_states: frozenset[int] = frozenset()
        """The buffers of states that were there before this executor."""

    def count_missing(self, device: int) -> int:
        """The bytes that have to be taken on a device."""
        return sum(
            _round(size) for key, size in self._sizes.items() if key[1] == device and key not in self._blocks.addresses
        )

    def take(self, driver: Driver, resources: CudaResources, allocate: Callable[[int, int], None]) -> Mapping[int, int]:
        """The addresses of shared buffers, and of what lies at the same bytes. New memory is filled with zeros.

        `allocate` is told of the device and size of each chunk that is taken.
        """
        blocks = self._blocks
        with blocks.lock:
            self.old_states = frozenset(b for b, key in self.states.items() if key in blocks.addresses)
            used: list[Chunk] = []
            for chunk in [blocks.chunks[key] for key in self._sizes if key in blocks.chunks]:
                if not any(chunk is user for user in used):
                    used.append(chunk)
                    _use(driver, resources, blocks, chunk, chunk.keys[0][1])
            for device in sorted({device for _, device in self._sizes}):
                keys = [key for key in self._sizes if key[1] == device and key not in blocks.addresses]
                size = sum(_round(self._sizes[key]) for key in keys)
                if not size:
                    continue
                chunk = Chunk(driver.allocate(device, size), tuple(keys))
                address = chunk.pointer
                for key in keys:
                    blocks.addresses[key], blocks.chunks[key] = address, chunk
                    address += _round(self._sizes[key])
                _use(driver, resources, blocks, chunk, device)
                driver.fill_bytes(device, chunk.pointer, 0, size)
                allocate(device, size)
            addresses = {b: blocks.addresses[key] for b, key in self.layout.keys.items()}
        return addresses | {b: addresses[shared] for b, shared in self.layout.same.items()}

    def is_filled(self, buffer: int) -> bool:
        """Whether an executor with the same memory has filled this buffer."""
        return self.layout.keys.get(buffer) in self._blocks.filled

    def mark_filled(self, buffer: int, *, zeros: bool) -> None:
        key = self.layout.keys.get(buffer)
        if key is not None:
            self._blocks.filled.add(key)
            (self._blocks.written.discard if zeros else self._blocks.written.add)(key)

    def mark_executed(self) -> None:
        """Says that an execution may have written the states."""
        self._blocks.written |= self._state_keys

    def is_written(self, buffer: int) -> bool:
        """Whether this state may hold something else than zeros."""
        return self.states[buffer] in self._blocks.written


def _use(driver: Driver, resources: CudaResources, blocks: DeviceBlocks, chunk: Chunk, device: int) -> None:
    """Counts a user of a chunk until `resources` are released."""
    chunk.users += 1
    resources.wait_for(device)
    resources.keep(lambda: blocks.release(chunk, lambda: driver.free(device, chunk.pointer)))


def _round(size: int) -> int:
    return -(-size // _CHUNK_UNIT) * _CHUNK_UNIT
