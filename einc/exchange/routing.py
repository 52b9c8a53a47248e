"""Routes between sites: the direct one, and where no link joins two sites, the quickest one over other sites."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from einc.machines.model import Machine, Pair


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
