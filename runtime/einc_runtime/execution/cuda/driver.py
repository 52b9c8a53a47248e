"""The part of CUDA that the executor uses, and nothing else: small enough for a fake that checks every call.

Handles (streams, events, graphs, their instances) and addresses are integers, as C has them. Sizes are bytes. Every
method raises DriverError for an error that CUDA reports, which may be that of an earlier asynchronous call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from einc_runtime.kernels.gpu import GpuTarget

OUT_OF_MEMORY = 2
"""The status of an allocation that did not fit (cudaErrorMemoryAllocation)."""

NO_PEER_ACCESS = frozenset({101, 217, 711, 800, 801})
"""The statuses of access between devices that there cannot be, though all else works (cudaErrorInvalidDevice,
PeerAccessUnsupported, TooManyPeers, NotPermitted, NotSupported)."""


class DriverError(Exception):
    """A call that CUDA refused: its name, CUDA's status, and CUDA's text for it."""

    def __init__(self, call: str, status: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.call, self.status, self.text = call, status, text


class VirtualMemory(Protocol):
    """Handles and addresses are integers, sizes are bytes. Every method raises DriverError."""

    def unit(self, devices: Sequence[int]) -> int:
        """Sizes and reservations of memory on these devices that a multicast object can stand for are multiples of
        this; 0 where a device has no multicast."""

    def create(self, device: int, size: int) -> int:
        """A handle of memory, which has no address yet."""

    def release(self, handle: int) -> None:
        """Gives memory or a multicast object back."""

    def reserve(self, size: int, unit: int) -> int:
        """An address with room for so many bytes, a multiple of `unit`."""

    def free(self, address: int, size: int) -> None: ...

    def map(self, address: int, size: int, handle: int) -> None:
        """Puts memory or a multicast object at an address that is reserved; nobody may access it yet."""

    def unmap(self, address: int, size: int) -> None: ...

    def allow(self, address: int, size: int, devices: Sequence[int]) -> None:
        """Lets these devices read and write what is mapped there."""

    def create_multicast(self, count: int, size: int) -> int:
        """A handle of an object that will stand for memory of `count` devices."""

    def add_device(self, multicast: int, device: int) -> None: ...

    def bind(self, multicast: int, handle: int, size: int) -> None:
        """Lets the object stand for this memory, from its beginning, once all devices have been added."""

    def unbind(self, multicast: int, device: int, size: int) -> None: ...


class Driver(Protocol):
    """CUDA as the executor uses it. `cupy_driver.CupyDriver` is the real one."""

    # Devices

    def device_count(self) -> int:
        """The number of devices that this process may use; they are 0, 1, ..."""

    def target(self, device: int) -> GpuTarget:
        """What kernels are compiled and chosen for."""

    def address(self, device: int) -> str:
        """Where the device is in its machine: equal for processes that have the same one."""

    def use(self, device: int) -> None:
        """Makes a device current: kernels are prepared, bound and launched on the current one."""

    def memory(self, device: int) -> tuple[int, int]:
        """Free and total bytes."""

    def can_reach(self, device: int, peer: int) -> bool:
        """Whether `device` could access the memory of `peer`."""

    def enable_peer(self, device: int, peer: int) -> None:
        """Lets `device` access the memory of `peer` for the rest of the process.

        There is no way back: access belongs to the process, and other executors and libraries rely on it.
        """

    def can_signal(self, device: int, peer: int) -> bool:
        """Whether kernels on `device`, which has access to the memory of `peer`, can set flags there by atomic
        operations."""

    def synchronize(self, device: int) -> None:
        """Waits for everything that was enqueued on a device."""

    # Memory

    def allocate(self, device: int, size: int) -> int:
        """Device memory, aligned to 256 bytes or more."""

    def free(self, device: int, pointer: int) -> None: ...

    def allocate_host(self, size: int) -> int:
        """Pinned host memory that every device reaches."""

    def free_host(self, pointer: int) -> None: ...

    def fill_bytes(self, device: int, pointer: int, value: int, size: int) -> None:
        """Sets bytes of device memory, and waits."""

    def copy(
        self, device: int, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int
    ) -> None:
        """`height` rows of `width` bytes between a device's memory and the host's, and waits."""

    def copy_async(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, stream: int
    ) -> None:
        """The same between any two memories, enqueued; host memory must be pinned."""

    def virtual_memory(self) -> VirtualMemory | None:
        """Memory by handles; None where there is no such thing."""

    # Streams and events

    def create_stream(self, device: int) -> int:
        """A stream that does not wait for the default one."""

    def destroy_stream(self, stream: int) -> None: ...

    def create_event(self, device: int, *, timing: bool) -> int: ...

    def destroy_event(self, event: int) -> None: ...

    def record(self, event: int, stream: int) -> None:
        """Lets the event stand for everything that is in the stream now; both belong to one device."""

    def wait(self, stream: int, event: int) -> None:
        """Lets what follows in the stream wait for the last recording of the event, which may be on another device."""

    def wait_on_host(self, event: int) -> None: ...

    def has_happened(self, event: int) -> bool:
        """Whether everything that the event stands for has ended."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """The time between two timing events of one device that have both happened."""

    # Graphs

    def begin_capture(self, stream: int) -> None:
        """Begins a graph of what is enqueued from here on; other streams join it by waiting for its events."""

    def end_capture(self, stream: int) -> int:
        """The graph. The stream must have waited for all streams that joined."""

    def instantiate(self, graph: int) -> int: ...

    def destroy_graph(self, graph: int) -> None: ...

    def destroy_instance(self, instance: int) -> None: ...

    def upload(self, instance: int, stream: int) -> None:
        """Copies what an instance needs to the devices, so that the first launch is as fast as the others."""

    def launch(self, instance: int, stream: int) -> None:
        """Enqueues a whole graph."""
