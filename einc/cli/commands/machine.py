"""`einc machine`: the machines that plans can be made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from einc.cli import output
from einc.cli.lazy import Command, LazyGroup, examples
from einc.cli.options import complete_machines, json_option
from einc.errors import MissingError

if TYPE_CHECKING:
    from einc.machines.model import Machine

group = LazyGroup(
    "machine",
    {
        "list": (f"{__name__}:list_command", "List the machines that einc knows."),
        "show": (f"{__name__}:show_command", "Show one machine."),
        "detect": (f"{__name__}:detect_command", "Describe the machine that this runs on."),
        "import": (f"{__name__}:import_command", "Read a topology file of another tool (comes later)."),
    },
    help="List, show and detect machines.",
    epilog=examples("einc machine list", "einc machine show dgx-v100 --json > mine.json"),
)


@click.command("list", cls=Command, epilog=examples("einc machine list"))
@json_option
def list_command(as_json: bool) -> None:
    """List the machines that einc knows by name."""
    from einc.machines.load import load_machine, preset_names

    machines = {name: load_machine(name) for name in preset_names()}
    if as_json:
        output.say_json({"machines": [{"name": name, "sites": len(m.sites)} for name, m in machines.items()]})
        return
    width = max(map(len, machines))
    for name, machine in machines.items():
        output.say(f"{name:<{width}}  {_summary(machine)}")


@click.command("show", cls=Command, epilog=examples("einc machine show dgx-a100", "einc machine show mine.json --json"))
@click.argument("name", metavar="NAME", shell_complete=complete_machines)
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show one machine: a name from the list, or a machine file."""
    from einc.machines.load import load_machine

    _show(load_machine(name), as_json)


@click.command("detect", cls=Command, epilog=examples("einc machine detect --json > mine.json"))
@json_option
def detect_command(as_json: bool) -> None:
    """Describe the machine that this runs on: its GPUs, or else its CPU cores."""
    from einc.machines.detect import detect

    _show(detect(), as_json)


@click.command("import", cls=Command, epilog=examples("einc machine import topology.xml"))
@click.argument("file", metavar="FILE")
def import_command(file: str) -> None:
    """Read a topology file of another tool (comes later)."""
    raise MissingError(
        "importing topology files comes later", hint="write a machine file: `einc machine show NAME --json`"
    )


def _show(machine: Machine, as_json: bool) -> None:
    from einc.machines.load import machine_json

    if as_json:
        output.say(machine_json(machine))
        return
    output.say(f"{machine.name}: {_summary(machine)}")
    latencies = f"transfer {machine.transfer_latency_us:g} us, kernel {machine.kernel_latency_us:g} us"
    output.say(f"latencies: {latencies}")
    output.say(_links(machine))


def _summary(machine: Machine) -> str:
    site = machine.sites[0]
    speed = ", ".join(f"{flops / 1e12:g} {name}" for name, flops in site.flops)
    memory = f"{site.memory_bytes / 2**30:.4g} GiB, {site.hbm_gbs:g} GB/s"
    return f"{len(machine.sites)} sites of {memory}" + (f", TFLOP/s: {speed}" if speed else "")


def _links(machine: Machine) -> str:
    """The GB/s between every two sites (rows send, columns receive), or one line where they all agree."""
    routes = machine.routes()
    sites = range(len(machine.sites))
    table = {
        (a, b): min((machine.resources[r].gbs for r in routes[a, b]), default=0.0) if (a, b) in routes else None
        for a in sites for b in sites if a != b
    }  # fmt: skip
    speeds = set(table.values())
    if len(speeds) == 1 and None not in speeds:
        return f"links: every two sites {speeds.pop():g} GB/s"
    if len(machine.sites) > 16:
        known = sorted(speed for speed in speeds if speed is not None)
        return f"links: {known[0]:g} to {known[-1]:g} GB/s" if known else "links: none"
    cells = {pair: "-" if speed is None else f"{speed:g}" for pair, speed in table.items()}
    width = max((len(cell) for cell in cells.values()), default=1) + 2
    rows = ["GB/s from row to column:", "    " + "".join(f"{b:>{width}}" for b in sites)]
    rows += [f"{a:>4}" + "".join(f"{cells.get((a, b), '.'):>{width}}" for b in sites) for a in sites]
    return "\n".join(rows)
