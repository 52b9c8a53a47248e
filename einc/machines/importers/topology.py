"""The machine that follows from what a topology file says: the rate of each link, and what had to be assumed.

- A pair with n direct NVLinks gets a resource per direction (`nvN a>b`) of n times the rate of a link; xGMI likewise.
- GPUs on switches get an egress and an ingress resource each, of as many links as they have there.
- All pairs of one host that have neither go over PCIe (`pcie.py`), through the host's memory where they are no peers.
- Pairs of two hosts that have none of these go over network cards (`host_lists.py`).

Some files show pairs on a switch as if they were direct: such links are told from others by their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from einc.errors import MachineError, UsageError
from einc.machines.catalogue import Gpu, compute_pcie_gbs, find_by_links, list_names, require_by_name, suggest_names
from einc.machines.importers.host_lists import add_network
from einc.machines.importers.pcie import SOCKET_GBS, build_ways
from einc.machines.importers.topology_facts import Topology
from einc.machines.load import build_gpu_site, require_connected
from einc.machines.model import Machine, Pair, Resource, Site
from einc.machines.picture import format_ranges
from einc.machines.rules import add_peak, build_switch
from einc_runtime.text import escape_text

_TRANSFER_US, _KERNEL_US = 4.0, 2.0
_STAGED_US = 14.0
"""A transfer through the host's memory before its first byte: 12 to 17 us by p2pBandwidthLatencyTest with peers
disabled (NVIDIA/nccl 1127)."""
MAX_HOST_SITES = 256
"""GPUs of one computer that PCIe joins: three times as many as the largest has."""
PCIE_GBS = compute_pcie_gbs(8, 16)
"""The rate of a path between GPUs if nothing else is known: that of PCIe 3.0 with 16 lanes."""


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
    socket_gbs: float | None = None
    staging_gbs: float | None = None


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
    most = [model.links.count if model and model.links else None for model in models]
    direct, fabrics = split_switches(topology, most, where)
    resources = _build_links(direct, fabrics, models, overrides, assumptions)
    bridges = _build_bridges(topology, where, resources, models, overrides, assumptions)
    staged = {pair for bridge in bridges if bridge.name.startswith("host memory") for pair in bridge.pairs}
    direct_pairs = {pair for resource in (*resources, *bridges) for pair in resource.pairs} - staged
    transfer_us = _STAGED_US if staged and not direct_pairs else _TRANSFER_US
    resources += bridges
    resources += add_network(
        topology.host, topology.cards, resources, assumptions, gbs=overrides.network_gbs, count=overrides.network_cards
    )
    if len(sites) > 1:
        assumptions.append(f"latencies: {transfer_us:g} us per transfer, {_KERNEL_US:g} us per kernel (edit the file)")
    name = overrides.name or f"{models[0].name if models[0] else 'gpus'}-x{len(sites)}"
    machine = Machine(name, sites, tuple(resources), transfer_us, _KERNEL_US)
    require_connected(
        machine, where, "the file shows no way between them: --network-gbs says how fast the network of the hosts is"
    )
    return ImportedMachine(machine, tuple(assumptions), (*topology.notes, *_warn_of_unlinked(topology, resources)))


def _choose_models(topology: Topology, overrides: MachineOverrides, assumptions: list[str]) -> tuple[Gpu | None, ...]:
    if overrides.gpu is not None:
        return (require_by_name(overrides.gpu),) * len(topology.labels)
    if all(topology.gpus):
        names = sorted({gpu.name for gpu in topology.gpus if gpu is not None})
        assumptions.append(f"GPU: {', '.join(names)}, as the file names it (--gpu)")
        return topology.gpus
    if topology.unknown is not None and (overrides.hbm_gbs is None or overrides.memory_gib is None):
        raise UsageError(
            f"the file names a GPU that is not known: '{escape_text(topology.unknown, 60)}'",
            hint=f"{suggest_names(topology.unknown)}give --gpu ({list_names()}), or --hbm-gbs and --memory-gib",
        )
    guess = None if topology.unknown is not None else _guess_model(topology)
    if guess is not None and guess.links is not None:
        assumptions.append(f"GPU: {guess.name}, a guess from its {guess.links.count} NVLinks (--gpu)")
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
        site = build_gpu_site(model) if model is not None else Site(1.0, 1)
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


def _build_links(
    direct: dict[Pair, int],
    fabrics: Sequence[dict[int, int]],
    models: Sequence[Gpu | None],
    overrides: MachineOverrides,
    assumptions: list[str],
) -> list[Resource]:
    """The resources of direct links and switches, with what their maker says of them."""
    ports = [model.links if model is not None else None for model in models]
    rates = [overrides.nvlink_gbs or (port.gbs if port else 0.0) for port in ports]
    peaks = [overrides.nvlink_gbs or (port.peak_gbs or port.gbs if port else 0.0) for port in ports]
    kinds = {port.kind for port in ports if port is not None} or {"nvlink"}
    kind, symbol = ("xGMI", "xgmi") if kinds == {"xgmi"} else ("NVLink", "nv")
    if direct or fabrics:
        linked = {site for pair in direct for site in pair} | {site for fabric in fabrics for site in fabric}
        _require(all(rates[site] for site in linked), f"the rate of its {kind}s", "--nvlink-gbs")
        if overrides.nvlink_gbs is None:
            each = _format_numbers(rates[site] for site in linked)
            assumptions.append(f"{kind}: {each} GB/s per link and direction (--nvlink-gbs)")
    return [
        add_peak(resource, at_peak.gbs, resource.name)
        for resource, at_peak in zip(
            _build_nvlinks(direct, fabrics, rates, symbol), _build_nvlinks(direct, fabrics, peaks, symbol), strict=True
        )
    ]


def _build_nvlinks(
    direct: dict[Pair, int], fabrics: Sequence[dict[int, int]], rates: Sequence[float], symbol: str
) -> list[Resource]:
    """The direct links and the switches, at a rate per link and direction of each site."""
    resources = []
    for count, a, b in sorted((count, *pair) for pair, count in direct.items() if pair[0] < pair[1]):
        gbs = round(count * min(rates[a], rates[b]), 6)
        resources += [Resource(f"{symbol}{count} {x}>{y}", gbs, ((x, y),)) for x, y in ((a, b), (b, a))]
    for k, fabric in enumerate(fabrics):
        capacity = {site: round(links * rates[site], 6) for site, links in fabric.items()}
        resources += build_switch(f"{symbol}switch" if k == 0 else f"{symbol}switch{k}", capacity)
    return resources


def _build_bridges(
    topology: Topology,
    where: str,
    resources: Sequence[Resource],
    models: Sequence[Gpu | None],
    overrides: MachineOverrides,
    assumptions: list[str],
) -> list[Resource]:
    """What the pairs of each host cross that have no link of their own: PCIe, or one shared path where its tree is not
    known."""
    linked = {pair for resource in resources for pair in resource.pairs} | topology.unreachable
    slot_gbs = min((model.pcie_gbs for model in models if model is not None), default=PCIE_GBS)
    gbs = overrides.pcie_gbs or topology.pcie_gbs or slot_gbs
    ways = topology.ways
    if overrides.pcie_gbs is not None:  # goes before what the lanes say of themselves
        ways = tuple(tuple(dataclasses.replace(lane, gbs=None) for lane in way) for way in ways)
    bridges: list[Resource] = []
    all_staged: set[Pair] = set()
    for host in sorted(set(topology.host)):
        members = [site for site, at in enumerate(topology.host) if at == host]
        pairs = tuple((a, b) for a in members for b in members if a != b and (a, b) not in linked)
        if not pairs:
            continue
        suffix = f" {host}" if bridges else ""
        staged = {pair for pair in pairs if _is_staged(topology, models, pair)}
        all_staged |= staged
        if topology.ways and len(members) > MAX_HOST_SITES:
            raise MachineError(f"one computer has more than {MAX_HOST_SITES} GPUs that PCIe joins", where=where)
        if topology.ways:
            rates = {"slot": gbs, "switch": gbs, "socket": overrides.socket_gbs or topology.socket_gbs or SOCKET_GBS}
            for lane in build_ways(ways, pairs, staged, rates, overrides.staging_gbs or gbs):
                bridges.append(dataclasses.replace(lane, name=f"{lane.name}{suffix}"))
        else:
            bridges.append(Resource(f"pcie{suffix}", gbs, pairs))
    if bridges:
        _tell_of_pcie(topology, overrides, bridges, gbs, assumptions)
        _tell_of_staging(topology, overrides, all_staged, gbs, assumptions)
    return bridges


def _is_staged(topology: Topology, models: Sequence[Gpu | None], pair: Pair) -> bool:
    """Whether a pair goes through the host's memory: as the file says, or as the drivers of its GPUs do."""
    if topology.staged is not None:
        return pair in topology.staged
    kinds = [models[site] for site in pair]
    return any(kind is not None and not kind.pcie_peers for kind in kinds) or (
        None not in kinds and kinds[0] != kinds[1]
    )


def _tell_of_pcie(
    topology: Topology, overrides: MachineOverrides, bridges: Sequence[Resource], gbs: float, assumptions: list[str]
) -> None:
    source = "as the file says" if topology.pcie_gbs else "16 lanes"
    if not topology.ways:
        if overrides.pcie_gbs is None:
            assumptions.append(f"PCIe: one path of {gbs:g} GB/s ({source}) that pairs without links share (--pcie-gbs)")
        return
    if overrides.pcie_gbs is None:
        assumptions.append(f"PCIe: {gbs:g} GB/s per slot or switch and direction ({source}; --pcie-gbs)")
    if overrides.socket_gbs is None and any(bridge.name.startswith("socket") for bridge in bridges):
        rate = topology.socket_gbs or SOCKET_GBS
        assumptions.append(f"between sockets: {rate:g} GB/s per direction, as NCCL counts (--socket-gbs)")


def _tell_of_staging(
    topology: Topology, overrides: MachineOverrides, staged: set[Pair], gbs: float, assumptions: list[str]
) -> None:
    if not staged:
        return
    if topology.staged is None:
        assumptions.append("peers: the driver gives these GPUs none over PCIe (`nvidia-smi topo -p2p r` says it)")
    if overrides.staging_gbs is None:
        assumptions.append(f"host memory: {gbs:g} GB/s that all transfers through it share (--staging-gbs)")


_PCIE_NAMES = frozenset(("pcie", "switch", "socket", "host", "net"))


def _warn_of_unlinked(topology: Topology, resources: Sequence[Resource]) -> list[str]:
    """A warning where some GPUs have NVLinks and others none."""
    linked = {
        site
        for resource in resources
        if resource.name.partition(" ")[0] not in _PCIE_NAMES
        for pair in resource.pairs
        for site in pair
    }
    alone = set(range(len(topology.labels))) - linked
    if not linked or not alone:
        return []
    return [f"no NVLink at {format_ranges(alone)}: are its links up? `nvidia-smi nvlink -s` shows the state of each"]


def _require(known: object, quantity: str, option: str) -> None:
    if not known:
        raise UsageError(
            f"the file does not tell which GPU this is, so {quantity} is unknown",
            hint=f"give --gpu ({list_names()}), or {option}",
        )


def _format_numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in sorted(set(values)))


MAX_LINKS = 18
"""Of a GPU of which nothing is known: what those have that have the most."""


def split_switches(
    topology: Topology, most: Sequence[int | None], where: str
) -> tuple[dict[Pair, int], list[dict[int, int]]]:
    """The direct links, and for every switch fabric the links of each of its sites; `most` says how many links a
    site's GPU has, where that is known. Raises MachineError where links fit neither."""
    fabrics: list[dict[int, int]] = [{} for _ in range(1 + max(topology.host) * topology.apart)]
    for site, count in enumerate(topology.switched):
        if count:
            fabrics[topology.host[site] * topology.apart][site] = count
    direct = dict(topology.direct)
    if topology.counts_switches:
        for island in find_islands(topology.direct):
            limits = [MAX_LINKS if (limit := most[site]) is None else limit for site in island]
            overfull = next((s for s, links in zip(island, limits, strict=True) if topology.degree(s) > links), None)
            if overfull is None:
                continue
            links = {site: max(topology.direct.get((site, peer), 0) for peer in island) for site in island}
            for a in island:
                for b in island:
                    if a != b and topology.direct.get((a, b), 0) != min(links[a], links[b]):
                        raise _make_contradiction(topology, overfull, limits[island.index(overfull)], (a, b), where)
                    direct.pop((a, b), None)
            fabrics.append(links)
    return direct, [fabric for fabric in fabrics if len(fabric) > 1]


def find_islands(joined: Mapping[Pair, int]) -> list[list[int]]:
    """The groups of sites that links join."""
    neighbours: dict[int, list[int]] = {}
    for a, b in joined:
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
