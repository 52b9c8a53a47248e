"""Machines by the name of a preset or from a JSON file, and the canonical text of a machine.

`schema.py` has the form of a file, `rules.py` expands its rules.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from einc.errors import MachineError, ReadError, UsageError
from einc.machines.catalogue import (
    Gpu,
    find_by_name,
    list_names,
    load_catalogue,
    load_unit_gpu,
    scale_gpu,
    suggest_names,
)
from einc.machines.gpu import GpuRates, check_gpu
from einc.machines.model import CPU_STEP, KernelRate, Machine, Resource, Site
from einc.machines.rules import add_peak, check_pairs, expand_rules
from einc.machines.schema import (
    MAX_MACHINE_TEXT,
    MAX_SITES,
    MachineFile,
    PeakRates,
    RepeatedSite,
    SiteEntry,
    decode_machine_file,
)
from einc.machines.several_hosts import join_equal_hosts, split_hosts
from einc_runtime.plan.schema import HOST
from einc_runtime.strict_json import describe_json
from einc_runtime.text import did_you_mean


@functools.cache
def list_presets() -> tuple[str, ...]:
    """The names that `load_machine` knows, in ascending order."""
    entries = (resources.files("einc.machines") / "presets").iterdir()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")))


def split_sites(text: str) -> tuple[str, int | tuple[int, ...] | None]:
    """The machine and the sites of `dgx-h100`, `dgx-h100:4` or `mine.json:0,1`; a file may have a colon in its name."""
    name, _, sites = text.rpartition(":")
    numbers = sites.split(",")
    if not name or os.path.exists(text) or not all(re.fullmatch(" *[0-9]{1,6} *", number) for number in numbers):
        return text, None
    return name, int(sites) if len(numbers) == 1 else tuple(map(int, numbers))


@functools.cache
def load_instances() -> Mapping[str, str]:
    """The machines by the names that clouds give to instances of them, in lower case."""
    text = (resources.files("einc.machines") / "instances.json").read_bytes()
    return {entry["name"]: entry["machine"] for entry in json.loads(text)}


def load_machine(name_or_path: str, sites: int | None = None) -> Machine:
    """A preset, by its name or that of a cloud's instance, several hosts of one, or the machine of a JSON file.

    `sites` is the number of sites of `host` (default: the CPU cores that this process may use); of any other machine
    it keeps the first `sites`. Raises MachineError for an unknown name, a broken file or too many sites, UsageError
    for a file that is not there, ReadError for one that cannot be read.
    """
    name_or_path, chosen = split_sites(name_or_path)
    if chosen is not None:
        places = range(chosen) if isinstance(chosen, int) else chosen
        machine = load_machine(name_or_path, max(places) + 1 if name_or_path == HOST and places else None)
        if not places or max(places) >= len(machine.sites) or len(set(places)) < len(places):
            raise MachineError(
                f"{machine.name} has the sites 0 to {len(machine.sites) - 1}, of which at least one is taken, each once"
            )
        return machine.restrict(places)
    if name_or_path not in list_presets():
        name_or_path = load_instances().get(name_or_path.lower(), name_or_path)
    hosts = split_hosts(name_or_path)
    if name_or_path == HOST:
        return parse_machine(_read_preset(HOST), HOST, sites=count_host_cores() if sites is None else sites)
    if name_or_path in list_presets():
        machine = parse_machine(_read_preset(name_or_path), name_or_path)
    elif hosts is not None:
        preset, count = hosts
        machine = _build_machine(join_equal_hosts(decode_machine_file(_read_preset(preset)), count, name_or_path), None)
    else:
        machine = parse_machine(_read_file(name_or_path), name_or_path)
    if sites is None or sites == len(machine.sites):
        return machine
    if not 1 <= sites < len(machine.sites):
        raise MachineError(f"{machine.name} has {len(machine.sites)} sites, not {sites}")
    return machine.restrict(range(sites))


def _read_preset(name: str) -> str:
    return (resources.files("einc.machines") / "presets" / f"{name}.json").read_text("utf-8")


def count_host_cores() -> int:
    """The CPU cores that this process may use, at most as many as a machine may have sites."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(cores, MAX_SITES)


def _read_file(path: str) -> str:
    looks_like_file = path.endswith(".json") or "/" in path or os.sep in path or Path(path).exists()
    if not looks_like_file or "\0" in path:
        raise UsageError(f"there is no machine {path[:100]!r}", hint=_suggest_machines(path))
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_MACHINE_TEXT + 1)
    except FileNotFoundError:
        hint = "`einc machine list` shows machines with names; `einc machine show NAME --json` prints a file to change"
        raise UsageError("there is no such machine file", where=path, hint=hint) from None
    except OSError as error:
        raise ReadError(f"cannot read the machine file {path}: {error.strerror}") from None
    if len(data) > MAX_MACHINE_TEXT:
        raise MachineError(f"the machine file is larger than {MAX_MACHINE_TEXT} bytes", where=path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MachineError(f"the machine file is not UTF-8 text (byte {error.start})", where=path) from None


def _suggest_machines(name: str) -> str:
    """What to name in place of `h100` or `8xh100`, as people say, or of a name that is misspelled."""
    if "," in name:
        return "an option names one machine: -m dgx-a100 -m dgx-h100, or some sites of one: -m dgx-a100:0,1"
    gpu = re.sub(r"^\d+\s*x\s*", "", name.lower())
    named = [preset for preset in list_presets() if gpu in preset]
    if gpu and named:
        return f"machines with {gpu!r} in their names: {', '.join(named)}; {named[0]}:2 is two sites of the first"
    close = did_you_mean(name, (*list_presets(), *load_instances()))
    known = f"machines: {', '.join(list_presets())}, or a path to a JSON file"
    return f"{close} {known}" if close else known


def parse_machine(text: str, where: str = "machine", sites: int | None = None, *, connected: bool = True) -> Machine:
    """The machine that a JSON text describes; `where` names the text in errors.

    `sites` is the count for a text that leaves it open. With `connected=False` the text may be a part of a machine,
    whose sites need not reach each other. Raises MachineError for everything that is not a machine.
    """
    try:
        machine = _build_machine(decode_machine_file(text), sites)
    except MachineError as error:
        raise MachineError(error.message, where=where, hint=error.hint) from None
    if connected:
        require_connected(machine, where)
    return machine


def _build_machine(file: MachineFile, open_count: int | None) -> Machine:
    for name, gpu in file.gpus.items():
        check_gpu(gpu, f"gpus['{name}']")
    sites = _build_sites(file, open_count)
    listed = [
        add_peak(
            Resource(entry.name, entry.gbs, check_pairs(entry.pairs, f"resources[{k}].pairs", len(sites))),
            entry.peak_gbs,
            f"resources[{k}]",
        )
        for k, entry in enumerate(file.resources)
    ]
    for name, count in Counter(resource.name for resource in listed).most_common(1):
        if count > 1:
            raise MachineError(f"resources: two resources have the name {name!r}")
    resources = (*listed, *expand_rules(file.rules, len(sites), listed))
    is_cpu = file.name == HOST or not isinstance(file.cores, UnsetType)
    return Machine(
        file.name,
        tuple(replace(site, step=CPU_STEP) for site in sites) if is_cpu else sites,
        resources,
        file.latency_us.transfer,
        file.latency_us.kernel,
        None if isinstance(file.cores, UnsetType) else file.cores,
        file.measured,
    )


def _build_sites(file: MachineFile, open_count: int | None) -> tuple[Site, ...]:
    if not isinstance(file.sites, RepeatedSite):
        if not file.sites:
            raise MachineError("sites: a machine needs at least one site")
        return tuple(_build_site(entry, f"sites[{k}]", file.gpus) for k, entry in enumerate(file.sites))
    count = open_count if isinstance(file.sites.count, UnsetType) else file.sites.count
    if count is None:
        raise MachineError("sites.count: the number of sites is missing")
    if not 1 <= count <= MAX_SITES:
        raise MachineError(f"sites.count: expected a whole number from 1 to {MAX_SITES}, found {count}")
    return (_build_site(file.sites, "sites", file.gpus),) * count


def _build_site(entry: SiteEntry, at: str, gpus: Mapping[str, GpuRates]) -> Site:
    rates: dict[str, KernelRate] = {}
    for k, kernel in enumerate(entry.kernels):
        key = kernel.task if isinstance(kernel.dtype, UnsetType) else f"{kernel.task}.{kernel.dtype}"
        if key in rates:
            raise MachineError(f"{at}.kernels[{k}]: '{key}' is listed twice")
        flops, gbs = (math.inf if isinstance(rate, UnsetType) else rate for rate in (kernel.flops, kernel.gbs))
        rates[key] = KernelRate(kernel.us, flops, gbs)
    site = _find_site(entry, at, gpus)
    return replace(
        site,
        hbm_gbs=site.hbm_gbs if isinstance(entry.hbm_gbs, UnsetType) else entry.hbm_gbs,
        memory_bytes=site.memory_bytes if isinstance(entry.memory_bytes, UnsetType) else entry.memory_bytes,
        flops=site.flops if isinstance(entry.flops, UnsetType) else _list_peaks(entry.flops),
        kernels=tuple(sorted(rates.items())),
    )


def _list_peaks(peaks: PeakRates) -> tuple[tuple[str, float], ...]:
    return tuple((name, peak) for name, peak in sorted(msgspec.structs.asdict(peaks).items()) if peak is not UNSET)


def _find_site(entry: SiteEntry, at: str, gpus: Mapping[str, GpuRates]) -> Site:
    """A site as the row of its GPU says, or one that has only the rates of the file. Raises MachineError where the
    entry leaves out what no row says."""
    named = None if isinstance(entry.gpu, UnsetType) or entry.gpu in gpus else find_by_name(entry.gpu)
    if named is not None:
        return build_gpu_site(named)
    for field in ("hbm_gbs", "memory_bytes"):
        if isinstance(getattr(entry, field), UnsetType):
            raise MachineError(f"{at}: the field '{field}' is missing")
    if isinstance(entry.gpu, UnsetType):
        return Site(1.0, 1)
    if entry.gpu in gpus:
        return Site(1.0, 1, (), (), entry.gpu, gpus[entry.gpu])
    known = ", ".join([*gpus, list_names()])
    raise MachineError(
        f"{at}.gpu: expected a name in 'gpus', or one of {known}, found {describe_json(entry.gpu)}",
        hint=suggest_names(entry.gpu).strip() or None,
    )


def build_gpu_site(gpu: Gpu) -> Site:
    """The site that a row of the catalogue describes, with the rates that were measured of it, or scaled ones."""
    name = gpu.rates or gpu.name
    return Site(gpu.memory_gbs, gpu.memory_bytes, _list_peaks(gpu.peaks), (), name, load_gpu(name))


@functools.cache
def list_gpus() -> tuple[str, ...]:
    """The names of the GPUs whose measured rates come with einc, in ascending order."""
    entries = (resources.files("einc.machines") / "gpus").iterdir()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")))


@functools.cache
def load_gpu(name: str) -> GpuRates:
    """The rates of a GPU that comes with einc: measured ones, or else those that its data sheet lets expect."""
    if name not in list_gpus():
        return scale_gpu(load_unit_gpu(), load_catalogue()[name])
    text = (resources.files("einc.machines") / "gpus" / f"{name}.json").read_text("utf-8")
    gpu = msgspec.json.decode(text, type=GpuRates)
    check_gpu(gpu, name)
    return gpu


def require_connected(machine: Machine, where: str, hint: str | None = None) -> None:
    """Raise MachineError unless every pair that can talk does so both ways, and data gets from any site to any other.

    The rates of the two directions may differ. Relays count: a line of three sites is connected. `hint` replaces the
    advice for machine files.
    """
    pairs = {pair for resource in machine.resources for pair in resource.pairs}
    one_way = min(((a, b) for a, b in pairs if (b, a) not in pairs), default=None)
    if one_way is not None:
        a, b = one_way
        raise MachineError(
            f"resources: site {a} can send to site {b}, but {b} not to {a}",
            where=where,
            hint=f"list the pair [{b}, {a}] in a resource too; its rate may be another",
        )
    neighbours: dict[int, list[int]] = {}
    for a, b in pairs:
        neighbours.setdefault(a, []).append(b)
    reached, open_sites = {0}, [0]
    while open_sites:
        for neighbour in neighbours.get(open_sites.pop(), ()):
            if neighbour not in reached:
                reached.add(neighbour)
                open_sites.append(neighbour)
    if len(reached) < len(machine.sites):
        lost = next(site for site in range(len(machine.sites)) if site not in reached)
        raise MachineError(
            f"no data can get from site 0 to site {lost}, not even over other sites: "
            f"site 0 is joined with {len(reached) - 1} of the {len(machine.sites) - 1} others",
            where=where,
            hint=hint or "rules, or pairs of resources, must join all sites",
        )


def format_machine(machine: Machine) -> str:
    """The canonical text of a machine: without rules, one site or resource a line; `parse_machine` reads it back."""
    sites = [_describe_site(site) for site in machine.sites]
    resources = [
        {
            "name": resource.name,
            "gbs": resource.gbs,
            **({} if resource.peak_gbs is None else {"peak_gbs": resource.peak_gbs}),
            "pairs": [list(pair) for pair in resource.pairs],
        }
        for resource in machine.resources
    ]
    latency = {"transfer": machine.transfer_latency_us, "kernel": machine.kernel_latency_us}
    return "\n".join(
        (
            "{",
            f'  "name": {json.dumps(machine.name)},',
            f'  "sites": [{_format_entries(sites)}],',
            f'  "resources": [{_format_entries(resources)}],',
            ",\n".join([f'  "latency_us": {json.dumps(latency)}', *_format_measured(machine), *_format_gpus(machine)]),
            "}\n",
        )
    )


def _describe_site(site: Site) -> dict[str, Any]:
    described: dict[str, Any] = {
        "hbm_gbs": site.hbm_gbs, "memory_bytes": site.memory_bytes, "flops": dict(site.flops)
    }  # fmt: skip
    if site.kernels:
        described["kernels"] = [_describe_kernel(key, rate) for key, rate in site.kernels]
    if site.gpu is not None:
        described["gpu"] = site.gpu_name
    return described


def _format_gpus(machine: Machine) -> list[str]:
    """The measured rates of all GPUs, so that the text says the same wherever it is read."""
    gpus = {site.gpu_name: site.gpu for site in machine.sites if site.gpu is not None}
    if not gpus:
        return []
    written = (f"{json.dumps(name)}: {msgspec.json.encode(gpu).decode()}" for name, gpu in sorted(gpus.items()))
    return [f'  "gpus": {{{", ".join(written)}}}']


def _describe_kernel(key: str, rate: KernelRate) -> dict[str, Any]:
    task, _, dtype = key.partition(".")
    rates = {name: value for name, value in (("flops", rate.flops), ("gbs", rate.gbs)) if value != math.inf}
    return {"task": task, **({"dtype": dtype} if dtype else {}), "us": rate.us, **rates}


def _format_measured(machine: Machine) -> list[str]:
    cores = [] if machine.cores is None else [f'  "cores": {machine.cores}']
    return [*cores, *([f'  "measured": {json.dumps(machine.measured)}'] if machine.measured else [])]


def _format_entries(entries: list[dict[str, Any]]) -> str:
    return "".join(f"{',' if k else ''}\n    {json.dumps(entry)}" for k, entry in enumerate(entries)) + "\n  "
