"""Machines as their makers describe them, for tests of what does not depend on what was measured of them."""

from __future__ import annotations

from dataclasses import replace

from einc.machines.load import load_machine
from einc.machines.model import Machine


def load_at_peak(name: str, sites: int | None = None) -> Machine:
    """A machine whose kernels, memory and links reach their peaks, with its latencies."""
    machine = load_machine(name, sites)
    return replace(
        machine,
        sites=tuple(replace(site, gpu=None, gpu_name="") for site in machine.sites),
        resources=machine.ideal().resources,
    )
