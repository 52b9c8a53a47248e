"""The ways of transfers over PCIe: slots, switches and sockets, and what pairs of GPUs share of them.

A way is the links from the computer's root down to a GPU. Two GPUs that reach each other's memory (peers) take their
ways up to the last device that they have in common, and down again. GPUs whose driver does not allow that send through
the memory of the host: up the whole way, through the memory, and down. Every link carries both directions at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from einc.machines.model import Pair, Resource

SOCKET_GBS = 16.0
"""Between two sockets in one direction, where nothing else is known: what NCCL counts with for AMD's processors."""

_SOCKET_RATES = (
    ("GenuineIntel", 106, 22.0),
    ("GenuineIntel", 85, 10.0),
    ("GenuineIntel", 0, 6.0),
    ("AuthenticAMD", 0, 16.0),
)
"""Vendor, least model, GB/s between two sockets in one direction: what NCCL counts with (`src/graph/topo.h`)."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A link of a way. `gbs` is its rate per direction where it is known; `name` is that of its lower end."""

    name: str
    kind: Literal["socket", "switch", "slot"]
    gbs: float | None = None


Way = tuple[Lane, ...]
"""From the root down; the last lane is the slot of the GPU."""


def find_socket_rate(vendor: str, model: int) -> float | None:
    """GB/s between two sockets of a processor in one direction; None where nothing is known of it."""
    return next((rate for name, least, rate in _SOCKET_RATES if name == vendor and model >= least), None)


def build_ways(
    ways: Sequence[Way], pairs: Iterable[Pair], staged: Collection[Pair], rates: Mapping[str, float], staging_gbs: float
) -> list[Resource]:
    """The resources that the pairs cross; those of `staged` go through the memory of the host of their source.

    `rates` has the rate of each kind of lane that does not know its own. Lanes that are crossed by the same pairs
    become one, with the rate of the slowest.
    """
    crossed: dict[tuple[str, Lane], list[Pair]] = {}
    for a, b in pairs:
        up, down = _strip_common(ways[a], ways[b], (a, b) in staged)
        for direction, lanes in (("out", up), ("in", down)):
            for lane in lanes:
                crossed.setdefault((direction, lane), []).append((a, b))
    merged: dict[tuple[Pair, ...], tuple[float, _Rank]] = {}
    for (direction, lane), crossing in crossed.items():
        rate = rates[lane.kind] if lane.gbs is None else lane.gbs
        rank = _KINDS.index(lane.kind), int(lane.name.rpartition(" ")[2]), direction == "in", lane.name
        before = merged.get(tuple(crossing), (rate, rank))
        merged[tuple(crossing)] = min(rate, before[0]), min(rank, before[1])
    resources = []
    for path, (rate, (_, _, enters, name)) in sorted(merged.items(), key=lambda each: each[1][1]):
        kind, _, number = name.partition(" ")
        resources.append(Resource(f"{kind} {'in' if enters else 'out'} {number}", rate, path))
    if staged:
        resources.append(Resource("host memory", staging_gbs, tuple(sorted(staged))))
    return resources


_KINDS = ("slot", "switch", "socket")
_Rank = tuple[int, int, bool, str]
"""The order of resources: kind, number, direction; and the name of the lane."""


def _strip_common(a: Way, b: Way, staged: bool) -> tuple[Way, Way]:
    """The lanes that a transfer climbs from one GPU, and those that it takes down to the other."""
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common] and not (staged and a[common].kind != "socket"):
        common += 1
    return a[common:], b[common:]


def build_slots(labels: Sequence[str], gbs: Sequence[float | None]) -> list[Way]:
    """Ways on which GPUs share nothing: a slot each."""
    return [(Lane(f"pcie {site}", "slot", rate),) for site, rate in zip(range(len(labels)), gbs, strict=True)]


def group_by_distance(count: int, near: Mapping[Pair, str]) -> list[Way]:
    """The ways of `count` GPUs, of which `near` has words of `nvidia-smi topo -m` for pairs.

    GPUs with at most one bridge between them (PIX) share a switch, with several (PXB) a chain of them, and those that
    no word but SYS joins stand in different sockets.
    """
    levels = [
        _find_groups(count, [pair for pair, word in near.items() if word in words]) for words in (_PIX, _PXB, _NODE)
    ]
    inner, outer, sockets = levels
    several = len({sockets[site] for site in range(count)}) > 1
    ways = []
    for site in range(count):
        lanes: list[Lane] = []
        if several:
            lanes.append(Lane(f"socket {_rank(sockets, site)}", "socket"))
        upper = [each for each in range(count) if outer[each] == outer[site]]
        lower = [each for each in range(count) if inner[each] == inner[site]]
        if len(upper) > 1:
            lanes.append(Lane(f"switch {_rank(outer, site)}", "switch"))
        if 1 < len(lower) < len(upper):
            lanes.append(Lane(f"switch {count + _rank(inner, site)}", "switch"))
        ways.append((*lanes, Lane(f"pcie {site}", "slot")))
    return ways


DISTANCES = ("PIX", "PXB", "PSB", "PHB", "NODE")
"""Words for ways that stay in one socket, nearest first; PSB is one of older drivers."""
_PIX = frozenset(("PIX",))
_PXB = frozenset(("PIX", "PXB", "PSB"))
_NODE = frozenset(DISTANCES)


def _find_groups(count: int, joined: Iterable[Pair]) -> list[int]:
    """For every GPU the first GPU of its group."""
    first = list(range(count))

    def find(site: int) -> int:
        while first[site] != site:
            first[site] = first[first[site]]
            site = first[site]
        return site

    for a, b in joined:
        low, high = sorted((find(a), find(b)))
        first[high] = low
    return [find(site) for site in range(count)]


def _rank(groups: Sequence[int], site: int) -> int:
    """The number of a GPU's group, counted in their order."""
    return sorted(set(groups)).index(groups[site])
