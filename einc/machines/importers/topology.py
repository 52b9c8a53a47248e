"""What a topology file says, whichever its format: GPUs, counts of NVLinks, and who may use PCIe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einc.machines.importers.gpus import Gpu
from einc.machines.model import Pair


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs of a file, in the order in which they become sites.

    `labels` is what the file calls them. `gpus` has the model of each where the file tells it. `direct` counts the
    NVLinks of a pair, both directions listed; `switched` those from each GPU to switches. `counts_switches` says that
    the file does not tell switches from direct links: it shows switched pairs in `direct` too. `host` numbers the
    computer that each stands in: the GPUs of one host share its PCIe. `unreachable` pairs cannot use it.
    `pcie_gbs` is its rate where the file tells it. `notes` say what looks wrong.
    """

    labels: tuple[str, ...]
    gpus: tuple[Gpu | None, ...]
    direct: Mapping[Pair, int]
    switched: tuple[int, ...]
    host: tuple[int, ...]
    counts_switches: bool = False
    unreachable: frozenset[Pair] = frozenset()
    pcie_gbs: float | None = None
    notes: tuple[str, ...] = ()

    def degree(self, site: int) -> int:
        """NVLinks that the file shows for a site, towards other GPUs."""
        return sum(self.direct.get((site, other), 0) for other in range(len(self.labels)))
