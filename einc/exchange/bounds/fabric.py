"""The network as bounds see it: which pairs of sites can talk, and through how much capacity a set of pairs goes.

A set of sites is a bit mask here. *Prices* on resources say how much capacity traffic can use: where every pair of a
set crosses resources of total price 1 or more, the traffic between those pairs is at most the sum of price times
capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from einc.exchange.simulation.fairness import Route
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Pair

Prices = Mapping[int, float]
"""A price for some resources, by position."""


def members(mask: int) -> tuple[int, ...]:
    """The sites of a bit mask, ascending."""
    return tuple(site for site in range(mask.bit_length()) if mask >> site & 1)


def mask_of(sites: Iterable[int]) -> int:
    """The bit mask of distinct sites."""
    return sum(1 << site for site in set(sites))


class Fabric:
    """The pairs among the sites that a program may use, and the capacities between them in bytes per ms."""

    def __init__(self, machine: Machine, gpus: tuple[int, ...] | None) -> None:
        self.sites = tuple(range(len(machine.sites))) if gpus is None else tuple(sorted(set(gpus)))
        inside = frozenset(self.sites)
        self.everything = mask_of(self.sites)
        routes = machine.routes
        self.routes = {pair: routes[pair] for pair in sorted(routes) if inside.issuperset(pair)}
        self.capacity = [resource.gbs * BYTES_PER_MS for resource in machine.resources]
        self.names = [resource.name for resource in machine.resources]
        self.hbm = {site: machine.sites[site].hbm_gbs * BYTES_PER_MS for site in self.sites}
        self.latency = machine.transfer_latency_us * MS_PER_US  # nothing is under way before it has passed
        self.total = self.cover(self.routes)
        self._entering: dict[int, tuple[float, Prices]] = {}
        self._into: dict[int, list[Pair]] = {site: [] for site in self.sites}
        self._out_of: dict[int, list[Pair]] = {site: [] for site in self.sites}
        for pair in self.routes:
            self._out_of[pair[0]].append(pair)
            self._into[pair[1]].append(pair)

    def entering(self, sites: int) -> tuple[float, Prices]:
        """The capacity in bytes per ms through which a set of sites is entered, and the prices that prove it."""
        if sites not in self._entering:
            outside = self.everything & ~sites
            table, ends = (self._into, sites) if sites.bit_count() <= outside.bit_count() else (self._out_of, outside)
            near = (pair for site in members(ends) if site in table for pair in table[site])
            self._entering[sites] = self.cover(pair for pair in near if enters(pair, sites))
        return self._entering[sites]

    def cover(self, pairs: Iterable[Pair]) -> tuple[float, Prices]:
        """Prices of 0 or 1 under which each pair costs 1 or more, and their capacity: small, if not always least."""
        open_routes = {self.routes[pair] for pair in pairs}
        chosen = {route[0] for route in open_routes if len(route) == 1}
        open_routes = {route for route in open_routes if chosen.isdisjoint(route)}
        two: set[Route] = {route for route in open_routes if len(route) == 2}
        for one, other in self._sides(two):
            chosen |= min(one, other, key=lambda side: sum(self.capacity[resource] for resource in sorted(side)))
        for route in sorted(open_routes - two):
            if chosen.isdisjoint(route):
                chosen.add(min(route, key=lambda resource: self.capacity[resource]))
        prices = dict.fromkeys(sorted(chosen), 1.0)
        return self.worth(prices), prices

    def worth(self, prices: Prices) -> float:
        """The bytes per ms that prices allow in all."""
        return sum(self.capacity[resource] * price for resource, price in prices.items())

    def price(self, pair: Pair, prices: Prices) -> float:
        """What a pair costs under prices."""
        return sum(prices.get(resource, 0.0) for resource in self.routes[pair])

    def _sides(self, routes: set[Route]) -> list[tuple[set[int], set[int]]]:
        """Resources that pairs cross two by two, as egress and ingress of a switch: each route has one on each side.

        Where no such sides exist, one side has all resources.
        """
        beside: dict[int, list[int]] = {}
        for one, other in sorted(routes):
            beside.setdefault(one, []).append(other)
            beside.setdefault(other, []).append(one)
        side: dict[int, int] = {}
        found = []
        for start in beside:
            if start in side:
                continue
            side[start] = 0
            reached = [start]
            even = True
            for resource in reached:
                for other in beside[resource]:
                    if other not in side:
                        side[other] = 1 - side[resource]
                        reached.append(other)
                    even &= side[other] != side[resource]
            sides = ({r for r in reached if not side[r]}, {r for r in reached if side[r]})
            found.append(sides if even else (set(reached), set(reached)))
        return found


def enters(pair: Pair, sites: int) -> bool:
    """Whether a transfer of the pair comes from outside a set of sites into it."""
    return bool(sites >> pair[1] & 1) and not sites >> pair[0] & 1


@lru_cache(maxsize=16)
def fabric_of(machine: Machine, gpus: tuple[int, ...] | None) -> Fabric:
    """The fabric of a machine, with what has been worked out about it kept for further programs."""
    return Fabric(machine, gpus)
