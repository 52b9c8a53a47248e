"""Machines as their makers describe them, for tests of what does not depend on how kernels are timed."""

from __future__ import annotations

from dataclasses import replace

from einc.machines.load import load_machine
from einc.machines.model import Machine


def load_at_peak(name: str) -> Machine:
    """A machine whose kernels reach its peaks."""
    machine = load_machine(name)
    return replace(machine, sites=tuple(replace(site, gpu=None, gpu_name="") for site in machine.sites))
