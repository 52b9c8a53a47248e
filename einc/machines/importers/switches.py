"""Which links of a topology go to switches, where its file shows pairs on a switch as if they were direct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc.errors import MachineError
from einc.machines.importers.topology_facts import Topology
from einc.machines.model import Pair

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
