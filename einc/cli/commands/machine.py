"""`einc machine`: the machines that plans can be made for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from einc.cli.files import read_text, require_page
from einc.cli.options import complete_machines
from einc.errors import MachineError, ModelError, UsageError
from einc_runtime.cli import files, output
from einc_runtime.cli.base import LazyGroup, TextType, command, examples, json_option
from einc_runtime.text import format_count

if TYPE_CHECKING:
    from einc.calibration.machine import Calibration
    from einc.machines.model import Machine, Site

group = LazyGroup(
    "machine",
    {
        "list": (f"{__name__}:list_command", "List the machines that einc knows."),
        "show": (f"{__name__}:show_command", "Show one machine."),
        "detect": (f"{__name__}:detect_command", "Describe the machine that this runs on."),
        "calibrate": (f"{__name__}:calibrate_command", "Measure this machine, and write its machine file."),
        "import": (
            f"{__name__}:import_command",
            "Make a machine file from what nvidia-smi, NCCL or a hosts file says.",
        ),
    },
    help="List, show, detect, calibrate and import machines.",
    epilog=examples(
        "einc machine list",
        "einc machine show dgx-v100 --json > mine.json",
        "nvidia-smi topo -m | einc machine import - -o mine.json",
    ),
)


@command("list", "einc machine list")
@json_option
def list_command(as_json: bool) -> None:
    """List the machines that einc knows by name.

    Several hosts of one kind have names, too: dgx-h100x4 is four of dgx-h100 on a network.
    """
    from einc.machines.load import list_presets, load_instances, load_machine
    from einc.predict.ranges import name_rates
    from einc.report.tables import NOT_MEASURED

    machines = {name: load_machine(name) for name in list_presets()}
    instances = {name: [alias for alias, of in load_instances().items() if of == name] for name in machines}
    if as_json:
        rows = [
            {"name": name, "sites": len(m.sites), "rates": name_rates(m), "instances": instances[name]}
            for name, m in machines.items()
        ]
        output.say_json({"machines": rows})
        return
    width = max(map(len, machines))
    for name, machine in machines.items():
        note = f"; {NOT_MEASURED}" if name_rates(machine) == "peak" else ""
        aliases = f"; also {', '.join(instances[name])}" if instances[name] else ""
        output.say(f"{name:<{width}}  {_summarize_sites(machine)}{note}{aliases}")


@command(
    "show",
    "einc machine show dgx-a100",
    "einc machine show mine.json --json",
    "einc machine show dgx-v100 --html v100.html",
)
@click.argument("name", metavar="NAME", shell_complete=complete_machines)
@click.option("--html", metavar="FILE", help="Write a page with a picture of it, and print nothing.")
@json_option
def show_command(name: str, html: str | None, as_json: bool) -> None:
    """Show one machine: a name from the list, or a machine file."""
    from einc.machines.load import load_machine

    if html is None:
        _show(load_machine(name), as_json)
        return
    if html == output.STDOUT and as_json:
        raise click.UsageError("--html - and --json both need standard output")
    from einc.report.html.page import write_machine_page

    output.require_outputs([html], [name])
    require_page(html)
    machine = load_machine(name)
    output.write_text(html, write_machine_page(machine))
    if as_json:
        _show(machine, as_json)


@command("detect", "einc machine detect --json > mine.json")
@click.option(
    "--nccl-dump", "dump", metavar="FILE", help="What NCCL or RCCL wrote of the links (NCCL_TOPO_DUMP_FILE=FILE)."
)
@json_option
def detect_command(dump: str | None, as_json: bool) -> None:
    """Describe the machine that this runs on: its GPUs, or else its CPU cores."""
    from einc.machines.detect import detect
    from einc.machines.importers import read_dump

    detection = detect(None if dump is None else read_dump(_read_description(dump), dump))
    for source in detection.sources:
        output.note(f"from {source}")
    if detection.warning is not None:
        output.note(f"warning: {detection.warning}")
    _show(detection.machine, as_json)


@command(
    "calibrate",
    "einc machine calibrate -o mine.json",
    "einc machine calibrate --host --sites 8 -o host.json",
    "einc machine calibrate --quick --json > mine.json",
)
@click.option("-o", "--output", "target", metavar="FILE.json", help="Write the machine file.")
@click.option(
    "--sites",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Sites that share the cores.  [default: one for each core]",
)
@click.option("--host", is_flag=True, help="Measure the CPU, also where GPUs are visible.")
@click.option("--quick", is_flag=True, help="Take a quarter of a minute instead of a minute; measure f32 alone.")
@json_option
def calibrate_command(target: str | None, sites: int | None, host: bool, quick: bool, as_json: bool) -> None:
    """Measure this machine with the kernels that run plans: its GPUs, or else its CPU cores.

    The machine file has the measured rates, and predictions for it use them. Measure while nothing else runs.
    """
    from einc.calibration.gpus import calibrate_gpus
    from einc.calibration.machine import calibrate_host
    from einc.machines.detect import describe_chip, find_visible_gpus
    from einc.machines.load import format_machine
    from einc_runtime.cli.progress import show_phases

    if target is not None:
        output.require_outputs([target], [])
    gpus = None if host else find_visible_gpus(known=False)
    if gpus is not None and sites is not None:
        raise UsageError("--sites is for the cores of a CPU, and GPUs are visible", hint="--host measures the CPU")
    with show_phases() as phase:
        if gpus is None:
            calibration = calibrate_host(sites, quick=quick, phase=phase)
        else:
            calibration = calibrate_gpus(gpus, describe_chip(), quick=quick, phase=phase)
    if calibration.left_out:
        models = f"{calibration.left_out} of {calibration.probes} models were not run"
        output.note(f"there was too little time: {models}, and tasks that only they have are timed by what is known")
    if target is not None:
        output.write_text(target, format_machine(calibration.machine))
    if target != output.STDOUT:
        _show(calibration.machine, as_json)
        if not as_json:
            _show_rates(calibration)
    if target is None and not as_json:
        output.note("nothing was written: -o FILE.json writes the machine file")


def _show_rates(calibration: Calibration) -> None:
    """The measured rates of a site, and how far the times of single tasks are from them."""
    from einc.calibration.machine import list_measured_rates, summarize_ratios
    from einc.report.tables import align_columns

    rows = [["measured", "tasks", "us each", "GFLOP/s", "GB/s", "predicted / measured (middle half)"]]
    for name, rate in list_measured_rates(calibration.machine.sites[0]):
        ratios = calibration.ratios.get(name, [])
        low, middle, high = summarize_ratios(ratios) if ratios else (math.nan,) * 3
        rows.append(
            [
                name,
                str(len(ratios)),
                f"{rate.us:g}",
                "-" if math.isinf(rate.flops) else f"{rate.flops / 1e9:.3g}",
                "-" if math.isinf(rate.gbs) else f"{rate.gbs:.3g}",
                f"{middle:.2f} ({low:.2f} to {high:.2f})" if ratios else "as a copy",
            ]
        )
    output.say("\n".join(align_columns(rows)))


def _read_gpu(text: str) -> str:
    from einc.machines.catalogue import require_by_name

    try:
        return require_by_name(text).name
    except UsageError as error:
        raise ValueError(f"{error.message} ({error.hint})") from None


def _list_gpus() -> Iterable[str]:
    from einc.machines.catalogue import load_catalogue

    return load_catalogue()


def _read_positive_number(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= 1e15:
            return float(text)
    raise ValueError(f"{text[:40]!r} is not a number above zero")


POSITIVE_NUMBER = TextType("number", _read_positive_number)


@command(
    "import",
    "nvidia-smi topo -m | einc machine import - -o mine.json",
    "einc machine import topo.txt --gpu a100-80gb -o mine.json",
    "einc machine import nccl-topology.xml --nvlink-gbs 21",
    "einc machine import hosts.txt --node nccl-topology.xml -o cluster.json",
)
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", "target", metavar="FILE.json", help="Write the machine file.")
@click.option("--name", metavar="NAME", help="What to call the machine.  [default: the GPU and how many]")
@click.option(
    "--gpu", type=TextType("GPU", _read_gpu, _list_gpus), metavar="GPU", help="The GPU, if the file does not name it."
)
@click.option("--nvlink-gbs", type=POSITIVE_NUMBER, metavar="GB/S", help="Rate of one NVLink, per direction.")
@click.option(
    "--pcie-gbs", type=POSITIVE_NUMBER, metavar="GB/S", help="Rate of a slot or switch of PCIe, per direction."
)
@click.option("--socket-gbs", type=POSITIVE_NUMBER, metavar="GB/S", help="Rate between two sockets, per direction.")
@click.option(
    "--staging-gbs", type=POSITIVE_NUMBER, metavar="GB/S", help="Rate of all transfers through the host's memory."
)
@click.option("--hbm-gbs", type=POSITIVE_NUMBER, metavar="GB/S", help="Memory bandwidth of a GPU.")
@click.option("--memory-gib", type=POSITIVE_NUMBER, metavar="GIB", help="Memory of a GPU.")
@click.option("--node", metavar="FILE", help="What the same tools say about one host of a hosts file.")
@click.option("--rates", metavar="FILE", help="What p2pBandwidthLatencyTest, nccl-tests or rccl-tests printed.")
@click.option("--network-gbs", type=POSITIVE_NUMBER, metavar="GB/S", help="Rate of a network card, per direction.")
@click.option("--network-cards", type=click.IntRange(1, 1024), metavar="N", help="Network cards of a host.")
@json_option
def import_command(
    file: str, target: str | None, node: str | None, rates: str | None, as_json: bool, **overrides: Any
) -> None:
    """Make a machine file from what a tool says of a computer.

    FILE is the output of `nvidia-smi topo -m` (with `topo -p2p r` below it), `rocm-smi --showtopo`, `lstopo --of xml`
    or p2pBandwidthLatencyTest, the topology of NCCL or RCCL (NCCL_TOPO_DUMP_FILE=FILE), or a list of hosts
    (`node1 slots=8`).

    FILE may be `-` for standard input. Whatever the file leaves out is assumed, and each assumption is printed.
    """
    from einc.machines.importers import import_machine
    from einc.machines.importers.topology import MachineOverrides
    from einc.machines.load import format_machine

    if target is not None:
        output.require_outputs([target], [file, *(name for name in (node, rates) if name is not None)])
    text = _read_description(file)
    inside, measured = (None if name is None else _read_description(name) for name in (node, rates))
    where = "standard input" if file == files.STDIN else file
    imported = import_machine(text, where, MachineOverrides(**overrides), inside, node or "", measured, rates or "")
    for assumption in imported.assumptions:
        output.note(f"assumed: {assumption}")
    for warning in imported.warnings:
        output.note(f"warning: {warning}")
    if target is not None:
        output.write_text(target, format_machine(imported.machine))
    if target != output.STDOUT:
        _show(imported.machine, as_json)
    if target is None and not as_json:
        output.note("nothing was written: -o FILE.json writes the machine file")


def _read_description(file: str) -> str:
    try:
        return read_text(file)
    except ModelError as error:  # it is not UTF-8
        raise MachineError(error.message, where=error.where, hint=error.hint) from None


def _show(machine: Machine, as_json: bool) -> None:
    from einc.machines.load import format_machine
    from einc.machines.picture import draw
    from einc.report.machine_costs import describe_rates

    if as_json:
        output.say(format_machine(machine))
        return
    output.say(f"{machine.name}: {_summarize_sites(machine)}")
    output.say(describe_rates(machine))
    if machine.cores is not None:
        output.say(f"all sites share {format_count(machine.cores, 'core')}")
    latencies = f"transfer {machine.transfer_latency_us:g} us, kernel {machine.kernel_latency_us:g} us"
    output.say(f"latencies: {latencies}")
    output.say(draw(machine, colour=output.use_colours()))


def _summarize_sites(machine: Machine) -> str:
    """The sites in one line, equal ones together."""
    counts = Counter(machine.sites)
    kinds = [f"{format_count(count, 'site')} of {_format_site(site)}" for site, count in counts.most_common(3)]
    remaining = sum(counts.values()) - sum(count for _, count in counts.most_common(3))
    return "; ".join(kinds) + (f"; {remaining} more" if remaining else "")


def _format_site(site: Site) -> str:
    speed = ", ".join(f"{flops / 1e12:g} {name}" for name, flops in site.flops)
    memory = f"{site.memory_bytes / 2**30:.4g} GiB, {site.hbm_gbs:g} GB/s"
    return memory + (f", TFLOP/s: {speed}" if speed else "")
