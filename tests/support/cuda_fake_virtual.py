"""Memory by handles and multicast objects of the fake of CUDA, with the rules that CUDA's documents state.

Sizes are multiples of a unit. A range of addresses is reserved, mapped as a whole, and accessible to a device only once
that was said. An object takes memory after all of its devices were added, once for each device. What is mapped or bound
cannot be released. All calls may be made to fail, like those of the driver.
"""

from __future__ import annotations

import numpy as np

from tests.support.cuda_fake_queue import Misuse

KINDS = ("allocation", "reservation", "mapping", "multicast", "binding")


class FakeVirtualMemory:
    """`driver` is a FakeDriver, whose `held` has what is alive, by kind and handle or address."""

    def __init__(self, driver, unit):
        self.driver, self.size_unit = driver, unit
        self.access: dict[int, set[int]] = {}

    def parts(self, pointer):
        """The addresses that a multicast address stands for."""
        for address, (array, handle) in self.driver.held["mapping"].items():
            if address <= pointer < address + array.size and handle in self.driver.held["multicast"]:
                bound = [
                    allocation
                    for (multicast, _), allocation in self.driver.held["binding"].items()
                    if multicast == handle
                ]
                homes = [at for at, (_, allocation) in self.driver.held["mapping"].items() if allocation in bound]
                return [home + pointer - address for home in homes]
        raise Misuse("no multicast object is mapped there")

    def require_access(self, device, pointer):
        """Nothing for memory of another kind."""
        for address, (array, _) in self.driver.held["mapping"].items():
            if address <= pointer < address + array.size and device not in self.access.get(address, ()):
                raise Misuse(f"device {device} has no access to what is mapped there")

    def device_of(self, first, last):
        """The device of mapped memory; None where there is none."""
        for address, (array, handle) in self.driver.held["mapping"].items():
            if address <= first and last <= address + array.size:
                return self.driver.held["allocation"].get(handle, (None, 0))[0]
        return None

    # What the executor calls

    def unit(self, devices):
        self.driver._note("unit", (tuple(devices),))
        return self.size_unit

    def create(self, device, size):
        self._enter("create", device, size)
        if self.driver.current != device:
            raise Misuse("memory is made while another device is current")
        return self.driver._handle("allocation", (device, size))

    def release(self, handle):
        held = self.driver.held
        if handle in [allocation for _, allocation in held["mapping"].values()]:
            raise Misuse("memory is released while it is mapped")
        if handle in [multicast for multicast, _ in held["binding"]] or handle in held["binding"].values():
            raise Misuse("memory is released while it is bound")
        self.driver._drop("allocation" if handle in held["allocation"] else "multicast", handle)
        self.driver._note("release", (handle,))

    def reserve(self, size, unit):
        self._enter("reserve", size, unit)
        if unit % self.size_unit:
            raise Misuse("an address that is not aligned to the unit")
        raw = np.full(size + unit, 0xAB, np.uint8)
        start = -raw.ctypes.data % unit
        array = raw[start : start + size]
        self.driver.held["reservation"][array.ctypes.data] = array
        return array.ctypes.data

    def free(self, address, size):
        if address in self.driver.held["mapping"] or self.driver.held["reservation"][address].size != size:
            raise Misuse("a range is freed that is mapped, or not as it was reserved")
        self.driver._drop("reservation", address)
        self.driver._note("free", (address, size))

    def map(self, address, size, handle):
        self._enter("map", address, size, handle)
        held = self.driver.held
        if (
            address not in held["reservation"]
            or held["reservation"][address].size != size
            or address in held["mapping"]
        ):
            raise Misuse("memory is mapped where nothing is reserved")
        known = held["allocation"].get(handle) or held["multicast"].get(handle)
        if known is None or known[1] != size:
            raise Misuse("a part of memory is mapped, or none")
        if handle in held["multicast"] and len(self._bound(handle)) < held["multicast"][handle][0]:
            raise Misuse("an object is mapped before all memory is bound")
        held["mapping"][address] = held["reservation"][address], handle

    def unmap(self, address, size):
        if self.driver.held["mapping"][address][0].size != size:
            raise Misuse("a part is unmapped")
        self.driver._drop("mapping", address)
        self.access.pop(address, None)
        self.driver._note("unmap", (address, size))

    def allow(self, address, size, devices):
        self._enter("allow", address, size, tuple(devices))
        if address not in self.driver.held["mapping"]:
            raise Misuse("access to what is not mapped")
        self.access[address] = set(devices)

    def create_multicast(self, count, size):
        self._enter("create_multicast", count, size)
        return self.driver._handle("multicast", (count, size, set()))

    def add_device(self, multicast, device):
        self._enter("add_device", multicast, device)
        count, _, devices = self.driver.held["multicast"][multicast]
        if device in devices or len(devices) == count:
            raise Misuse("a device is added twice, or one too many")
        devices.add(device)

    def bind(self, multicast, handle, size):
        self._enter("bind", multicast, handle, size)
        count, room, devices = self.driver.held["multicast"][multicast]
        device, allocated = self.driver.held["allocation"][handle]
        if len(devices) < count:
            raise Misuse("memory is bound before all devices were added")
        if device not in devices or (multicast, device) in self.driver.held["binding"] or not size == allocated == room:
            raise Misuse("memory is bound twice, of another device, or of another size")
        self.driver.held["binding"][multicast, device] = handle

    def unbind(self, multicast, device, size):
        self.driver._drop("binding", (multicast, device))
        self.driver._note("unbind", (multicast, device, size))

    def _bound(self, multicast):
        return [device for bound_multicast, device in self.driver.held["binding"] if bound_multicast == multicast]

    def _enter(self, name, *arguments):
        self.driver._note(name, arguments)
        sizes = {"create": arguments[-1], "reserve": arguments[0], "create_multicast": arguments[-1]}
        if name in sizes and (sizes[name] <= 0 or sizes[name] % self.size_unit):
            raise Misuse(f"{name} of {sizes[name]} bytes, which is no multiple of {self.size_unit}")
