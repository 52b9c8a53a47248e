"""The memory of a plan's sites on their devices: one arena per site, every buffer at its offset, regions as views."""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.errors import MissingFault, PlanFault
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan import boxes
from einc_runtime.plan.schema import Bundle, Region
from einc_runtime.text import gibibytes


class DeviceMemory:
    """All arenas of a bundle, taken at once; `devices[site]` is the device of every site.

    Raises MissingFault where a device has too little memory, and PlanFault for a buffer outside its arena.
    """

    def __init__(self, bundle: Bundle, devices: Sequence[int], arenas: Sequence[int]) -> None:
        """`arenas` are their addresses."""
        self.bundle, self.devices = bundle, tuple(devices)
        self.buffers: list[GpuArray] = []
        for number, buffer in enumerate(bundle.buffers):
            shape = boxes.shape(buffer.block)
            dtype = bundle.tensors[buffer.tensor].dtype
            array = GpuArray(arenas[buffer.site] + buffer.offset, shape, (), dtype, self.devices[buffer.site])
            inside = 0 <= buffer.offset <= bundle.memory[buffer.site] - array.nbytes
            if min(shape, default=0) < 0 or not inside:
                raise PlanFault("the buffer is outside its arena", where=f"buffers[{number}]")
            strides = strides_of(shape, array.itemsize, bundle.tensors[buffer.tensor].order)
            self.buffers.append(GpuArray(array.pointer, shape, strides, dtype, array.device))

    def view(self, region: Region) -> GpuArray:
        """A region of a buffer."""
        whole, block, inner = self.buffers[region.buffer], self.bundle.buffers[region.buffer].block, region.block
        bounds = list(zip(inner.lower, inner.upper, block.lower, block.upper, strict=True))
        if not all(first <= lo < up <= last for lo, up, first, last in bounds):
            raise PlanFault("the region is outside its buffer", where=f"buffers[{region.buffer}]")
        offset = sum((lo - first) * step for (lo, _, first, _), step in zip(bounds, whole.strides, strict=True))
        shape = tuple(up - lo for lo, up, _, _ in bounds)
        return GpuArray(whole.pointer + offset, shape, whole.strides, whole.dtype, whole.device)

    def views(self, regions: Sequence[Region]) -> list[GpuArray]:
        return [self.view(region) for region in regions]


def require_device_memory(driver: Driver, bundle: Bundle, devices: Sequence[int]) -> None:
    """Raises MissingFault for the first device that has too little memory for the arenas of its sites."""
    for device in sorted(set(devices)):
        sites = [site for site, own in enumerate(devices) if own == device]
        needed = sum(bundle.memory[site] for site in sites)
        free, total = driver.memory(device)
        if needed > free:
            few = ", ".join(map(str, sites[:8])) + (", ..." if len(sites) > 8 else "")
            name = driver.target(device).name
            raise MissingFault(
                f"GPU {device} ({name}) has {gibibytes(free)} of {gibibytes(total)} free, and running {bundle.model} "
                f"takes {gibibytes(needed)} there, for site{'s' if len(sites) > 1 else ''} {few}",
                hint="end what else uses the GPU, spread the sites over more GPUs (--devices), compile for more sites, "
                "or make the model's dimensions smaller (-D)",
            )
