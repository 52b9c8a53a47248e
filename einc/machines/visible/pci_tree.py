"""The tree of PCIe devices that Linux shows below `/sys`, which leads to each GPU; and the processor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from einc.machines.catalogue import compute_pcie_gbs
from einc.machines.importers.pcie import Lane, Way, find_socket_rate

_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) ?GT/s.*")


def read_pci_tree(bus_ids: Sequence[str], root: Path = Path("/sys")) -> tuple[Way, ...] | None:
    """The ways to the GPUs at these places; None where one of them is not shown.

    Speeds are the highest that both ends of a link have, as links sleep while nothing is sent.
    """
    paths = []
    for bus_id in bus_ids:
        try:
            path = (root / "bus" / "pci" / "devices" / bus_id.lower()).resolve(strict=True)
        except (OSError, ValueError):
            return None
        paths.append(path)
    nodes = [_read_text(path / "numa_node") or "0" for path in paths]
    sockets = sorted(set(nodes))
    chains = [[part for part in (*reversed(path.parents), path) if _DEVICE.fullmatch(part.name)] for path in paths]
    numbers = {bridge: k for k, bridge in enumerate(dict.fromkeys(b for chain in chains for b in chain[:-1]))}
    ways = []
    for site, (node, chain) in enumerate(zip(nodes, chains, strict=True)):
        lanes = [Lane(f"socket {sockets.index(node)}", "socket")] if len(sockets) > 1 else []
        lanes += [Lane(f"switch {numbers[bridge]}", "switch", _read_rate(bridge)) for bridge in chain[:-1]]
        ways.append((*lanes, Lane(f"pcie {site}", "slot", _read_rate(chain[-1]))))
    return tuple(ways)


def read_socket_rate(path: Path = Path("/proc/cpuinfo")) -> float | None:
    """What is known of the rate between two sockets of this computer's processor, by its vendor and model."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    except OSError:
        return None
    vendor = re.search(r"^vendor_id\s*: (\w{1,40})$", text, re.MULTILINE)
    model = re.search(r"^model\s*: ([0-9]{1,6})$", text, re.MULTILINE)
    return find_socket_rate(vendor[1], int(model[1])) if vendor and model else None


def _read_rate(device: Path) -> float | None:
    """GB/s per direction of the link of a device at its highest speed, if it says it."""
    speed, width = _SPEED.fullmatch(_read_text(device / "max_link_speed")), _read_text(device / "max_link_width")
    if speed is None or not re.fullmatch(r"[0-9]{1,2}", width) or not 1 <= int(width) <= 32:
        return None
    return compute_pcie_gbs(float(speed[1]), int(width))


def _read_text(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(100).strip()
    except OSError:
        return ""
