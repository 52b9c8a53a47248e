"""Switches that copy and add (NVLS): which sites of a machine they join, and what their transfers cross.

NVSwitches of H100 and later write what one GPU sends to all of a group (multicast), and answer one read with the sum of
what all GPUs of a group hold (`multimem.ld_reduce`). Both cross the egress of every GPU that something is read from
once, and the ingress of every GPU that something is written to once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from einc.machines.catalogue import load_catalogue
from einc.machines.model import Machine

_SWITCH_PORT = re.compile(r"(nv.*) (out|in) [0-9]+")
"""How presets and importers call the ports of NVSwitches."""
_LEAST_COMPUTE_CAPABILITY = 90
"""Compute capability 9.0 has `multimem` instructions (PTX 8.1); earlier GPUs have none."""


@dataclass(frozen=True, slots=True)
class AddingSwitch:
    """The ports of one switch: by site the position of its egress and of its ingress among the resources."""

    egress: dict[int, int]
    ingress: dict[int, int]

    def joins(self, sites: Iterable[int]) -> bool:
        return all(site in self.egress and site in self.ingress for site in sites)

    def find_path(self, sources: Iterable[int], destinations: Iterable[int]) -> tuple[int, ...]:
        """The resources that one transfer crosses from all sources to all destinations."""
        return tuple(sorted({*(self.egress[site] for site in sources), *(self.ingress[site] for site in destinations)}))


@lru_cache(maxsize=16)
def find_adding_switches(machine: Machine) -> tuple[AddingSwitch, ...]:
    """The switches of a machine that copy and add, those with the most sites first."""
    able = {site for site, described in enumerate(machine.sites) if _has_multicast(described.gpu_name)}
    switches: dict[str, AddingSwitch] = {}
    for position, resource in enumerate(machine.resources):
        match = _SWITCH_PORT.fullmatch(resource.name)
        ends = {pair[0 if match and match[2] == "out" else 1] for pair in resource.pairs}
        if match is None or len(ends) != 1 or not ends <= able:
            continue
        switch = switches.setdefault(match[1], AddingSwitch({}, {}))
        (switch.egress if match[2] == "out" else switch.ingress)[ends.pop()] = position
    return tuple(sorted(switches.values(), key=lambda switch: -len(switch.egress)))


def _has_multicast(gpu: str) -> bool:
    row = load_catalogue().get(gpu)
    return (
        row is not None and row.maker == "nvidia" and any(int(arch) >= _LEAST_COMPUTE_CAPABILITY for arch in row.arch)
    )
