"""The topology that NCCL and RCCL write with NCCL_TOPO_DUMP_FILE: `<system>` of `<cpu>` of `<pci>` of `<gpu>`.

`<nvlink target= count= tclass=>` leads to another GPU (class 0x03....), to a switch (0x0680..) or to a CPU, `<xgmi>` to
another GPU of AMD. All switches are taken as one fabric. `<net speed=>` is a network card. All other elements are
ignored. RCCL's form is version 2: `gcn` is the architecture, and `sm` the number of compute units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from einc.errors import MachineError
from einc.machines.catalogue import Gpu, compute_pcie_gbs, find_by_device
from einc.machines.importers.pcie import Lane, Way, find_socket_rate
from einc.machines.importers.topology_facts import Topology, normalize_bus_id
from einc.machines.model import Pair
from einc.machines.schema import MAX_SITES
from einc.machines.xml_reader import Element

_DUMP = "NCCL_TOPO_DUMP_FILE=topo.xml with all GPUs taking part (`all_reduce_perf -g 8`) writes a whole one"
_LINKS = {"nvlink": "NVLink", "xgmi": "xGMI link"}
_GPU_CLASSES = ("0x03", "0x12")
"""PCI classes of GPUs: displays, and processing accelerators, which AMD's newer ones are."""
_SWITCH, _CPU = ("0x068000", "0x060400"), "0x068001"
_MAX_LINK_COUNT = 1000
_MAX_MBIT = 10_000_000
"""Of a network card, 10 Tbit/s; a driver that states more (that of Slingshot) counts in kbit/s."""
_Key = tuple[str, str]
"""(host, PCI bus id)"""


def read_nccl(elements: Sequence[Element], where: str) -> Topology:
    """The topology of a dump. Raises MachineError, pointing at the first element that is wrong."""
    _check_root(elements[0])
    gpus = _order_gpus([element for element in elements if element.name == "gpu"], where)
    keys = [_get_key(gpu) for gpu in gpus]
    number = {key: site for site, key in enumerate(keys)}
    if len(number) < len(keys):
        twice = next(gpu for site, gpu in enumerate(gpus) if number[keys[site]] != site)
        raise MachineError(f"two GPUs have the bus id {_get_key(twice)[1]}", where=twice.span)
    hosts = sorted({host for host, _ in keys}, key=[host for host, _ in keys].index)
    direct: dict[Pair, int] = {}
    switched = [0] * len(gpus)
    ends: dict[Pair, Element] = {}
    absent: set[str] = set()
    for link in elements:
        gpu = link.path[-1] if link.path else None
        if link.name not in _LINKS:
            continue
        if gpu is None or gpu.name != "gpu":
            raise MachineError(f"an {_LINKS[link.name]} that stands in no <gpu>", where=link.span, hint=_DUMP)
        site, count = number[_get_key(gpu)], _read_count(link)
        target = normalize_bus_id(_get_attribute(link, "target"))
        peer = number.get((keys[site][0], target))
        kind = "" if peer is not None and "tclass" not in link.attributes else _get_attribute(link, "tclass").lower()
        if kind in _SWITCH:
            switched[site] += count
        elif peer == site:
            label = _make_label(gpus[site], site)
            raise MachineError(f"an {_LINKS[link.name]} from {label} to itself", where=link.span)
        elif peer is not None:
            direct[site, peer] = direct.get((site, peer), 0) + count
            ends[site, peer] = link
        elif kind.startswith(_GPU_CLASSES):
            absent.add(target)
        elif kind != _CPU:
            message = f"an {_LINKS[link.name]} to a device of the unknown class {kind[:20]!r}"
            raise MachineError(message, where=link.span)
    labels = tuple(_make_label(gpu, site) for site, gpu in enumerate(gpus))
    for (a, b), count in direct.items():
        if direct.get((b, a), 0) != count:
            back = direct.get((b, a), 0)
            noun = f"{_LINKS[ends[a, b].name]}s"
            raise MachineError(
                f"{labels[a]} has {count} {noun} to {labels[b]}, and {labels[b]} has {back} to {labels[a]}: "
                "a link is the same from both ends",
                where=ends[a, b].span,
                hint="the file is damaged, or a link is down: `nvidia-smi nvlink -s` shows the state of each",
            )
    rate, notes = _find_pcie_rate(gpus)
    if absent:
        notes.append(f"links to GPUs that the file does not list are left out: {', '.join(sorted(absent)[:8])}")
    degrees = list(switched)
    for (site, _), count in direct.items():
        degrees[site] += count
    models = tuple(_find_model(gpu, links) for gpu, links in zip(gpus, degrees, strict=True))
    archs = [gpu.attributes.get("gcn") for gpu in gpus]
    return Topology(
        labels,
        models,
        direct,
        tuple(switched),
        tuple(hosts.index(host) for host, _ in keys),
        ways=tuple(_read_ways(gpus)),
        pcie_gbs=rate,
        socket_gbs=_find_socket_rate(gpus),
        notes=tuple(notes),
        cards=_read_cards(elements, hosts),
        unknown=next((arch for arch, model in zip(archs, models, strict=True) if model is None and arch), None),
        bus_ids=tuple(bus_id for _, bus_id in keys),
    )


def _find_model(gpu: Element, links: int) -> Gpu | None:
    """The model of a GPU: by its PCI device id, else by its architecture and, of AMD's, its compute units. It has at
    least so many links."""
    pci, units = gpu.inside("pci"), _read_whole_number(gpu, "sm")
    device = None if pci is None else pci.attributes.get("device")
    arch = gpu.attributes.get("gcn")
    if arch is not None:
        return find_by_device(device, arch, units, links)
    return find_by_device(device, None if units is None else str(units), None, links)


def _read_ways(gpus: Sequence[Element]) -> list[Way]:
    """For every GPU the links of PCIe above it: between sockets if its computer has several, bridges, its slot."""
    sockets = list(dict.fromkeys(cpu for gpu in gpus if (cpu := gpu.inside("cpu")) is not None))
    bridges = list(dict.fromkeys(pci for gpu in gpus for pci in gpu.path if pci.name == "pci"))
    ways = []
    for site, gpu in enumerate(gpus):
        cpu = gpu.inside("cpu")
        lanes = [Lane(f"socket {sockets.index(cpu)}", "socket")] if cpu is not None and len(sockets) > 1 else []
        above = [pci for pci in gpu.path if pci.name == "pci"]
        lanes += [Lane(f"switch {bridges.index(pci)}", "switch", _read_rate(pci)[0]) for pci in above[:-1]]
        ways.append((*lanes, Lane(f"pcie {site}", "slot", _read_rate(above[-1])[0])))
    return ways


def _find_socket_rate(gpus: Sequence[Element]) -> float | None:
    """The rate between the sockets of the first CPU that says what it is."""
    for gpu in gpus:
        cpu = gpu.inside("cpu")
        if cpu is not None and "vendor" in cpu.attributes:
            vendor, model = cpu.attributes["vendor"], _read_whole_number(cpu, "modelid")
            if model is None:
                return None
            return find_socket_rate(vendor, model)
    return None


def _read_cards(elements: Sequence[Element], hosts: Sequence[str]) -> dict[int, tuple[float, ...]]:
    """The rates of the network cards of every host, in GB/s; `<net speed=>` is in Mbit/s."""
    cards: dict[int, list[float]] = {}
    seen: set[tuple[str, ...]] = set()
    for net in elements:
        cpu = net.inside("cpu") if net.name == "net" else None
        host = cpu.attributes.get("host_hash", "") if cpu is not None else ""
        if cpu is None or host not in hosts:
            continue
        speed = net.attributes.get("speed", "")
        if not re.fullmatch(r"[0-9]{1,9}", speed) or not int(speed):
            raise MachineError(f"expected a speed in Mbit/s, found {speed[:40]!r}", where=net.span)
        names = host, *(net.attributes.get(name, "") for name in ("name", "dev", "port"))
        if names not in seen:
            seen.add(names)
            mbit = int(speed) / (1000 if int(speed) > _MAX_MBIT else 1)
            cards.setdefault(hosts.index(host), []).append(mbit / 8000)
    return {host: tuple(rates) for host, rates in cards.items()}


def _check_root(root: Element) -> None:
    if root.name == "graphs":
        message = "these are the rings and trees of NCCL_GRAPH_DUMP_FILE, not the topology"
        raise MachineError(message, where=root.span, hint=_DUMP)
    if root.name != "system":
        message = f"expected NCCL's <system>, or hwloc's <topology>, found <{root.name[:40]}>"
        raise MachineError(message, where=root.span, hint=_DUMP)
    version = root.attributes.get("version", "1")
    if version not in ("1", "2"):
        message = f"expected version 1 of NCCL's topology, or 2 of RCCL's, found {version[:20]!r}"
        raise MachineError(message, where=root.span, hint=_DUMP)


def _order_gpus(gpus: Sequence[Element], where: str) -> list[Element]:
    """The GPUs by device number; if several hosts repeat these, by rank; else in the order of the file."""
    if not gpus:
        raise MachineError(
            "the file lists no GPUs: it describes PCIe alone, for virtual machines", where=where, hint=_DUMP
        )
    if len(gpus) > MAX_SITES:
        raise MachineError(f"the file lists more than {MAX_SITES} GPUs", where=where)
    for name in ("dev", "rank"):
        numbers = [_read_whole_number(gpu, name) for gpu in gpus]
        if None not in numbers and len(set(numbers)) == len(gpus):
            return [
                gpu
                for _, _, gpu in sorted(
                    (number, k, gpu) for k, (number, gpu) in enumerate(zip(numbers, gpus, strict=True))
                )
            ]
    return list(gpus)


def _find_pcie_rate(gpus: Sequence[Element]) -> tuple[float | None, list[str]]:
    """The rate of the slowest PCIe slot in GB/s, or None if no slot states it; and notes on what looks wrong."""
    slots = [_read_rate(pci) for gpu in gpus if (pci := gpu.inside("pci")) is not None]
    idle = any(asleep for _, asleep in slots)
    notes = ["PCIe: links of 2.5 GT/s are asleep, so that their rate was not taken"] if idle else []
    return min((rate for rate, _ in slots if rate is not None), default=None), notes


def _read_rate(pci: Element) -> tuple[float | None, bool]:
    """The rate of a device's link in GB/s, if it states one and is awake; and whether it is asleep."""
    speed = pci.attributes.get("link_speed", "")
    if not speed or speed.lower().startswith("unknown"):
        return None, False
    gts = _read_speed(pci, speed)
    if gts <= 2.5:
        return None, True
    lanes = _read_whole_number(pci, "link_width") or 16  # NCCL takes a missing width, or 0, as 16 too
    return compute_pcie_gbs(gts, lanes), False


def _read_speed(pci: Element, text: str) -> float:
    match = re.fullmatch(r"([0-9.]{1,10}|nan|inf) ?GT/s( PCIe)?", text.strip(), re.IGNORECASE)
    try:
        gts = float(match[1]) if match else math.nan
    except ValueError:
        gts = math.nan
    if not 0 < gts <= 1000:
        raise MachineError(f"expected a link_speed such as '16.0 GT/s', found {text[:40]!r}", where=pci.span)
    return gts


def _get_key(gpu: Element) -> _Key:
    pci, cpu = gpu.inside("pci"), gpu.inside("cpu")
    if pci is None:
        raise MachineError("a <gpu> that stands in no <pci>", where=gpu.span)
    return (cpu.attributes.get("host_hash", "") if cpu is not None else ""), normalize_bus_id(
        _get_attribute(pci, "busid")
    )


def _make_label(gpu: Element, site: int) -> str:
    number = _read_whole_number(gpu, "dev")
    return f"GPU {site if number is None else number}"


def _get_attribute(element: Element, name: str) -> str:
    if name not in element.attributes:
        raise MachineError(f"<{element.name}> lacks its attribute {name}", where=element.span, hint=_DUMP)
    return element.attributes[name]


def _read_count(link: Element) -> int:
    text = _get_attribute(link, "count")
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= _MAX_LINK_COUNT:
        raise MachineError(f"expected a count of {_LINKS[link.name]}s from 1, found {text[:40]!r}", where=link.span)
    return int(text)


def _read_whole_number(element: Element, name: str) -> int | None:
    """A number from 0 to a million; None where it is not given, or -1 for unknown."""
    text = element.attributes.get(name, "").strip()
    if text in ("", "-1"):
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise MachineError(f"expected a whole number for {name}, found {text[:40]!r}", where=element.span)
    return int(text)
