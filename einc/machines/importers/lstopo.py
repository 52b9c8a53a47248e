"""The XML of hwloc (`lstopo --of xml`): packages, bridges, PCI devices, and the bandwidth of NVLinks between them.

`<object type="PCIDev">` of NVIDIA or AMD is a GPU if its class says so; its model is what a `GPUModel` below it says,
or its PCI device id. `<object type="Bridge">` above it are links of PCIe, and a `Package` is a socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from einc.errors import MachineError
from einc.machines.catalogue import Gpu, find_by_device, find_by_name
from einc.machines.importers.pcie import Lane, Way
from einc.machines.importers.topology_facts import Topology
from einc.machines.model import Pair
from einc.machines.schema import MAX_SITES
from einc.machines.xml_reader import Element

_PCI_TYPE = re.compile(r"(?:0x)?([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\].*", re.IGNORECASE)
_CLASSES_OF_GPUS = ("0300", "0302", "0380", "1200")
"""PCI classes of GPUs: displays, and processing accelerators, which AMD's newer ones are."""
_VENDORS = ("10de", "1002")
"""NVIDIA's and AMD's numbers of PCI."""
_OS_NUMBER = re.compile(r"(?:cuda|nvml|rsmi)([0-9]{1,4})")
_SLEEPING_GBS = 4.1
"""A link of 16 lanes at the lowest speed has 4 GB/s: it is asleep."""


def read_lstopo(elements: Sequence[Element], where: str) -> Topology:
    """The topology of the elements. Raises MachineError, pointing at the first one that is wrong."""
    gpus = [element for element in elements if _find_device_id(element) is not None]
    if not gpus:
        raise MachineError(
            "the file lists no GPU of NVIDIA or AMD", where=where,
            hint="lstopo shows PCI devices where it may read them: `lstopo --whole-io --of xml`",
        )  # fmt: skip
    if len(gpus) > MAX_SITES:
        raise MachineError(f"the file lists more than {MAX_SITES} GPUs", where=where)
    inside: dict[int, list[Element]] = {id(gpu): [] for gpu in gpus}
    for element in elements:
        for up in element.path:
            if id(up) in inside:
                inside[id(up)].append(element)
    numbers = {id(gpu): _find_number(inside[id(gpu)]) for gpu in gpus}
    if None not in numbers.values() and len(set(numbers.values())) == len(gpus):
        gpus.sort(key=lambda gpu: numbers[id(gpu)] or 0)
    names = [_find_name(inside[id(gpu)]) for gpu in gpus]
    models = tuple(
        find_by_name(name) or find_by_device(_find_device_id(gpu), None, None)
        for gpu, name in zip(gpus, names, strict=True)
    )
    sleeping = any(_is_sleeping(gpu) for gpu in gpus)
    return Topology(
        tuple(f"GPU {site}" for site in range(len(gpus))),
        models,
        _read_bandwidths(elements, gpus, inside, models),
        (0,) * len(gpus),
        (0,) * len(gpus),
        counts_switches=True,
        ways=_read_bridges(gpus),
        notes=("PCIe: links at 2.5 GT/s are asleep, so that their rate was not taken",) * sleeping,
        unknown=next((name for name, model in zip(names, models, strict=True) if model is None and name), None),
    )


def _find_device_id(element: Element) -> str | None:
    """`0x2330` for a PCI device that is a GPU."""
    if element.name != "object" or element.attributes.get("type") != "PCIDev":
        return None
    match = _PCI_TYPE.fullmatch(element.attributes.get("pci_type", ""))
    if match is None or match[1] not in _CLASSES_OF_GPUS or match[2].lower() not in _VENDORS:
        return None
    return f"0x{match[3].lower()}"


def _find_number(inside: Sequence[Element]) -> int | None:
    names = (element.attributes.get("name", "") for element in inside if element.attributes.get("type") == "OSDev")
    return next((int(match[1]) for name in names if (match := _OS_NUMBER.fullmatch(name))), None)


def _find_name(inside: Sequence[Element]) -> str:
    infos = (element.attributes for element in inside if element.name == "info")
    return next((info.get("value", "") for info in infos if info.get("name") == "GPUModel"), "")


def _read_bridges(gpus: Sequence[Element]) -> tuple[Way, ...]:
    def is_type(element: Element, kind: str) -> bool:
        return element.attributes.get("type") == kind

    packages = list(dict.fromkeys(up for gpu in gpus for up in gpu.path if is_type(up, "Package")))
    bridges = list(dict.fromkeys(up for gpu in gpus for up in gpu.path if is_type(up, "Bridge")))
    ways = []
    for site, gpu in enumerate(gpus):
        package = next((up for up in gpu.path if is_type(up, "Package")), None)
        lanes = [Lane(f"socket {packages.index(package)}", "socket")] if package and len(packages) > 1 else []
        lanes += [
            Lane(f"switch {bridges.index(up)}", "switch", _read_rate(up))
            for up in gpu.path
            if is_type(up, "Bridge") and "pci_busid" in up.attributes
        ]
        ways.append((*lanes, Lane(f"pcie {site}", "slot", _read_rate(gpu))))
    return tuple(ways)


def _read_rate(device: Element) -> float | None:
    """GB/s per direction of a device's link, if it states one and is awake."""
    text = device.attributes.get("pci_link_speed", "0")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,12})?", text):
        raise MachineError(f"expected a pci_link_speed in GB/s, found {text[:40]!r}", where=device.span)
    return None if float(text) <= _SLEEPING_GBS else round(float(text), 2)


def _is_sleeping(gpu: Element) -> bool:
    return _read_rate(gpu) is None and float(gpu.attributes.get("pci_link_speed", "0")) > 0


def _read_bandwidths(
    elements: Sequence[Element],
    gpus: Sequence[Element],
    inside: Mapping[int, Sequence[Element]],
    models: Sequence[Gpu | None],
) -> dict[Pair, int]:
    """NVLinks and xGMI links of each pair: its bandwidth in MB/s over that of a link."""
    matrix = next(
        (e for e in elements if e.name.startswith("distances2") and e.attributes.get("name") in _BANDWIDTHS), None
    )
    if matrix is None:
        return {}
    site_of = {
        device.attributes.get("gp_index", ""): site
        for site, gpu in enumerate(gpus)
        for device in (gpu, *inside[id(gpu)])
    }
    parts = {name: _read_words(elements, matrix, name) for name in ("indexes", "u64values")}
    places = [word.rpartition(":")[2] for word in parts["indexes"]]
    values = parts["u64values"]
    if len(values) != len(places) ** 2 or not all(word.isdigit() and len(word) <= 12 for word in values):
        raise MachineError(f"expected {len(places)} times {len(places)} bandwidths in MB/s", where=matrix.span)
    direct: dict[Pair, int] = {}
    for row, source in enumerate(places):
        for column, target in enumerate(places):
            a, b = site_of.get(source), site_of.get(target)
            if a is None or b is None or a == b:
                continue
            model = models[a]
            if model is None or model.links is None:
                continue
            links = round(int(values[row * len(places) + column]) / 1000 / (model.links.peak_gbs or model.links.gbs))
            if links:
                direct[a, b] = links
    for (a, b), links in direct.items():
        if direct.get((b, a)) != links:
            raise MachineError(f"GPU {a} and GPU {b} have another bandwidth on the way back", where=matrix.span)
    return direct


_BANDWIDTHS = ("NVLinkBandwidth", "XGMIBandwidth")


def _read_words(elements: Sequence[Element], matrix: Element, name: str) -> list[str]:
    texts = (element.text for element in elements if element.name == name and matrix in element.path)
    return [word for text in texts for word in "".join(text).split()]
