"""What the model of a compilation would cost on other machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from einc.cli.interrupts import keeping_the_best
from einc.cli.options import Devices
from einc.errors import CapacityError, MachineError
from einc.options import CompileOptions

if TYPE_CHECKING:
    from einc.compiler import Compiled


def elsewhere(options: CompileOptions, machines: Sequence[str]) -> tuple[CompileOptions, ...]:
    """The same options for other machines: with the sites that `MACHINE:4` or `MACHINE:0,1,4` names, else with as many
    as were asked for or the machine has, else all it has.

    Raises UsageError for a machine that is not there, and MachineError for a broken file or a site too many.
    """
    from einc.compiler import select_target
    from einc.machines.load import load_machine
    from einc_runtime.plan.schema import HOST

    wanted = len(options.devices) if isinstance(options.devices, tuple) else options.devices
    found = []
    for text in machines:
        name, devices = _taken_apart(text)
        if devices is None:
            sites = len(load_machine(name).sites)
            devices = wanted if wanted is None or name == HOST else min(wanted, sites)
        found.append(replace(options, machine=name, devices=devices))
        select_target(found[-1])
    return tuple(found)


def _taken_apart(text: str) -> tuple[str, int | tuple[int, ...] | None]:
    """The machine and the sites of `dgx-h100`, `dgx-h100:4` or `mine.json:0,1`; a file may have a colon in its name."""
    name, _, places = text.rpartition(":")
    if not name or not set(places) <= set("0123456789, ") or os.path.exists(text):
        return text, None
    return name, Devices().convert(places, None, None)


def comparison(
    compiled: Compiled, others: Sequence[CompileOptions], phase: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """A row for the compilation and one for each of the others; see `einc.report.across`."""
    from einc.compiler import Compiled
    from einc.report.across import compared, costs, failed

    rows = [costs(compiled.bundle)]
    for options in others:
        name = str(options.machine)
        other = Compiled(compiled.source, options, lambda stage, name=name: phase(f"{name}: {stage}"))  # type: ignore[misc]
        target = other.target
        try:
            with keeping_the_best(other.budget):
                rows.append(costs(other.bundle))
        except (CapacityError, MachineError) as error:  # the answer for this machine is that it cannot
            rows.append(failed(target.machine.name, len(target.devices), error.message))
    return compared(rows)
