"""The machine that this process runs on: its GPUs where CUDA's driver shows any, else its CPU.

A detected machine is a starting point for a machine file: measured links belong there, not in code. What each fact is
from, and what had to be assumed, is part of a detection.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from dataclasses import dataclass

import msgspec

from einc.errors import MachineError, UsageError
from einc.machines.catalogue import RESERVED, Gpu, load_catalogue, load_unit_gpu, scale_gpu
from einc.machines.importers.rocm import UNTOLD_LINKS, read_rocm
from einc.machines.importers.topology import MachineOverrides, build_machine
from einc.machines.importers.topology_facts import Topology
from einc.machines.load import load_machine
from einc.machines.model import Machine, Site
from einc.machines.visible.cuda_driver import DriverFacts, VisibleGpu, ask_driver
from einc.machines.visible.topologies import (
    NAME_A_MACHINE,
    VisibleSources,
    ask_everything,
    ask_rocm_smi,
    describe_visible,
    list_direct,
    run_tool,
)
from einc_runtime.errors import MissingFault
from einc_runtime.plan.schema import HOST

_UNDIVIDED = 0.95
"""A GPU that shows less than this part of its multiprocessors or memory is a part of one (MIG)."""


@dataclass(frozen=True, slots=True)
class Detection:
    """A machine, a line for each kind of fact that says where it is from, and what had to be assumed."""

    machine: Machine
    sources: tuple[str, ...]
    assumed: tuple[str, ...] = ()

    @property
    def warning(self) -> str | None:
        """One line about what is assumed, if anything is."""
        if not self.assumed:
            return None
        return f"assumed of {self.machine.name}: {'; '.join(self.assumed)} (a machine file says it better)"


def detect(dump: Topology | None = None) -> Detection:
    """The visible GPUs as a machine, or `host` with this machine's cores, memory and measured copy bandwidth.

    `dump` is what NCCL or RCCL wrote of the links. Raises MachineError where it is not of these GPUs.
    """
    detection = detect_gpus(dump=dump) or _detect_amd(dump)
    if detection is None and dump is not None:
        raise MachineError("the dump lists GPUs, and no driver shows any here", hint="`einc machine import` reads it")
    return detection or Detection(_describe_host(), ("cores, memory and a copy: measured here",))


def find_visible_gpus(*, known: bool = True) -> Machine | None:
    """The GPUs that CUDA's driver shows as a machine, or None where there are none; measures nothing."""
    detection = detect_gpus(known=known)
    return None if detection is None else detection.machine


def detect_gpus(*, known: bool = True, dump: Topology | None = None) -> Detection | None:
    """The GPUs that CUDA's driver shows, or None where there are none. Raises UsageError for one that the catalogue has
    not, unless none has to be `known`, and where nobody says how NVLinks join them."""
    driver = ask_driver()
    return None if driver is None else describe_machine(driver, ask_everything(driver, dump), known=known)


def describe_machine(driver: DriverFacts, sources: VisibleSources, *, known: bool = True) -> Detection:
    """The machine of what the driver and other sources say."""
    visible = describe_visible(driver, sources, known=known)
    models = visible.topology.gpus
    overrides = MachineOverrides()
    if None in models:  # for calibration, which measures it
        overrides = MachineOverrides(hbm_gbs=driver.gpus[0].memory_gbs or 1000.0, memory_gib=1.0, nvlink_gbs=20.0)
    imported = build_machine(visible.topology, overrides, "this computer")
    sites = tuple(
        _describe_site(site, model, gpu)
        for site, model, gpu in zip(imported.machine.sites, models, driver.gpus, strict=True)
    )
    assumed = [_OPTION.sub("", line) for line in imported.assumptions if line.startswith(_ASSUMED)]
    return Detection(
        dataclasses.replace(imported.machine, sites=sites),
        visible.sources,
        (*visible.assumed, *assumed, *imported.warnings),
    )


_ASSUMED = ("between sockets", "host memory", "latencies")
"""What the topology of a driver never says. (Rates of links and GPUs are from data sheets.)"""
_OPTION = re.compile(r"[,;]?\s*\(?(--[a-z-]+|edit the file)\)")


def _describe_site(site: Site, model: Gpu | None, gpu: VisibleGpu) -> Site:
    """A site with the memory that the driver says; of a part of a GPU, with its part of the rates."""
    memory = max(gpu.memory_bytes - RESERVED, gpu.memory_bytes // 2)
    if model is None:
        return dataclasses.replace(site, memory_bytes=memory)
    units, share = gpu.multiprocessors / model.multiprocessors, gpu.memory_bytes / (model.memory_mib << 20)
    if min(units, share) >= _UNDIVIDED:
        return dataclasses.replace(site, memory_bytes=memory)
    units, share = min(units, 1.0), min(share, 1.0)
    part = msgspec.structs.replace(
        model,
        multiprocessors=gpu.multiprocessors,
        tensor_tflops=model.tensor_tflops * units,
        memory_gbs=model.memory_gbs * share,
        cache_mb=model.cache_mb * share,
    )
    return Site(
        round(model.memory_gbs * share, 1),
        memory,
        tuple((name, round(peak * units)) for name, peak in site.flops),
        (),
        f"{model.name}-part",
        scale_gpu(load_unit_gpu(), part),
    )


@dataclass(frozen=True)
class Chip:
    """What a GPU says of itself: that its kernels are timed by."""

    name: str
    multiprocessors: int
    clock_ghz: float
    cache_mb: float


def describe_chip(device: int = 0) -> Chip:
    """One of the GPUs that CUDA's driver shows. Raises MissingFault where it shows none."""
    driver = ask_driver()
    if driver is None or device >= len(driver.gpus):
        raise MissingFault(f"CUDA's driver shows no GPU {device}")
    gpu = driver.gpus[device]
    return Chip(gpu.name, gpu.multiprocessors, gpu.clock_ghz or 1.5, gpu.cache_mb or 4.0)


def _detect_amd(dump: Topology | None) -> Detection | None:
    """The GPUs of AMD that `rocm-smi` shows, with the links of a dump if there is one. Plans for them are predicted,
    and not run. Raises UsageError for one that the catalogue has not, and where nobody says how many xGMI links a pair
    has."""
    tables = ask_rocm_smi(run_tool)
    return None if tables is None else describe_amd(tables, dump)


def describe_amd(tables: str, dump: Topology | None = None) -> Detection:
    """The machine of the tables of `rocm-smi`, with the links of a dump if there is one."""
    topology = read_rocm(tables, "rocm-smi")
    if dump is not None:
        if len(dump.labels) != len(topology.labels):
            raise MachineError(
                f"RCCL's dump lists {len(dump.labels)} GPUs, and rocm-smi {len(topology.labels)}",
                hint="the dump is of another computer, or not all GPUs took part in the program that wrote it",
            )
        topology = dataclasses.replace(dump, gpus=topology.gpus, unknown=topology.unknown)
    imported = build_machine(topology, MachineOverrides(), "rocm-smi")
    warnings = imported.warnings
    if UNTOLD_LINKS in warnings:
        if not _has_single_links(imported.machine):
            raise UsageError("`rocm-smi` does not say how many xGMI links each pair has", hint=NAME_A_MACHINE)
        warnings = tuple(line for line in warnings if line != UNTOLD_LINKS)
    assumed = tuple(_OPTION.sub("", line) for line in imported.assumptions if line.startswith(_ASSUMED))
    names = ", ".join(dict.fromkeys(str(site.gpu_name) for site in imported.machine.sites))
    links = "`rocm-smi`" if dump is None else "RCCL's dump"
    told = (f"GPUs: `rocm-smi` ({names})", "rates: the catalogue", f"links: {links}")
    return Detection(imported.machine, told, (*assumed, *warnings))


def _has_single_links(machine: Machine) -> bool:
    """Whether pairs can have no more than one xGMI link: all links of a GPU are seen, or no machine of it has more."""
    for site, described in enumerate(machine.sites):
        gpu = load_catalogue()[str(described.gpu_name)]
        degree = sum(resource.pairs[0][0] == site for resource in machine.resources if resource.name[:4] == "xgmi")
        systems = [list_direct(load_machine(name)) for name in gpu.systems]
        single = bool(systems) and all(count == 1 for links in systems for count in links.values())
        if not (single or (gpu.links is not None and degree == gpu.links.count)):
            return False
    return True


def _describe_host() -> Machine:
    """`host` with what can be known here: cores, memory and the bandwidth of a copy, shared by all sites."""
    machine = load_machine(HOST)
    cores, copy_gbs = len(machine.sites), round(measure_copy_bandwidth(), 2)
    memory = measure_memory() // cores
    # A copy reads and writes, so memory serves twice what it moves; the sites share it.
    hbm = round(2 * copy_gbs / cores, 2)
    sites = tuple(
        dataclasses.replace(site, hbm_gbs=hbm, memory_bytes=memory or site.memory_bytes) for site in machine.sites
    )
    resources = tuple(dataclasses.replace(resource, gbs=copy_gbs) for resource in machine.resources)
    return dataclasses.replace(machine, sites=sites, resources=resources)


def measure_copy_bandwidth(size: int = 64 * 2**20, repeats: int = 5) -> float:
    """GB/s at which one core copies `size` bytes: the best of several tries, as noise only slows them."""
    import numpy as np

    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return max(size / max(best, 1e-9) / 1e9, 0.01)


def measure_memory() -> int:
    """Bytes of this computer; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
