"""Where a plan is to run, from the options of a compilation: a machine, and which of its sites."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einc.errors import MachineError, UsageError
from einc.options import CompileOptions
from einc_runtime.text import format_memory

if TYPE_CHECKING:
    from einc.machines.model import Machine

MAX_PLAN_SITES = 1024
"""More sites than this are refused: a plan has a kernel per operator and site."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a plan is to run: the machine of its sites alone, numbered from 0, and their numbers in the whole one.

    `named` is what the user calls the machine: an instance of a cloud, and a file, have names of their own. `note` says
    how the machine was chosen if the user did not name one, and `assumed` what nothing on this computer tells of it.
    """

    machine: Machine
    devices: tuple[int, ...]
    named: str
    note: str | None = None
    assumed: str | None = None


def select_target(options: CompileOptions) -> Target:
    """The machine and sites that the options ask for: a named machine, else the visible GPUs, else the host's cores."""
    from einc.machines.load import load_machine
    from einc_runtime.plan.schema import HOST

    requested = _read_devices(options)
    need = None if requested is None else max(requested) + 1
    note = assumed = None
    if options.machine is not None:
        machine = load_machine(options.machine, need if options.machine == HOST else None)
    else:
        from einc.machines.detect import detect_gpus

        detection = detect_gpus()
        machine = load_machine(HOST, need) if detection is None else detection.machine
        assumed = None if detection is None else detection.warning
        found_hardware = "the visible GPUs are" if machine.name != HOST else "no GPU is visible, so it is"
        note = f"no machine was named: {found_hardware} {machine.name}, {need or len(machine.sites)} sites"
    if need is not None and need > len(machine.sites):
        if isinstance(options.devices, int):
            request = f"{options.devices} sites were asked for"
        else:
            request = f"site {need - 1} was asked for"
        raise MachineError(
            f"{request}, and machine {machine.name} has {len(machine.sites)}, numbered from 0",
            hint=f"`einc machine list` shows the machines; `-m host` takes any number of sites up to {MAX_PLAN_SITES}",
        )
    devices = tuple(range(len(machine.sites))) if requested is None else requested
    named = machine.name if options.machine is None else os.path.basename(options.machine).removesuffix(".json")
    machine = machine if devices == tuple(range(len(machine.sites))) else machine.restrict(devices)
    if options.memory is not None:
        machine = _limit_memory(machine, options.memory)
    return Target(machine.ideal() if options.ideal else machine, devices, named, note, assumed)


def _limit_memory(machine: Machine, size: int) -> Machine:
    most = max(site.memory_bytes for site in machine.sites)
    if size < 1:
        raise UsageError(f"expected a memory limit of at least 1 byte for each site, found {size}")
    if size > most:
        raise UsageError(
            f"no site of {machine.name} has {format_memory(size)} of memory; the most is {format_memory(most)}",
            hint="--memory asks for less than the machine has; a machine file may say that it has more",
        )
    return machine.limit_memory(size)


def _read_devices(options: CompileOptions) -> tuple[int, ...] | None:
    if options.devices is None:
        return None
    number = options.devices if isinstance(options.devices, int) else max(options.devices, default=-1) + 1
    if number > MAX_PLAN_SITES:
        raise UsageError(f"a plan has at most {MAX_PLAN_SITES} sites")
    devices = tuple(range(number)) if isinstance(options.devices, int) else options.devices
    if not devices or min(devices) < 0:
        raise UsageError("a plan needs at least one site, and sites are numbered from 0")
    if len(set(devices)) < len(devices):
        raise UsageError("a site is named twice among the devices")
    return devices
