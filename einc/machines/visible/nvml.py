"""What NVIDIA's management library says of the links between GPUs: NVLinks and where they lead, ways over PCIe."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einc.machines.importers.topology_facts import normalize_bus_id
from einc.machines.model import Pair

_MAX_NVLINKS = 36
"""Links of a GPU that are asked for: NVLink 5 has 18."""
_SWITCH = 2
"""NVML's number of the kind of device at the other end of a link."""
_ANCESTORS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's numbers of the nearest common ancestor of two GPUs, as `nvidia-smi topo -m` writes them."""


class _PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t`."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """NVLinks of pairs and of each GPU to switches, and how far the way over PCIe goes, where NVML says it."""

    direct: Mapping[Pair, int]
    switched: tuple[int, ...]
    near: Mapping[Pair, str]


def ask_nvml(bus_ids: Sequence[str], library: Any = "libnvidia-ml.so.1") -> LinkFacts | None:
    """The links of the GPUs at these places of the PCI bus; None where there is no NVML, or it does not know them."""
    try:
        nvml = ctypes.CDLL(library) if isinstance(library, str) else library
        if nvml.nvmlInit_v2() != 0:
            return None
        handles = []
        for bus_id in bus_ids:
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)) != 0:
                return None
            handles.append(handle)
        site_of = {normalize_bus_id(bus_id): site for site, bus_id in enumerate(bus_ids)}
        direct: dict[Pair, int] = {}
        switched = [0] * len(handles)
        for site, handle in enumerate(handles):
            for link in range(_MAX_NVLINKS):
                peer = _find_end(nvml, handle, link, site_of)
                if peer == "switch":
                    switched[site] += 1
                elif isinstance(peer, int) and peer != site:
                    direct[site, peer] = direct.get((site, peer), 0) + 1
        return LinkFacts(direct, tuple(switched), _ask_ancestors(nvml, handles))
    except (OSError, AttributeError):
        return None


def _find_end(nvml: Any, handle: Any, link: int, site_of: Mapping[str, int]) -> int | str | None:
    """The site at the other end of an active link, or `switch`; None for anything else."""
    active, kind, pci = ctypes.c_uint(0), ctypes.c_uint(0), _PciInfo()
    if nvml.nvmlDeviceGetNvLinkState(handle, link, ctypes.byref(active)) != 0 or not active.value:
        return None
    if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link, ctypes.byref(kind)) == 0 and kind.value == _SWITCH:
        return "switch"
    if nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, ctypes.byref(pci)) != 0:
        return None
    return site_of.get(normalize_bus_id(pci.bus_id.decode(errors="replace")))


def _ask_ancestors(nvml: Any, handles: Sequence[Any]) -> dict[Pair, str]:
    near: dict[Pair, str] = {}
    for (a, first), (b, second) in itertools.combinations(enumerate(handles), 2):
        level = ctypes.c_uint(0)
        if nvml.nvmlDeviceGetTopologyCommonAncestor(first, second, ctypes.byref(level)) == 0:
            near[a, b] = _ANCESTORS.get(level.value, "SYS")
    return near
