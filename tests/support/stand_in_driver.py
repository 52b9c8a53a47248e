"""Stand-ins for CUDA's driver and NVML: objects with the functions that detection calls, over a list of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from einc.machines.catalogue import Gpu, load_catalogue
from einc.machines.load import load_machine
from einc.machines.model import Machine, Pair

CUDA_NAMES = {
    "p100": "Tesla P100-SXM2-16GB",
    "v100": "Tesla V100-SXM2-32GB",
    "v100-16gb": "Tesla V100-SXM2-16GB",
    "v100-sxm3": "Tesla V100-SXM3-32GB",
    "v100-pcie": "Tesla V100-PCIE-32GB",
    "v100-pcie-16gb": "Tesla V100-PCIE-16GB",
    "t4": "Tesla T4",
    "a100-sxm-40gb": "NVIDIA A100-SXM4-40GB",
    "a100-sxm": "NVIDIA A100-SXM4-80GB",
    "a100-pcie": "NVIDIA A100 80GB PCIe",
    "a100-pcie-40gb": "NVIDIA A100-PCIE-40GB",
    "rtx-a6000": "NVIDIA RTX A6000",
    "rtx-3090": "NVIDIA GeForce RTX 3090",
    "rtx-6000-ada": "NVIDIA RTX 6000 Ada Generation",
    "rtx-4090": "NVIDIA GeForce RTX 4090",
    "rtx-5090": "NVIDIA GeForce RTX 5090",
    "rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "h100-pcie": "NVIDIA H100 PCIe",
    "h100-nvl": "NVIDIA H100 NVL",
    "h100-sxm": "NVIDIA H100 80GB HBM3",
    "h200-sxm": "NVIDIA H200",
    "h200-nvl": "NVIDIA H200 NVL",
    "gh200": "NVIDIA GH200 480GB",
    "gh200-144gb": "NVIDIA GH200 144G HBM3e",
    "b200-sxm": "NVIDIA B200",
    "gb200": "NVIDIA GB200",
    "b300-sxm": "NVIDIA B300 SXM6 AC",
    "gb300": "NVIDIA GB300",
    **{name: f"NVIDIA {name.upper()}" for name in ("a10", "a30", "a40", "l4", "l40", "l40s")},
}
"""What drivers call the GPUs of the catalogue, as users' reports show."""


@dataclass(frozen=True)
class Card:
    """A GPU as the driver shows it."""

    name: str
    memory: int
    units: int
    bus_id: str


@dataclass
class StandInCuda:
    """`libcuda`: GPUs, which pairs have peers, and which are joined by NVLink."""

    cards: Sequence[Card]
    staged: frozenset[Pair] = frozenset()
    linked: frozenset[Pair] = frozenset()
    status: int = 0

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def cuDeviceGet(self, handle: Any, position: int) -> int:
        handle._obj.value = position + 7  # no handle is a position
        return 0

    def cuDeviceGetName(self, buffer: Any, size: int, handle: int) -> int:
        buffer.value = self.cards[handle - 7].name.encode()
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, handle: int) -> int:
        memory._obj.value = self.cards[handle - 7].memory
        return 0

    def cuDeviceGetPCIBusId(self, buffer: Any, size: int, handle: int) -> int:
        buffer.value = self.cards[handle - 7].bus_id.encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: int) -> int:
        card = self.cards[handle - 7]
        known = {16: card.units, 13: 1_500_000, 38: 50_000_000, 75: 9, 76: 0, 36: 1_215_000, 37: 5120}
        value._obj.value = known[attribute]
        return 0

    def cuDeviceCanAccessPeer(self, value: Any, source: int, target: int) -> int:
        value._obj.value = (source - 7, target - 7) not in self.staged
        return 0

    def cuDeviceGetP2PAttribute(self, value: Any, attribute: int, source: int, target: int) -> int:
        assert attribute == 3
        value._obj.value = (source - 7, target - 7) in self.linked
        return 0


@dataclass
class StandInNvml:
    """`libnvidia-ml`: the NVLinks of every GPU, each to a peer (its bus id) or to a switch, and common ancestors."""

    bus_ids: Sequence[str]
    links: Sequence[Sequence[str]]
    near: Mapping[Pair, int]

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, handle: Any) -> int:
        if bus_id.decode() not in self.bus_ids:
            return 6
        handle._obj.value = 1 + self.bus_ids.index(bus_id.decode())
        return 0

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int, active: Any) -> int:
        if link >= len(self.links[handle.value - 1]):
            return 2
        active._obj.value = 1
        return 0

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, kind: Any) -> int:
        kind._obj.value = 2 if self.links[handle.value - 1][link] == "switch" else 0
        return 0

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, pci: Any) -> int:
        pci._obj.bus_id = self.links[handle.value - 1][link].upper().encode()
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, first: Any, second: Any, level: Any) -> int:
        pair = (first.value - 1, second.value - 1)
        level._obj.value = self.near.get(pair, self.near.get((pair[1], pair[0]), 50))
        return 0


def make_cards(gpu: Gpu, count: int) -> list[Card]:
    name = CUDA_NAMES[gpu.name]
    return [Card(name, gpu.memory_mib << 20, gpu.multiprocessors, f"0000:{16 + 8 * k:02x}:00.0") for k in range(count)]


def make_driver(gpu: Gpu, machine: Machine | None, count: int) -> tuple[StandInCuda, StandInNvml]:
    """The stand-ins of a machine; without one, GPUs over PCIe in one socket, each in a slot of its own."""
    cards = make_cards(gpu, count)
    pairs = {(a, b) for a in range(count) for b in range(count) if a != b}
    direct: dict[Pair, int] = {}
    switched = 0
    for resource in () if machine is None else machine.resources:
        kind = resource.name.partition(" ")[0]
        if kind == "nvswitch" and gpu.links is not None:
            switched = gpu.links.count
        elif kind.startswith("nv"):
            direct[resource.pairs[0]] = int(kind[2:])
    linked = frozenset(pairs if switched else direct)
    staged = frozenset() if gpu.pcie_peers else frozenset(pairs - linked)
    links = [
        ["switch"] * switched
        + [cards[peer].bus_id for peer in range(count) for _ in range(direct.get((site, peer), 0))]
        for site in range(count)
    ]
    near = {pair: _find_level(machine, pair) for pair in pairs}
    return StandInCuda(cards, staged, linked), StandInNvml([card.bus_id for card in cards], links, near)


def _find_level(machine: Machine | None, pair: Pair) -> int:
    """NVML's word for how near two GPUs are: behind one switch, in one socket, or neither."""
    lanes = () if machine is None else machine.resources
    if any(set(pair) <= {a for a, _ in lane.pairs} for lane in lanes if lane.name.startswith("switch ")):
        return 10
    return 50 if machine is not None and crosses_sockets(machine, pair) else 40


def crosses_sockets(machine: Machine, pair: Pair) -> bool:
    """Whether two GPUs are in different sockets; where a machine names none, each switch has one of its own."""
    for kind in ("socket", "switch"):
        groups = [{a for a, _ in lane.pairs} for lane in machine.resources if lane.name.startswith(f"{kind} ")]
        if groups:
            return not any(set(pair) <= group for group in groups)
    return False


def hide(driver: StandInCuda, visible: Sequence[int]) -> StandInCuda:
    """The driver as a process sees it with `CUDA_VISIBLE_DEVICES`."""
    number = {old: new for new, old in enumerate(visible)}
    kept = {
        name: frozenset((number[a], number[b]) for a, b in getattr(driver, name) if a in number and b in number)
        for name in ("staged", "linked")
    }
    return replace(driver, cards=[driver.cards[k] for k in visible], **kept)


def list_systems() -> list[tuple[Gpu, str]]:
    """The GPUs of NVIDIA, each with the machines of einc that are made of it."""
    gpus = [gpu for gpu in load_catalogue().values() if gpu.maker == "nvidia"]
    return [(gpu, name) for gpu in gpus for name in gpu.systems if len(load_machine(name).sites) <= 16]
