"""The machine model: sites with memory and speed, and the shared resources that transfers between them cross.

Some switches copy and add (NVLS): NVSwitches of H100 and later write what one GPU sends to all of a group (multicast),
and answer one read with the sum of what all GPUs of a group hold (`multimem.ld_reduce`). Both cross the egress of every
GPU that something is read from once, and the ingress of every GPU that something is written to once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import msgspec

from einc.machines.catalogue import load_catalogue
from einc.machines.gpu import GpuRates
from einc_runtime.plan.element_types import list_peaks
from einc_runtime.plan.schema import HOST

BYTES_PER_MS = 1e6  # of one GB/s
MS_PER_US = 1e-3

Pair = tuple[int, int]
"""(source site, destination site)"""


@dataclass(frozen=True, slots=True)
class KernelRate:
    """What was measured of a kind of task: it takes `us` microseconds, and its operations and its bytes at these rates.

    The three add up. A rate of infinity means that operations, or bytes, add nothing.
    """

    us: float
    flops: float = math.inf
    gbs: float = math.inf

    def compute_ms(self, flops: float, size: float) -> float:
        """Milliseconds for so many floating point operations and bytes."""
        return self.us * MS_PER_US + flops / self.flops * 1e3 + size / (self.gbs * BYTES_PER_MS)


@dataclass(frozen=True, slots=True)
class StepLatency:
    """What a step that waits for the one before takes at least, in nanoseconds: to load what it reads, and for each
    scalar function, and each level of a tree, in its longest chain."""

    load_ns: float = 0.0
    function_ns: float = 0.0
    level_ns: float = 0.0


GPU_STEP = StepLatency(load_ns=280.0, function_ns=2.3, level_ns=15.0)
"""Of one launch that goes through all steps. A step's loads cannot begin before the stores of the step before, so each
waits for the memory: some 470 cycles on A100 and H100 (Luo et al., arXiv:2402.13499), 280 ns at 1.7 GHz. A dependent
addition or multiplication takes 4 cycles, and a level of a tree a shuffle between threads, 23 cycles, and that."""

CPU_STEP = StepLatency(load_ns=1.7, function_ns=1.3, level_ns=0.0)
"""Of one vector of lanes, whose values lie in the first cache: 5 cycles to store and load them again, and 4 for each
addition or multiplication, at 3 GHz (Agner Fog's tables of instructions, for Skylake and Zen alike). Sums are chains of
additions, which count as operations."""


@dataclass(frozen=True, slots=True)
class Site:
    """One processor: HBM bandwidth in GB/s (10^9 bytes), memory in bytes, peak FLOP/s per dtype name.

    `kernels` has measured rates by the kind of a task, in ascending order: the name of a kernel, `aggregate`, `copy`,
    `transfer`, or a name with a dtype, as in `contract.f16`. What is not listed takes what was measured of the GPU of
    this name, if anything was, and else what the peaks say. `step` is what steps that wait for each other take.
    """

    hbm_gbs: float
    memory_bytes: int
    flops: tuple[tuple[str, float], ...] = ()
    kernels: tuple[tuple[str, KernelRate], ...] = ()
    gpu_name: str = ""
    gpu: GpuRates | None = None
    step: StepLatency = GPU_STEP

    def peak(self, precision: str) -> float:
        """FLOP/s at a precision; what the file does not list runs as f32 does, and without f32 nothing limits it.

        Products of integers and floats of 8 bits run as those of f16 do where the file does not list them.
        """
        peaks = dict(self.flops)
        known = [peaks[name] for name in list_peaks(precision) if name in peaks]
        return known[0] if known else math.inf

    @property
    def sustained_gbs(self) -> float:
        """GB/s that large reads and writes of its memory keep up: as measured of the GPU, or the peak."""
        return self.hbm_gbs if self.gpu is None else min(self.hbm_gbs, self.gpu.products[0].memory_tbs * 1e3)

    def find_rate(self, kind: str, precision: str) -> KernelRate | None:
        """What was measured of a kind of task, if anything; a rate for the precision goes before one for all."""
        rate_of_kind = None
        for name, rate in self.kernels:
            if name == f"{kind}.{precision}":
                return rate
            if name == kind:
                rate_of_kind = rate
        return rate_of_kind


@dataclass(frozen=True, slots=True)
class Resource:
    """A capacity in GB/s that all transfers between the pairs share. `peak_gbs` is its maker's figure, if more."""

    name: str
    gbs: float
    pairs: tuple[Pair, ...]
    peak_gbs: float | None = None


@dataclass(frozen=True)  # no slots: it remembers its routes and its hash
class Machine:
    """Sites numbered from 0, resources, and latencies in microseconds.

    A transfer crosses exactly the resources that list its pair; a pair that no resource lists cannot talk. If `cores`
    is given, the sites are parts of one memory, whose tasks that many processor cores run (`predict.cores`). `measured`
    names the processor of a machine that was calibrated. If a plan is to take less memory of a site than there is,
    `memory_limit` says how many bytes, and no site has more.
    """

    name: str
    sites: tuple[Site, ...]
    resources: tuple[Resource, ...]
    transfer_latency_us: float = 0.0
    kernel_latency_us: float = 0.0
    cores: int | None = None
    measured: str = ""
    memory_limit: int | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Kept, as that of many pairs takes long, and much is kept by machine."""
        return hash((self.name, self.sites, self.resources, self.transfer_latency_us, self.kernel_latency_us))

    @cached_property
    def routes(self) -> Mapping[Pair, tuple[int, ...]]:
        """For every pair that can talk, the positions of the resources it crosses."""
        table: dict[Pair, list[int]] = {}
        for position, resource in enumerate(self.resources):
            for pair in resource.pairs:
                table.setdefault(pair, []).append(position)
        return {pair: tuple(crossed) for pair, crossed in table.items()}

    @cached_property
    def widths(self) -> Mapping[Pair, float]:
        """For every pair that can talk, the bandwidth in GB/s of its narrowest resource."""
        return {pair: min([self.resources[n].gbs for n in crossed]) for pair, crossed in self.routes.items()}

    @property
    def joins_launches(self) -> bool:
        """Whether its sites run some tasks of a plan by one launch, as GPUs do (`einc_runtime.plan.launches`)."""
        return self.cores is None and self.name != HOST

    def keep_rates(self, precisions: Collection[str]) -> Machine:
        """The same machine for plans that compute in these precisions: of products, its GPUs have the rates that come
        first, which stand for all that were not measured, and else only those of floats of 8 bits where these count."""
        if any(precision.startswith("f8") for precision in precisions):
            return self
        kept = {
            site.gpu: msgspec.structs.replace(site.gpu, products=site.gpu.products[:1])
            for site in self.sites
            if site.gpu
        }
        return replace(self, sites=tuple(replace(s, gpu=kept[s.gpu]) if s.gpu else s for s in self.sites))

    def ideal(self) -> Machine:
        """The same machine with all latencies zero, and GPUs and links at their peaks, for the paper's figures."""
        sites = tuple(
            replace(
                site,
                kernels=tuple((name, replace(rate, us=0.0)) for name, rate in site.kernels),
                gpu=None,
                step=StepLatency(),
            )
            for site in self.sites
        )
        resources = tuple(
            resource if resource.peak_gbs is None else replace(resource, gbs=resource.peak_gbs, peak_gbs=None)
            for resource in self.resources
        )
        return replace(self, sites=sites, resources=resources, transfer_latency_us=0.0, kernel_latency_us=0.0)

    def limit_memory(self, size: int) -> Machine:
        """The same machine with at most `size` bytes of memory at every site."""
        sites = tuple(replace(site, memory_bytes=min(size, site.memory_bytes)) for site in self.sites)
        return replace(self, sites=sites, memory_limit=size)

    def restrict(self, devices: Sequence[int]) -> Machine:
        """The machine of the named sites alone, renumbered from 0 in the order given; other sites do not relay."""
        number = {old: new for new, old in enumerate(devices)}
        resources = []
        for resource in self.resources:
            pairs = tuple((number[a], number[b]) for a, b in resource.pairs if a in number and b in number)
            if pairs:
                resources.append(replace(resource, pairs=pairs))
        return replace(self, sites=tuple(self.sites[old] for old in devices), resources=tuple(resources))


_SWITCH_PORT = re.compile(r"(nv.*) (out|in) [0-9]+")
"""How presets and importers call the ports of NVSwitches."""
_LEAST_COMPUTE_CAPABILITY = 90
"""Compute capability 9.0 has `multimem` instructions (PTX 8.1); earlier GPUs have none."""


@dataclass(frozen=True, slots=True)
class AddingSwitch:
    """The ports of one switch: by site the position of its egress and of its ingress among the resources."""

    egress: dict[int, int]
    ingress: dict[int, int]

    def joins(self, sites: Iterable[int]) -> bool:
        return all(site in self.egress and site in self.ingress for site in sites)

    def find_path(self, sources: Iterable[int], destinations: Iterable[int]) -> tuple[int, ...]:
        """The resources that one transfer crosses from all sources to all destinations."""
        return tuple(sorted({*(self.egress[site] for site in sources), *(self.ingress[site] for site in destinations)}))


@lru_cache(maxsize=16)
def find_adding_switches(machine: Machine) -> tuple[AddingSwitch, ...]:
    """The switches of a machine that copy and add, those with the most sites first."""
    able = {site for site, described in enumerate(machine.sites) if _has_multicast(described.gpu_name)}
    switches: dict[str, AddingSwitch] = {}
    for position, resource in enumerate(machine.resources):
        match = _SWITCH_PORT.fullmatch(resource.name)
        ends = {pair[0 if match and match[2] == "out" else 1] for pair in resource.pairs}
        if match is None or len(ends) != 1 or not ends <= able:
            continue
        switch = switches.setdefault(match[1], AddingSwitch({}, {}))
        (switch.egress if match[2] == "out" else switch.ingress)[ends.pop()] = position
    return tuple(sorted(switches.values(), key=lambda switch: -len(switch.egress)))


def _has_multicast(gpu: str) -> bool:
    row = load_catalogue().get(gpu)
    return (
        row is not None and row.maker == "nvidia" and any(int(arch) >= _LEAST_COMPUTE_CAPABILITY for arch in row.arch)
    )
