"""The topology of the visible GPUs: what each source says, where each fact is from, and what nobody says.

Links come from a dump of NCCL where one is given, else from NVML, else from `nvidia-smi topo -m`. Without all of
these, CUDA's driver only says which pairs NVLink joins: then the machine of the catalogue is assumed that such GPUs are
sold in. Peers come from CUDA's driver, ways over PCIe from the dump, else from `/sys`, else from the sources of links.

Linux shows the tree of PCIe devices that leads to each GPU below `/sys`, and the processor in `/proc`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from einc.errors import EincError, MachineError, UsageError
from einc.machines.catalogue import Gpu, compute_pcie_gbs, find_by_name, suggest_names
from einc.machines.importers.pcie import Lane, Way, build_slots, find_socket_rate, group_by_distance
from einc.machines.importers.smi import read_smi
from einc.machines.importers.topology_facts import Topology, normalize_bus_id
from einc.machines.load import load_machine
from einc.machines.model import Machine, Pair
from einc.machines.visible.cuda_driver import DriverFacts, VisibleGpu
from einc.machines.visible.nvml import LinkFacts, ask_nvml
from einc_runtime.text import escape_text

_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) ?GT/s.*")


def read_pci_tree(bus_ids: Sequence[str], root: Path = Path("/sys")) -> tuple[Way, ...] | None:
    """The ways to the GPUs at these places; None where one of them is not shown.

    Speeds are the highest that both ends of a link have, as links sleep while nothing is sent.
    """
    paths = []
    for bus_id in bus_ids:
        try:
            path = (root / "bus" / "pci" / "devices" / bus_id.lower()).resolve(strict=True)
        except (OSError, ValueError):
            return None
        paths.append(path)
    nodes = [_read_text(path / "numa_node") or "0" for path in paths]
    sockets = sorted(set(nodes))
    chains = [[part for part in (*reversed(path.parents), path) if _DEVICE.fullmatch(part.name)] for path in paths]
    numbers = {bridge: k for k, bridge in enumerate(dict.fromkeys(b for chain in chains for b in chain[:-1]))}
    ways = []
    for site, (node, chain) in enumerate(zip(nodes, chains, strict=True)):
        lanes = [Lane(f"socket {sockets.index(node)}", "socket")] if len(sockets) > 1 else []
        lanes += [Lane(f"switch {numbers[bridge]}", "switch", _read_rate(bridge)) for bridge in chain[:-1]]
        ways.append((*lanes, Lane(f"pcie {site}", "slot", _read_rate(chain[-1]))))
    return tuple(ways)


def read_socket_rate(path: Path = Path("/proc/cpuinfo")) -> float | None:
    """What is known of the rate between two sockets of this computer's processor, by its vendor and model."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    except OSError:
        return None
    vendor = re.search(r"^vendor_id\s*: (\w{1,40})$", text, re.MULTILINE)
    model = re.search(r"^model\s*: ([0-9]{1,6})$", text, re.MULTILINE)
    return find_socket_rate(vendor[1], int(model[1])) if vendor and model else None


def _read_rate(device: Path) -> float | None:
    """GB/s per direction of the link of a device at its highest speed, if it says it."""
    speed, width = _SPEED.fullmatch(_read_text(device / "max_link_speed")), _read_text(device / "max_link_width")
    if speed is None or not re.fullmatch(r"[0-9]{1,2}", width) or not 1 <= int(width) <= 32:
        return None
    return compute_pcie_gbs(float(speed[1]), int(width))


def _read_text(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(100).strip()
    except OSError:
        return ""


_MIG_PART = re.compile(r"(.*?) MIG [0-9]g\.[0-9]{1,3}gb.*")
NAME_A_MACHINE = "-m names a machine, or a file: `einc machine calibrate -o FILE.json` measures this one"


@dataclass(frozen=True, slots=True)
class VisibleSources:
    """Where facts of this computer are from; each may be missing, or a stand-in."""

    links: LinkFacts | None = None
    ways: tuple[Way, ...] | None = None
    run: Runner = field(default=lambda command: None)
    socket_gbs: float | None = None
    dump: Topology | None = None


@dataclass(frozen=True, slots=True)
class VisibleTopology:
    """A topology, a line for each kind of fact that says where it is from, and what is assumed."""

    topology: Topology
    sources: tuple[str, ...]
    assumed: tuple[str, ...]


def name_model(visible: VisibleGpu) -> str:
    """The name of the GPU that this is, or a part of (MIG)."""
    part = _MIG_PART.fullmatch(visible.name)
    return part[1] if part else visible.name


def find_models(gpus: Sequence[VisibleGpu], *, known: bool) -> tuple[Gpu | None, ...]:
    """The rows of the catalogue. Raises UsageError for a GPU that is not in it, unless none has to be `known`."""
    models = []
    for site, visible in enumerate(gpus):
        model = find_by_name(name_model(visible))
        if model is None and known:
            raise UsageError(
                f"GPU {site} is '{escape_text(visible.name, 60)}', which is not known",
                hint=f"{suggest_names(name_model(visible))}{NAME_A_MACHINE}",
            )
        models.append(model)
    return tuple(models)


def describe_visible(driver: DriverFacts, sources: VisibleSources, *, known: bool = True) -> VisibleTopology:
    """The topology of the GPUs that CUDA's driver shows. Raises UsageError where it cannot be told."""
    models = find_models(driver.gpus, known=known)
    count = len(models)
    told = [f"GPUs, memory and peers: CUDA's driver ({', '.join(dict.fromkeys(gpu.name for gpu in driver.gpus))})"]
    told += [f"rates: {text}" for text in dict.fromkeys(model.source for model in models if model is not None)]
    topology = Topology(
        tuple(f"GPU{site}" for site in range(count)), models, {}, (0,) * count, (0,) * count, staged=driver.staged,
        socket_gbs=sources.socket_gbs,
    )  # fmt: skip
    if count == 1:
        return VisibleTopology(topology, tuple(told), ())
    assumed: list[str] = []
    near: Mapping[Pair, str] | None = None
    ways = sources.ways
    if sources.dump is not None:
        told.append("NVLinks and PCIe: NCCL's dump")
        dumped = _select_dumped(sources.dump, driver)
        topology = dataclasses.replace(
            topology, direct=dumped.direct, switched=dumped.switched, pcie_gbs=dumped.pcie_gbs,
            socket_gbs=dumped.socket_gbs or topology.socket_gbs, ways=dumped.ways,
        )  # fmt: skip
        return VisibleTopology(topology, tuple(told), ())
    if sources.links is not None:
        told.append("NVLinks: NVML")
        near = sources.links.near or None
        topology = dataclasses.replace(topology, direct=sources.links.direct, switched=sources.links.switched)
    elif (shown := _read_tables(driver, sources.run)) is not None:
        told.append("NVLinks: `nvidia-smi topo -m`")
        topology = dataclasses.replace(
            topology, direct=shown.direct, counts_switches=True, unreachable=shown.unreachable
        )
        ways = ways or shown.ways
    else:
        topology = _assume_links(topology, driver.linked, models, assumed)
    if ways is not None:
        told.append("PCIe: /sys/bus/pci" if sources.ways is not None else "PCIe: `nvidia-smi topo -m`")
    elif near is not None:
        told.append("PCIe: NVML")
        ways = tuple(group_by_distance(count, near))
    else:
        assumed.append("PCIe: a slot for each GPU, and no switches")
        ways = tuple(build_slots(topology.labels, [None] * count))
    return VisibleTopology(dataclasses.replace(topology, ways=ways), tuple(told), tuple(assumed))


def _read_tables(driver: DriverFacts, run: Runner) -> Topology | None:
    """The topology of the visible GPUs in CUDA's order, by the tables of `nvidia-smi`; None where it does not help."""
    answer = ask_nvidia_smi(run)
    if answer is None:
        return None
    text, number_of = answer
    try:
        topology = read_smi(text, "nvidia-smi")
        numbers = [number_of[normalize_bus_id(gpu.bus_id)] for gpu in driver.gpus]
        return select_sites(topology, [topology.labels.index(f"GPU{number}") for number in numbers])
    except (EincError, KeyError, ValueError):  # a table that is cut, or not of these GPUs
        return None


def _select_dumped(dump: Topology, driver: DriverFacts) -> Topology:
    """The dump's part about the visible GPUs, in CUDA's order. Raises MachineError for GPUs that it does not list."""
    places = {bus_id: site for site, bus_id in enumerate(dump.bus_ids)}
    bus_ids = [normalize_bus_id(gpu.bus_id) for gpu in driver.gpus]
    absent = next((bus_id for bus_id in bus_ids if bus_id not in places), None)
    if any(dump.host):
        raise MachineError("NCCL's dump is of several computers, and one is described", hint="import it instead")
    if absent is not None:
        raise MachineError(
            f"NCCL's dump lists no GPU at {absent}, where CUDA's driver shows one",
            hint="the dump is of another computer, or not all GPUs took part in the program that wrote it",
        )
    return select_sites(dump, [places[bus_id] for bus_id in bus_ids])


def select_sites(topology: Topology, chosen: Sequence[int]) -> Topology:
    """The topology of some of its GPUs, in this order; one that is chosen twice stands for parts of it."""
    pairs = {(a, b): (chosen[a], chosen[b]) for a, b in itertools.permutations(range(len(chosen)), 2)}
    return dataclasses.replace(
        topology,
        labels=tuple(topology.labels[site] for site in chosen),
        gpus=tuple(topology.gpus[site] for site in chosen),
        direct={pair: topology.direct[of] for pair, of in pairs.items() if of in topology.direct},
        switched=tuple(topology.switched[site] for site in chosen),
        host=tuple(topology.host[site] for site in chosen),
        ways=tuple(topology.ways[site] for site in chosen) if topology.ways else (),
        unreachable=frozenset(pair for pair, of in pairs.items() if of in topology.unreachable),
        staged=None
        if topology.staged is None
        else frozenset(pair for pair, of in pairs.items() if of in topology.staged),
    )


def _assume_links(
    topology: Topology, linked: frozenset[Pair], models: Sequence[Gpu | None], assumed: list[str]
) -> Topology:
    """The topology with the NVLinks of the machine that such GPUs are sold in. Raises UsageError where none fits."""
    if not linked:
        return topology
    count, model = len(models), models[0]
    everything = set(itertools.permutations(range(count), 2))
    if model is not None and model.links is not None and len(set(models)) == 1:
        for name in model.systems:
            machine = load_machine(name)
            direct = list_direct(machine)
            if len(machine.sites) == count and set(direct) == linked:
                assumed.append(f"NVLinks: those of {name}")
                return dataclasses.replace(topology, direct=direct)
            if not direct and _has_switch(machine) and count <= len(machine.sites) and linked == everything:
                assumed.append(f"NVLinks: those of {name}, through switches")
                return dataclasses.replace(topology, switched=(model.links.count,) * count)
        if not any(_has_switch(load_machine(name)) for name in model.systems) and _is_matching(linked):
            assumed.append(f"NVLinks: a bridge with {model.links.count} links for each pair that has any")
            return dataclasses.replace(topology, direct=dict.fromkeys(linked, model.links.count))
    raise UsageError(
        "NVLinks join these GPUs, and neither NVML nor nvidia-smi is there to say how many", hint=NAME_A_MACHINE
    )


def list_direct(machine: Machine) -> dict[Pair, int]:
    """The links of each pair, as the names of a preset's resources say: `nv4 0>1`, `xgmi1 0>1`."""
    named = ((re.fullmatch(r"(?:nv|xgmi)([0-9]+) .*", resource.name), resource) for resource in machine.resources)
    return {resource.pairs[0]: int(match[1]) for match, resource in named if match is not None}


def _has_switch(machine: Machine) -> bool:
    return any(resource.name.startswith("nvswitch") for resource in machine.resources)


def _is_matching(linked: frozenset[Pair]) -> bool:
    """Whether no GPU is in two linked pairs."""
    return len({a for a, _ in linked}) == len(linked)


def ask_everything(driver: DriverFacts, dump: Topology | None = None) -> VisibleSources:
    """All that this computer says of the GPUs that its driver shows; `dump` is what NCCL wrote of them."""
    bus_ids = [normalize_bus_id(gpu.bus_id) for gpu in driver.gpus]
    distinct = len(set(bus_ids)) == len(bus_ids)  # parts of one GPU have no links
    return VisibleSources(
        ask_nvml(bus_ids) if distinct and len(bus_ids) > 1 else None,
        read_pci_tree(bus_ids),
        run_tool,
        read_socket_rate(),
        dump,
    )


TOOL_SECONDS = 20.0
"""A tool that takes longer does not answer: drivers of broken GPUs may hang."""
_MAX_OUTPUT = 4 << 20
"""Characters of a tool's answer that are read: as many as a topology file may have."""

Runner = Callable[[Sequence[str]], str | None]
"""Runs a command line, and returns what it printed, or None where that failed."""


def run_tool(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout[:_MAX_OUTPUT].decode(errors="replace") if done.returncode == 0 else None


def ask_nvidia_smi(run: Runner) -> tuple[str, dict[str, int]] | None:
    """The tables `topo -m` and `topo -p2p r` in one text, and the number that the tool gives to each GPU, by bus id."""
    listed = run(("nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"))
    matrix = run(("nvidia-smi", "topo", "-m"))
    if not listed or not matrix:
        return None
    numbers = re.findall(r"^\s*([0-9]{1,4}), *([0-9A-Fa-f:.]{7,20})\s*$", listed, re.MULTILINE)
    peers = run(("nvidia-smi", "topo", "-p2p", "r")) or ""
    return f"{matrix}\n{peers}", {normalize_bus_id(bus_id): int(number) for number, bus_id in numbers}


def ask_rocm_smi(run: Runner) -> str | None:
    """The tables of the topology and of the bandwidths of links, and the names and memory of the GPUs."""
    tables = run(("rocm-smi", "--showtopo"))
    options = (("--shownodesbw",), ("--showproductname",), ("--showmeminfo", "vram"))
    return None if not tables else "\n".join((tables, *(run(("rocm-smi", *words)) or "" for words in options)))
