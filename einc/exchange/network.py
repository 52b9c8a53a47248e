"""The network as bounds and synthesis see it: which pairs of sites can talk, and through how much capacity.

A set of sites is a bit mask where sets are compared. *Prices* on resources say how much capacity traffic can use: where
every pair of a set crosses resources of total price 1 or more, the traffic between those pairs is at most the sum of
price times capacity.

Routes between sites: the direct one, and where no link joins two sites, the quickest one over other sites.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache

import numpy as np

from einc.exchange.topology_clusters import Clusters, compute_offsets, find_levels
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Pair
from einc_runtime.dtypes import Ints

Path = tuple[int, ...]
"""The resources that a transfer between two sites crosses, by position."""

ResourcePrices = Mapping[int, float]
"""A price for some resources, by position."""


def list_sites(mask: int) -> tuple[int, ...]:
    """The sites of a bit mask, ascending."""
    return tuple(site for site in range(mask.bit_length()) if mask >> site & 1)


def make_mask(sites: Iterable[int]) -> int:
    return sum(1 << site for site in set(sites))


def enters(pair: Pair, sites: int) -> bool:
    """Whether a transfer of the pair comes from outside a set of sites into it."""
    return bool(sites >> pair[1] & 1) and not sites >> pair[0] & 1


class Network:
    """The sites that a program may use (as relays too), the paths between them, and the rate of each resource.

    Resources are those of the machine, then the HBM of every site of the machine, from `first_hbm` on. Rates are in
    bytes per ms, latencies in ms; `all_sites` is the mask of `sites`.
    """

    def __init__(self, machine: Machine, gpus: tuple[int, ...] | None) -> None:
        self.sites = tuple(range(len(machine.sites))) if gpus is None else tuple(sorted(set(gpus)))
        usable = frozenset(self.sites)
        self.all_sites = make_mask(self.sites)
        routes = machine.routes
        self.paths = {pair: routes[pair] for pair in sorted(routes) if usable.issuperset(pair)}
        self.first_hbm = len(machine.resources)
        self.rates = tuple(
            [resource.gbs * BYTES_PER_MS for resource in machine.resources]
            + [site.sustained_gbs * BYTES_PER_MS for site in machine.sites]
        )
        self.ways = Routing(machine, self.sites)
        self.names = [resource.name for resource in machine.resources]
        self.transfer_latency = machine.transfer_latency_us * MS_PER_US
        self.kernel_latency = machine.kernel_latency_us * MS_PER_US
        self._entering: dict[int, tuple[float, ResourcePrices]] = {}

    def hbm_rate(self, site: int) -> float:
        """The HBM bandwidth of a site."""
        return self.rates[self.first_hbm + site]

    @cached_property
    def path_table(self) -> tuple[Ints, Ints, Ints]:
        """Of all pairs the numbers of both sites, and the paths, filled up with -1: (pairs,), (pairs,), (pairs, k)."""
        number = {site: position for position, site in enumerate(self.sites)}
        longest = max(map(len, self.paths.values()), default=0)
        rows = [(*path, *[-1] * (longest - len(path))) for path in self.paths.values()]
        ends = np.array([(number[a], number[b]) for a, b in self.paths], np.int64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1], np.array(rows, np.int64).reshape(len(rows), longest)

    @cached_property
    def levels(self) -> tuple[Clusters, ...]:
        """Sites that lie close together, from single sites to all."""
        return find_levels({pair: min([self.rates[k] for k in path]) for pair, path in self.paths.items()}, self.sites)

    @cached_property
    def offsets(self) -> Ints:
        """How far apart the places of two sites (by number) are in their clusters: small on one rail of a network."""
        return compute_offsets(self.levels, self.sites)

    @cached_property
    def total_capacity(self) -> float:
        """The capacity that all transfers share."""
        return self._cover(self.paths)[0]

    def entering(self, sites: int) -> tuple[float, ResourcePrices]:
        """The capacity through which a set of sites is entered, and the prices that prove it."""
        if sites not in self._entering:
            outside = self.all_sites & ~sites
            table, ends = (self._into, sites) if sites.bit_count() <= outside.bit_count() else (self._out_of, outside)
            near = (pair for site in list_sites(ends) if site in table for pair in table[site])
            self._entering[sites] = self._cover(pair for pair in near if enters(pair, sites))
        return self._entering[sites]

    def priced_capacity(self, prices: ResourcePrices) -> float:
        """The bytes per ms that prices allow in all."""
        return sum(self.rates[resource] * price for resource, price in prices.items())

    def price(self, pair: Pair, prices: ResourcePrices) -> float:
        """What a transfer of the pair costs under prices."""
        return sum(prices.get(resource, 0.0) for resource in self.paths[pair])

    @cached_property
    def _into(self) -> dict[int, list[Pair]]:
        """By site the pairs that lead to it."""
        return self._group_pairs(1)

    @cached_property
    def _out_of(self) -> dict[int, list[Pair]]:
        """By site the pairs that start there."""
        return self._group_pairs(0)

    def _group_pairs(self, end: int) -> dict[int, list[Pair]]:
        groups: dict[int, list[Pair]] = {site: [] for site in self.sites}
        for pair in self.paths:
            groups[pair[end]].append(pair)
        return groups

    def _cover(self, pairs: Iterable[Pair]) -> tuple[float, ResourcePrices]:
        """Prices of 0 or 1 under which each pair costs 1 or more, and their capacity (small, not always least)."""
        open_paths = {self.paths[pair] for pair in pairs}
        chosen = {path[0] for path in open_paths if len(path) == 1}
        open_paths = {path for path in open_paths if chosen.isdisjoint(path)}
        two: set[Path] = {path for path in open_paths if len(path) == 2}
        for sides in _find_sides(two):
            chosen |= min(sides, key=lambda side: sum(self.rates[resource] for resource in sorted(side)))
        for path in sorted(open_paths - two):
            if chosen.isdisjoint(path):
                chosen.add(min(path, key=lambda resource: self.rates[resource]))
        prices = dict.fromkeys(sorted(chosen), 1.0)
        return self.priced_capacity(prices), prices


@lru_cache(maxsize=16)
def build_network(machine: Machine, gpus: tuple[int, ...] | None) -> Network:
    """The network of a machine for programs with these GPUS; kept with what was computed about it."""
    return Network(machine, gpus)


def _find_sides(paths: set[Path]) -> list[tuple[set[int], set[int]]]:
    """Resources that paths cross two by two, such as egress and ingress of a switch: each path has one on each side.

    Where no such sides exist, one side has all resources.
    """
    beside: dict[int, list[int]] = {}
    for resource, peer in sorted(paths):
        beside.setdefault(resource, []).append(peer)
        beside.setdefault(peer, []).append(resource)
    side: dict[int, int] = {}
    sides = []
    for start in beside:
        if start in side:
            continue
        side[start] = 0
        reached = [start]
        even = True
        for resource in reached:
            for neighbour in beside[resource]:
                if neighbour not in side:
                    side[neighbour] = 1 - side[resource]
                    reached.append(neighbour)
                even &= side[neighbour] != side[resource]
        both = ({r for r in reached if not side[r]}, {r for r in reached if side[r]})
        sides.append(both if even else (set(reached), set(reached)))
    return sides


class Routing:
    """The ways between the sites that a program may use."""

    def __init__(self, machine: Machine, sites: Iterable[int]) -> None:
        usable = frozenset(sites)
        self.width: Mapping[Pair, float] = machine.widths
        """The bandwidth in GB/s of every pair that can talk, if it is alone."""
        if len(usable) < len(machine.sites):
            self.width = {pair: gbs for pair, gbs in machine.widths.items() if usable.issuperset(pair)}
        self.complete = len(self.width) == len(usable) * (len(usable) - 1)
        """Whether any two sites have a direct way."""
        self._next: dict[int, list[int]] = {}  # by site those that it can send to
        self._before: dict[int, dict[int, tuple[float, int, int]]] = {}  # by source and site: cost, hops, site before

    def reaches(self, source: int, destination: int) -> bool:
        """Whether data can get from one site to another one."""
        return (source, destination) in self.width or destination in self._measure_from(source)

    def rank(self, source: int, destination: int) -> tuple[float, float]:
        """The lower, the better: direct ways by their bandwidth, then others by the time that a byte takes."""
        if (source, destination) in self.width:
            return (-self.width[source, destination], 0.0)
        return (0.0, self._measure_from(source)[destination][0])

    def find_way(self, source: int, destination: int) -> tuple[int, ...]:
        """The sites on the way, ends included; there must be one.

        It is direct where a link joins the two. Otherwise a byte that is passed on as a whole takes the least time on
        it, then it has the fewest sites, then the lowest.
        """
        way = [destination]
        if (source, destination) not in self.width:
            before = self._measure_from(source)
            while before[way[-1]][2] != source:
                way.append(before[way[-1]][2])
        return (source, *reversed(way))

    def _measure_from(self, source: int) -> dict[int, tuple[float, int, int]]:
        """For every other site that is reached only through others, or on the way there: see `_before`."""
        if self.complete:
            return {}
        if source not in self._before:
            if not self._next:
                for sender, receiver in sorted(self.width):
                    self._next.setdefault(sender, []).append(receiver)
            known: dict[int, tuple[float, int, int]] = {source: (0.0, 0, source)}
            queue = [(0.0, 0, source)]
            while queue:
                cost, hops, site = heapq.heappop(queue)
                if known[site][:2] < (cost, hops):
                    continue
                for neighbour in self._next.get(site, ()):
                    route_cost = (cost + 1.0 / self.width[site, neighbour], hops + 1, site)
                    if neighbour not in known or route_cost < known[neighbour]:
                        known[neighbour] = route_cost
                        heapq.heappush(queue, (*route_cost[:2], neighbour))
            del known[source]
            self._before[source] = known
        return self._before[source]
