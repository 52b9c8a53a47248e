"""`einc compile --compare`: what the model of a compilation would cost on other machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from einc.cli.options import keep_best_on_interrupt
from einc.errors import CapacityError, MachineError, UsageError
from einc.options import CompileOptions

if TYPE_CHECKING:
    from einc.compiler import Compiled


def derive_options(options: CompileOptions, machines: Sequence[str]) -> tuple[CompileOptions, ...]:
    """The same options for other machines.

    A person's exchange programs are for one machine, so they are left out.

    The sites are those that `MACHINE:4` or `MACHINE:0,1,4` names; else as many as were asked for, at most all that the
    machine has; else all of them. A limit of memory counts only for machines that have more. Raises UsageError for a
    machine that is not there, MachineError for a broken file or too many sites.
    """
    from einc.machines.load import load_machine
    from einc.target import select_target
    from einc_runtime.plan.schema import HOST

    named = len(options.devices) if isinstance(options.devices, tuple) else options.devices
    machine_options = []
    for text in machines:
        of_machine = CompileOptions(machine=text)
        name, devices = str(of_machine.machine), of_machine.devices
        if devices is None:
            sites = len(load_machine(name).sites)
            devices = named if named is None or name == HOST else min(named, sites)
        most = max(site.memory_bytes for site in load_machine(name).sites)
        memory = options.memory if options.memory is not None and options.memory <= most else None
        machine_options.append(replace(options, machine=name, devices=devices, memory=memory, exchanges=()))
        select_target(machine_options[-1])
    return tuple(machine_options)


def compare_costs(
    compiled: Compiled, machine_options: Sequence[CompileOptions], phase: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """A row for the compilation and one for each of the others; see `einc.report.machine_costs`."""
    from einc.compiler import Compiled
    from einc.report.machine_costs import add_ratios, describe_costs, describe_failure

    rows = [describe_costs(compiled.folded_bundle)]
    for options in machine_options:
        name = str(options.machine)
        on_machine = Compiled(compiled.source, options, lambda stage, name=name: phase(f"{name}: {stage}"))  # type: ignore[misc]
        target = on_machine.target
        try:
            with keep_best_on_interrupt(on_machine.budget):
                rows.append(describe_costs(on_machine.folded_bundle))
        except (CapacityError, MachineError, UsageError) as error:  # it does not fit there, or a pin does not
            rows.append(describe_failure(target.machine.name, len(target.devices), error.message))
    return add_ratios(rows)
