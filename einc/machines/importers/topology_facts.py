"""What a topology file says of a computer, before anything is assumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from einc.machines.catalogue import Gpu
from einc.machines.importers.pcie import Way
from einc.machines.model import Pair

MAX_REPORT_LINES = 20_000
"""Lines of what a tool prints of a computer; of a thousand GPUs it has fewer."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs of a file, in the order in which they become sites.

    `labels` is what the file calls them. `gpus` has the model of each where the file tells it, and `unknown` the name
    of one that is not in the catalogue. `direct` counts the links (NVLink, xGMI) of a pair, both directions listed;
    `switched` those from each GPU to switches. `counts_switches` says that the file does not tell switches from direct
    links: it shows switched pairs in `direct` too. `host` numbers the computer that each stands in. `ways` are the
    links of PCIe that lead to each GPU, where the file shows them. `unreachable` pairs cannot use PCIe, and `staged`
    ones only through the memory of the host. `pcie_gbs` is the rate of the slowest slot where the file tells it, and
    `socket_gbs` that between sockets. `cards` has the rates of the network cards of each host in GB/s per direction,
    where the file tells them. `notes` say what looks wrong. Switches join all sites that have links to them, or
    with `apart` those of one host only. `bus_ids` are the places of the GPUs on the PCI bus, where the file
    tells them.
    """

    labels: tuple[str, ...]
    gpus: tuple[Gpu | None, ...]
    direct: Mapping[Pair, int]
    switched: tuple[int, ...]
    host: tuple[int, ...]
    counts_switches: bool = False
    ways: tuple[Way, ...] = ()
    unreachable: frozenset[Pair] = frozenset()
    staged: frozenset[Pair] | None = None
    pcie_gbs: float | None = None
    socket_gbs: float | None = None
    notes: tuple[str, ...] = ()
    cards: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    apart: bool = False
    unknown: str | None = None
    bus_ids: tuple[str, ...] = ()

    def degree(self, site: int) -> int:
        """Links that the file shows for a site, towards other GPUs."""
        return sum(self.direct.get((site, peer), 0) for peer in range(len(self.labels)))


def normalize_bus_id(text: str) -> str:
    """`0000:1b:00.0` however it was written: the domain may have more zeros, letters may have either case."""
    domain, colon, address = text.strip().lower().partition(":")
    return f"{domain.lstrip('0'):0>4}{colon}{address}"[:40]
