"""The radius bound, for programs that split no atom: the farthest that an atom has to go, alone in the network.

Each hop stores and forwards a whole copy at no more than the width of its path. A copy of X that IN holds nowhere is
formed somewhere on the way, from two parts or more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from einc.exchange.bounds.certificate import bytes_text
from einc.exchange.bounds.demand import Demands
from einc.exchange.network import Network, list_sites


@dataclass(frozen=True, slots=True)
class Radius:
    """The farthest of all demands."""

    def worth(self, demands: Demands, network: Network) -> float:
        return max((time for time, _, _ in _journeys(demands, network)), default=0.0)

    def words(self, demands: Demands, network: Network) -> str:
        _, target, size = max(_journeys(demands, network), default=(0.0, 0, 0))
        return f"radius: a whole atom of {bytes_text(size)} has to get to site {target}, and the result to be combined"


def _journeys(demands: Demands, network: Network) -> Iterator[tuple[float, int, int]]:
    """(milliseconds, target, bytes): of every demand's largest copy, and of what has to be combined on the way."""
    fastest = max(map(network.hbm_rate, network.sites), default=1.0)
    distances: dict[int, dict[int, float]] = {}
    wanted = [(demand.largest, demand.holders, demand.targets, 0.0) for demand in demands.family]
    wanted += [
        (entry.largest, entry.holders, entry.targets, 3 * entry.largest / fastest)
        for entry in demands.forming
        if not entry.whole
    ]
    for size, holders, targets, combining in wanted:
        for target in list_sites(targets):
            if target not in distances:
                distances[target] = _distances(network, target)
            to_target = distances[target]
            away = max(min(to_target.get(site, float("inf")) for site in list_sites(holder)) for holder in holders)
            yield size * away + combining, target, size


def _distances(network: Network, target: int) -> dict[int, float]:
    """Milliseconds that one byte takes from each site to the target by the best way."""
    before: dict[int, list[tuple[int, float]]] = {}
    for (source, destination), route in network.paths.items():
        width = min(network.rates[resource] for resource in route)
        before.setdefault(destination, []).append((source, 1 / width))
    found: dict[int, float] = {}
    queue = [(0.0, target)]
    while queue:
        time, site = heapq.heappop(queue)
        if site not in found:
            found[site] = time
            for source, hop in before.get(site, ()):
                heapq.heappush(queue, (time + hop, source))
    return found
