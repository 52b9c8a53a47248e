"""Machines as their makers describe them, for tests of what does not depend on what was measured of them."""

from __future__ import annotations

from dataclasses import replace

from einc.machines.load import load_machine
from einc.machines.model import Machine

NOMINAL_GBS = {229.2: 300.0, 356.4: 450.0, 743.4: 900.0}
"""What the links of a GPU to its switches carry by their data sheets, for what they sustain in the presets."""


def load_at_peak(name: str, sites: int | None = None) -> Machine:
    """A machine whose kernels, memory and links reach their peaks."""
    machine = load_machine(name, sites)
    return replace(
        machine,
        sites=tuple(replace(site, gpu=None, gpu_name="") for site in machine.sites),
        resources=tuple(
            replace(resource, gbs=NOMINAL_GBS.get(resource.gbs, resource.gbs)) for resource in machine.resources
        ),
    )
