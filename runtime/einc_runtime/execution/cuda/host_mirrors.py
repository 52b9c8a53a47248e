"""Small inputs and outputs, which lie together: in one piece of memory on each device, and in pinned memory of the
host.

A step of a decoder has some inputs and outputs of a few hundred bytes each. A call that copies one of them takes longer
than its bytes do. So all inputs of a device are one copy before an execution, and all outputs one at its end, as a step
of the graph. Where the plan has put these buffers in an arena, nothing lies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.kernels.gpu import Launch
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.regions import buffer_bytes, find_offsets, is_loaded
from einc_runtime.plan.schema import Bundle, Region
from einc_runtime.plan.states import STATE

_LARGEST_BYTES = 1 << 16
"""The largest buffer that lies here: the bytes of it take PCIe 2 us and less, as long as one call of CUDA takes."""
_UNIT = 64
"""Buffers begin at multiples of it, as those in arenas do: kernels were compiled for such addresses."""


@dataclass(frozen=True, slots=True)
class _Copies:
    """The memory of a device and of the host: inputs first, and then outputs, of so many bytes each."""

    device: int
    pointer: int
    host: int
    input_bytes: int
    output_bytes: int


class HostMirrors:
    """`addresses` are those of the buffers on devices. Those `elsewhere` are left out. `allocate_zeros(device, size)`
    takes device memory, and `allocate_host(size)` pinned memory."""

    def __init__(
        self,
        driver: Driver,
        bundle: Bundle,
        devices: Sequence[int],
        elsewhere: Collection[int],
        allocate_zeros: Callable[[int, int], int],
        allocate_host: Callable[[int], int],
    ) -> None:
        self._driver, self._bundle = driver, bundle
        self.addresses: dict[int, int] = {}
        self._arrays: dict[int, Array] = {}
        inputs, outputs = _choose_buffers(bundle, elsewhere)
        self._inputs = frozenset(inputs)
        self._copies: list[_Copies] = []
        self._changed = True
        sites = [buffer.site for buffer in bundle.buffers]
        for device in sorted(set(devices)):
            groups = [[n for n in group if devices[sites[n]] == device] for group in (inputs, outputs)]
            input_bytes, output_bytes = (sum(self._round_size(number) for number in group) for group in groups)
            size = input_bytes + output_bytes
            if size:
                copies = _Copies(device, allocate_zeros(device, size), allocate_host(size), input_bytes, output_bytes)
                ctypes.memset(copies.host, 0, size)
                self._copies.append(copies)
                self._place([*groups[0], *groups[1]], copies)

    def _round_size(self, number: int) -> int:
        return -(-buffer_bytes(self._bundle, self._bundle.buffers[number]) // _UNIT) * _UNIT

    def _place(self, numbers: Sequence[int], copies: _Copies) -> None:
        size = copies.input_bytes + copies.output_bytes
        memory = memoryview((ctypes.c_char * size).from_address(copies.host))
        offset = 0
        for number in numbers:
            buffer = self._bundle.buffers[number]
            tensor, shape = self._bundle.tensors[buffer.tensor], buffer.block.shape
            dtype = storage_dtype(tensor.dtype)
            strides = strides_of(shape, dtype.itemsize, tensor.order)
            self._arrays[number] = np.ndarray(shape, dtype, memory, offset, strides)
            self.addresses[number] = copies.pointer + offset
            offset += self._round_size(number)

    def fill(self, number: int, values: Array) -> bool:
        """Writes an input, which goes to its device before the next execution. False where it does not lie here."""
        if number not in self._inputs:
            return False
        np.copyto(self._arrays[number], values, casting="unsafe")
        self._changed = True
        return True

    def read(self, region: Region) -> Array | None:
        """What the last execution left in a region, to be read at once; None where it does not lie here."""
        array = self._arrays.get(region.buffer)
        if array is None or region.block == self._bundle.buffers[region.buffer].block:
            return array
        return array[tuple(slice(*ends) for ends in find_offsets(self._bundle, region))]

    def send(self, device: int, stream: int) -> None:
        """Brings inputs that have changed to the devices: enqueued on the stream of one of them, at once on others."""
        if not self._changed:
            return
        for copies in self._copies:
            size, target, source = copies.input_bytes, copies.pointer, copies.host
            if size and copies.device == device:
                self._driver.copy_async(target, size, source, size, size, 1, stream)
            elif size:
                self._driver.copy(copies.device, target, size, source, size, size, 1)
        self._changed = False

    @property
    def output_devices(self) -> list[int]:
        """The devices on which outputs lie."""
        return [copies.device for copies in self._copies if copies.output_bytes]

    def make_fetch(self, device: int) -> Launch:
        """The launch that copies the outputs of a device to the host."""
        copies = next(copies for copies in self._copies if copies.device == device)
        source, target = (start + copies.input_bytes for start in (copies.pointer, copies.host))
        copy_async, size = self._driver.copy_async, copies.output_bytes
        return lambda stream: copy_async(target, size, source, size, size, 1, stream)


def _choose_buffers(bundle: Bundle, elsewhere: Collection[int]) -> tuple[list[int], list[int]]:
    """The buffers of small inputs, and those of small outputs."""

    def is_small(number: int) -> bool:
        return 0 < buffer_bytes(bundle, bundle.buffers[number]) <= _LARGEST_BYTES and number not in elsewhere

    kinds = [bundle.tensors[buffer.tensor].kind for buffer in bundle.buffers]
    saved = dict.fromkeys(region.buffer for output in bundle.outputs for region in output.regions)
    inputs = [n for n, kind in enumerate(kinds) if kind == "input" and is_loaded(bundle, n) and is_small(n)]
    outputs = [n for n in saved if kinds[n] == "value" and bundle.buffers[n].role != STATE and is_small(n)]
    return inputs, outputs
