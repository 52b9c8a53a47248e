"""Sites on devices: the mapping, access between the memories of devices, and the memory of each site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import NO_PEER_ACCESS, Driver, DriverError
from einc_runtime.execution.cuda.shared_memory import PrivateLayout
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.regions import find_offsets
from einc_runtime.plan.schema import AnyTask, Buffer, Bundle, Region, TransferTask
from einc_runtime.text import format_gibibytes


def map_sites(sites: int, devices: Sequence[int] | None, visible: int) -> tuple[int, ...]:
    """The device of every site: as given, or device i for site i. Raises MissingFault for a device that is missing."""
    count = f"{visible} GPU{'s are' if visible != 1 else ' is'} visible"
    if devices is None:
        if sites > visible:
            together = ",".join(str(site * visible // sites) for site in range(sites)) if visible else "0"
            advice = f"--devices {together} puts several sites on one GPU; " if visible else ""
            advice += "--backend cpu needs none"
            raise MissingFault(f"the plan has {sites} sites, and {count}", hint=advice)
        return tuple(range(sites))
    missing = sorted({device for device in devices if not 0 <= device < visible})
    if missing:
        named = ", ".join(map(str, missing))
        hint = f"number the devices 0 to {visible - 1}; CUDA_VISIBLE_DEVICES says which they are" if visible else None
        raise MissingFault(f"there is no device {named}: {count}", hint=hint)
    return tuple(devices)


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """Pairs of devices that exchange data: `direct` ones reach each other's memory, `staged` ones use host memory."""

    direct: frozenset[tuple[int, int]]
    staged: frozenset[tuple[int, int]]


def find_exchanging_devices(
    tasks: Iterable[AnyTask], buffers: Sequence[Buffer], devices: Sequence[int]
) -> list[tuple[int, int]]:
    """The pairs (from, to) of different devices between which tasks transfer, ascending."""
    pairs = set()
    for task in tasks:
        if isinstance(task, TransferTask):
            pair = devices[buffers[task.read.buffer].site], devices[buffers[task.write.buffer].site]
            if pair[0] != pair[1]:
                pairs.add(pair)
    return sorted(pairs)


def connect_peers(driver: Driver, pairs: Sequence[tuple[int, int]], no_peer: str) -> PeerAccess:
    """Lets the devices of each pair access each other's memory, where they can.

    Where some cannot and `no_peer` is "refuse", raises MissingFault.
    """
    direct: set[tuple[int, int]] = set()
    staged: set[tuple[int, int]] = set()
    for source, target in pairs:
        # The copy runs on a stream of the source. A pair counts as connected if there is access in both directions.
        ways = (source, target), (target, source)
        both = all(driver.can_reach(*way) for way in ways) and all(_enable(driver, *way) for way in ways)
        (direct if both else staged).add((source, target))
    if staged and no_peer == "refuse":
        named = "; ".join(f"{source} and {target}" for source, target in sorted(staged) if source < target)
        raise MissingFault(
            f"GPUs that exchange data cannot reach each other's memory: {named or sorted(staged)}",
            hint="--no-peer stage sends it through the host's memory, which is slower",
        )
    return PeerAccess(frozenset(direct), frozenset(staged))


def _enable(driver: Driver, device: int, peer: int) -> bool:
    """Whether `device` now has access to the memory of `peer`; a system may allow fewer peers than can be reached."""
    try:
        driver.enable_peer(device, peer)
    except DriverError as error:
        if error.status not in NO_PEER_ACCESS:
            raise
        return False
    return True


class DeviceMemory:
    """One arena per site on the device `devices[site]`, every buffer at its offset, and regions as views.

    `arenas` are the addresses of the arenas, and `multicast` the one at which an offset stands for that offset in all
    of them (0: there is none). `layout` says where buffers lie if it is not as in the plan, and `shared` has the
    addresses of those that lie in no arena. Raises PlanFault for a buffer outside its arena.
    """

    def __init__(
        self,
        bundle: Bundle,
        devices: Sequence[int],
        arenas: Sequence[int],
        multicast: int = 0,
        *,
        layout: PrivateLayout | None = None,
        shared: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.bundle, self.devices = bundle, tuple(devices)
        self.arenas, self.multicast = tuple(arenas), multicast
        self.buffers: list[GpuArray] = []
        for number, buffer in enumerate(bundle.buffers):
            shape = buffer.block.shape
            dtype = bundle.tensors[buffer.tensor].dtype
            offset = buffer.offset if layout is None else layout.offsets[number]
            pointer = shared.get(number, arenas[buffer.site] + offset)
            strides = strides_of(shape, ITEMSIZE[dtype], bundle.tensors[buffer.tensor].order)
            self.buffers.append(GpuArray(pointer, shape, strides, dtype, self.devices[buffer.site]))

    def view(self, region: Region) -> GpuArray:
        """A region of a buffer."""
        return self.buffers[region.buffer].part(find_offsets(self.bundle, region))

    def views(self, regions: Sequence[Region]) -> list[GpuArray]:
        return [self.view(region) for region in regions]

    def view_of_all(self, regions: Sequence[Region]) -> GpuArray | None:
        """A view that stands for all of these regions, where they are the same bytes of the arenas of all sites."""
        sites = [self.bundle.buffers[region.buffer].site for region in regions]
        if not self.multicast or sorted(sites) != list(range(len(self.arenas))):
            return None
        views = self.views(regions)
        forms = {
            (view.pointer - self.arenas[site], view.shape, view.strides, view.dtype)
            for view, site in zip(views, sites, strict=True)
        }
        if len(forms) > 1:
            return None
        return replace(views[0], pointer=self.multicast + views[0].pointer - self.arenas[sites[0]])


def require_device_memory(
    driver: Driver, model: str, devices: Sequence[int], sizes: Sequence[int], count_more: Callable[[int], int]
) -> None:
    """Raises MissingFault for the first device that has too little memory for the arenas of its sites, of these sizes,
    and for the bytes that `count_more` says for a device."""
    for device in sorted(set(devices)):
        sites = [site for site, device_of_site in enumerate(devices) if device_of_site == device]
        needed = sum(sizes[site] for site in sites) + count_more(device)
        free, total = driver.memory(device)
        if needed > free:
            few = ", ".join(map(str, sites[:8])) + (", ..." if len(sites) > 8 else "")
            name = driver.target(device).name
            raise MissingFault(
                f"GPU {device} ({name}) has {format_gibibytes(free)} of {format_gibibytes(total)} free, and running "
                f"{model} takes {format_gibibytes(needed)} there, for site{'s' if len(sites) > 1 else ''} {few}",
                hint="end what else uses the GPU, spread the sites over more GPUs (--devices), compile for more sites, "
                "or make the model's dimensions smaller (-D)",
            )
