"""What a topology file says, and the machine that follows from it.

That is: which links belong to a switch, what rate each has, and what had to be assumed.

- A pair with n direct NVLinks gets a resource per direction (`nvN a>b`) of n times the rate of a link.
- GPUs on switches get an egress and an ingress resource each, of as many links as they have there.
- All pairs of one host that have neither share its PCIe (`pcie`), both directions together.
- Pairs of two hosts that have none of these go over network cards (`network.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from einc.errors import MachineError, UsageError
from einc.machines.importers.gpus import GPUS, MAX_LINKS, Gpu, find_by_links
from einc.machines.importers.network import add_network
from einc.machines.load import require_connected
from einc.machines.model import Machine, Pair, Resource, Site
from einc.machines.picture import format_ranges
from einc.machines.rules import add_peak, build_switch

_TRANSFER_US, _KERNEL_US = 4.0, 2.0
PCIE_GBS = 15.75
"""The rate of a path between GPUs if nothing else is known: that of PCIe 3.0 with 16 lanes."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs of a file, in the order in which they become sites.

    `labels` is what the file calls them. `gpus` has the model of each where the file tells it. `direct` counts the
    NVLinks of a pair, both directions listed; `switched` those from each GPU to switches. `counts_switches` says that
    the file does not tell switches from direct links: it shows switched pairs in `direct` too. `host` numbers the
    computer that each stands in: the GPUs of one host share its PCIe. `unreachable` pairs cannot use it.
    `pcie_gbs` is its rate where the file tells it. `cards` has the rates of the network cards of each host in GB/s per
    direction, where the file tells them. `notes` say what looks wrong. Switches join all sites that have links to
    them, or with `apart` those of one host only.
    """

    labels: tuple[str, ...]
    gpus: tuple[Gpu | None, ...]
    direct: Mapping[Pair, int]
    switched: tuple[int, ...]
    host: tuple[int, ...]
    counts_switches: bool = False
    unreachable: frozenset[Pair] = frozenset()
    pcie_gbs: float | None = None
    notes: tuple[str, ...] = ()
    cards: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    apart: bool = False

    def degree(self, site: int) -> int:
        """NVLinks that the file shows for a site, towards other GPUs."""
        return sum(self.direct.get((site, peer), 0) for peer in range(len(self.labels)))


@dataclass(frozen=True, slots=True)
class MachineOverrides:
    """What the user says about the machine; None leaves it to the file, then to the table of GPUs."""

    gpu: str | None = None
    name: str | None = None
    nvlink_gbs: float | None = None
    pcie_gbs: float | None = None
    hbm_gbs: float | None = None
    memory_gib: float | None = None
    network_gbs: float | None = None
    network_cards: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedMachine:
    """A machine, a line for everything in it that its file does not say, and what in the file looks wrong."""

    machine: Machine
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def build_machine(topology: Topology, overrides: MachineOverrides, where: str) -> ImportedMachine:
    """The machine of a topology. Raises MachineError where links contradict each other or sites are cut off,
    UsageError where neither the file nor the overrides tell enough."""
    assumptions: list[str] = []
    models = _choose_models(topology, overrides, assumptions)
    sites = _build_sites(models, overrides, assumptions)
    direct, fabrics = _split_switches(topology, models, where)
    rates = [overrides.nvlink_gbs or (float(model.link_gbs) if model else 0.0) for model in models]
    if direct or fabrics:
        _require(all(rates), "the rate of its NVLinks", "--nvlink-gbs")
        if overrides.nvlink_gbs is None:
            assumptions.append(f"NVLink: {_format_numbers(rates)} GB/s per link and direction (--nvlink-gbs)")
    peaks = [overrides.nvlink_gbs or (float(model.peak_link_gbs) if model else 0.0) for model in models]
    resources = [
        add_peak(resource, at_peak.gbs, resource.name)
        for resource, at_peak in zip(
            _build_nvlinks(direct, fabrics, rates), _build_nvlinks(direct, fabrics, peaks), strict=True
        )
    ]
    resources += _build_bridges(topology, resources, models, overrides, assumptions)
    resources += add_network(
        topology.host,
        topology.cards,
        resources,
        assumptions,
        gbs=overrides.network_gbs,
        count=overrides.network_cards,
    )
    if len(sites) > 1:
        assumptions.append(f"latencies: {_TRANSFER_US:g} us per transfer, {_KERNEL_US:g} us per kernel (edit the file)")
    name = overrides.name or f"{models[0].key if models[0] else 'gpus'}-x{len(sites)}"
    machine = Machine(name, sites, tuple(resources), _TRANSFER_US, _KERNEL_US)
    require_connected(
        machine, where, "the file shows no way between them: --network-gbs says how fast the network of the hosts is"
    )
    return ImportedMachine(machine, tuple(assumptions), (*topology.notes, *_warn_of_unlinked(topology, resources)))


def _choose_models(topology: Topology, overrides: MachineOverrides, assumptions: list[str]) -> tuple[Gpu | None, ...]:
    if overrides.gpu is not None:
        return (GPUS[overrides.gpu],) * len(topology.labels)
    if all(topology.gpus):
        keys = sorted({gpu.key for gpu in topology.gpus if gpu is not None})
        assumptions.append(f"GPU: {', '.join(keys)}, as the file names it (--gpu)")
        return topology.gpus
    guess = _guess_model(topology)
    if guess is not None:
        assumptions.append(f"GPU: {guess.key}, a guess from its {guess.links} NVLinks (--gpu)")
        return (guess,) * len(topology.labels)
    return topology.gpus


def _guess_model(topology: Topology) -> Gpu | None:
    """The model with as many NVLinks as the file shows, for one GPU in all or, through a switch, for each pair."""
    everything = range(len(topology.labels))
    in_all = max(max(topology.degree(site), topology.switched[site]) for site in everything)
    return find_by_links(in_all) or find_by_links(max(topology.direct.values(), default=0))


def _build_sites(models: Sequence[Gpu | None], overrides: MachineOverrides, assumptions: list[str]) -> tuple[Site, ...]:
    if None in models:
        _require(overrides.hbm_gbs is not None, "its memory bandwidth", "--hbm-gbs")
        _require(overrides.memory_gib is not None, "its memory", "--memory-gib")
    sites = []
    for model in models:
        site = model.site if model is not None else Site(1.0, 1)
        if overrides.hbm_gbs is not None:
            site = dataclasses.replace(site, hbm_gbs=overrides.hbm_gbs)
        if overrides.memory_gib is not None:
            site = dataclasses.replace(site, memory_bytes=int(overrides.memory_gib * 2**30))
        sites.append(site)
    if overrides.memory_gib is None:
        assumptions.append(
            f"memory: {_format_numbers(site.memory_bytes / 2**30 for site in sites)} GiB per site (--memory-gib)"
        )
    if overrides.hbm_gbs is None:
        assumptions.append(f"HBM: {_format_numbers(site.hbm_gbs for site in sites)} GB/s per site (--hbm-gbs)")
    peaks = ", ".join(f"{flops / 1e12:g} {dtype}" for dtype, flops in sites[0].flops) or "unknown"
    assumptions.append(f"peak TFLOP/s: {peaks} (edit the file)")
    return tuple(sites)


def _split_switches(
    topology: Topology, models: Sequence[Gpu | None], where: str
) -> tuple[dict[Pair, int], list[dict[int, int]]]:
    """The direct links, and for every switch fabric the links of each of its sites."""
    fabrics: list[dict[int, int]] = [{} for _ in range(1 + max(topology.host) * topology.apart)]
    for site, count in enumerate(topology.switched):
        if count:
            fabrics[topology.host[site] * topology.apart][site] = count
    direct = dict(topology.direct)
    if topology.counts_switches:
        for island in _find_islands(topology):
            max_links = [model.links if (model := models[site]) else MAX_LINKS for site in island]
            overfull = next((s for s, links in zip(island, max_links, strict=True) if topology.degree(s) > links), None)
            if overfull is None:
                continue
            links = {site: max(topology.direct.get((site, peer), 0) for peer in island) for site in island}
            for a in island:
                for b in island:
                    if a != b and topology.direct.get((a, b), 0) != min(links[a], links[b]):
                        raise _make_contradiction(topology, overfull, max_links[island.index(overfull)], (a, b), where)
                    direct.pop((a, b), None)
            fabrics.append(links)
    return direct, [fabric for fabric in fabrics if len(fabric) > 1]


def _find_islands(topology: Topology) -> list[list[int]]:
    """The groups of sites that NVLinks join."""
    neighbours: dict[int, list[int]] = {}
    for a, b in topology.direct:
        neighbours.setdefault(a, []).append(b)
    seen: set[int] = set()
    islands = []
    for start in sorted(neighbours):
        if start in seen:
            continue
        island, open_sites = {start}, [start]
        while open_sites:
            for neighbour in neighbours[open_sites.pop()]:
                if neighbour not in island:
                    island.add(neighbour)
                    open_sites.append(neighbour)
        seen |= island
        islands.append(sorted(island))
    return islands


def _make_contradiction(topology: Topology, site: int, has: int, pair: Pair, where: str) -> MachineError:
    a, b = (topology.labels[end] for end in pair)
    between = f"NV{topology.direct[pair]}" if pair in topology.direct else "no NVLink"
    return MachineError(
        f"{topology.labels[site]} shows {topology.degree(site)} NVLinks, but such a GPU has {has}; "
        f"nor is it a switch, which joins all pairs alike: {a} and {b} have {between}",
        where=where,
        hint="is it another GPU? --gpu names it",
    )


def _build_nvlinks(
    direct: dict[Pair, int], fabrics: Sequence[dict[int, int]], rates: Sequence[float]
) -> list[Resource]:
    """The direct links and the switches, at a rate per link and direction of each site."""
    resources = []
    for count, a, b in sorted((count, *pair) for pair, count in direct.items() if pair[0] < pair[1]):
        gbs = round(count * min(rates[a], rates[b]), 6)
        resources += [Resource(f"nv{count} {x}>{y}", gbs, ((x, y),)) for x, y in ((a, b), (b, a))]
    for k, fabric in enumerate(fabrics):
        capacity = {site: round(links * rates[site], 6) for site, links in fabric.items()}
        resources += build_switch("nvswitch" if k == 0 else f"nvswitch{k}", capacity)
    return resources


def _build_bridges(
    topology: Topology,
    resources: Sequence[Resource],
    models: Sequence[Gpu | None],
    overrides: MachineOverrides,
    assumptions: list[str],
) -> list[Resource]:
    """One shared path per host over its pairs that have no NVLink."""
    taken = {pair for resource in resources for pair in resource.pairs} | topology.unreachable
    bridges: list[Resource] = []
    known = min((model.pcie_gbs for model in models if model is not None), default=PCIE_GBS)
    gbs = overrides.pcie_gbs or topology.pcie_gbs or known
    for host in sorted(set(topology.host)):
        members = [site for site, at in enumerate(topology.host) if at == host]
        pairs = tuple((a, b) for a in members for b in members if a != b and (a, b) not in taken)
        if pairs:
            bridges.append(Resource("pcie" if not bridges else f"pcie {host}", gbs, pairs))
    if bridges and overrides.pcie_gbs is None:
        source = "as the file says" if topology.pcie_gbs else "16 lanes"
        assumptions.append(f"PCIe: one path of {gbs:g} GB/s ({source}) that pairs without NVLink share (--pcie-gbs)")
    return bridges


def _warn_of_unlinked(topology: Topology, resources: Sequence[Resource]) -> list[str]:
    """A warning where some GPUs have NVLinks and others none."""
    linked = {site for resource in resources if resource.name[:4] != "pcie" for pair in resource.pairs for site in pair}
    alone = set(range(len(topology.labels))) - linked
    if not linked or not alone:
        return []
    return [f"no NVLink at {format_ranges(alone)}: are its links up? `nvidia-smi nvlink -s` shows the state of each"]


def _require(known: object, quantity: str, option: str) -> None:
    if not known:
        raise UsageError(
            f"the file does not tell which GPU this is, so {quantity} is unknown",
            hint=f"give --gpu ({', '.join(GPUS)}), or {option}",
        )


def _format_numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in sorted(set(values)))
