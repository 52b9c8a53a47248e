"""Bounds that are plain sums: by counting transfers, by the memory traffic of combining, and by the longest way.

Counting. Take the transfers for X of one piece in the order of their ends, and let each bring all that its source then
knows: that only helps. Where no site holds all atoms, some site v is the first to know all. By then a transfer has left
each of n disjoint sets of holders that v is not in; every other target has still to receive one. That makes n + t - 1
transfers, or n + t - 2 where v is both a holder and a target. Transfers for disjoint aggregates are different ones, and
all of them share the capacity of the whole network.

Combining. An aggregate that IN has in n parts takes actions that combine them. To combine m parts costs m + 1 times the
bytes in HBM traffic, so n parts cost at least n + 1 times (in a single action), at the HBM bandwidth of all sites. For
a set S of sites: an aggregate needed there, whose atoms are all there, is combined in S for 3 times its bytes or more,
or enters S whole.

Radius, for programs that split no atom: the farthest that an atom has to go, alone in the network. Each hop stores and
forwards a whole copy at no more than the width of its path. A copy of X that IN holds nowhere is formed somewhere on
the way, from two parts or more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from einc.exchange.bounds.cut import count_needed_bytes
from einc.exchange.bounds.demands import DemandClass, DemandSet, FormingClass, format_bytes, format_latency, format_rate
from einc.exchange.network import Network, list_sites


@dataclass(frozen=True, slots=True)
class CountingWitness:
    """All transfers together, through the whole network."""

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        sent = _count_sent_bytes(demands)
        if not sent:
            return 0.0
        return sent / network.total_capacity + network.transfer_latency if network.total_capacity else float("inf")

    def explain(self, demands: DemandSet, network: Network) -> str:
        sent, capacity = format_bytes(_count_sent_bytes(demands)), format_rate(network.total_capacity)
        latency = format_latency(network.transfer_latency)
        return f"counting: transfers of {sent} at least, through {capacity} in all{latency}"


def _count_sent_bytes(demands: DemandSet) -> int:
    return sum(demand.size * count_transfers(demand) for demand in demands.family)


def count_transfers(demand: DemandClass) -> int:
    """The least number of transfers for a copy of one of a class's aggregates, `awaited` targets included."""
    targets = demand.targets.bit_count() + demand.awaited
    disjoint = choose_disjoint_holders(demand.holders)
    if not targets or demand.complete or len(disjoint) == 1:
        return targets
    shared = demand.awaited or any(holder & demand.targets for holder in disjoint)
    return len(disjoint) + targets - (2 if shared else 1)


@lru_cache(maxsize=1 << 10)
def choose_disjoint_holders(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Pairwise disjoint sets of them, small ones first. Results are kept, as many are asked for again."""
    disjoint: list[int] = []
    taken = 0
    for holder in sorted(holders, key=lambda holder: (holder.bit_count(), holder)):
        if not holder & taken:
            taken |= holder
            disjoint.append(holder)
    return tuple(disjoint)


@dataclass(frozen=True, slots=True)
class CombiningWitness:
    """The HBM of a set of sites, and what can enter the set instead of being combined there."""

    sites: int

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        memory = sum(network.hbm_rate(site) for site in list_sites(self.sites))
        if self.sites == network.all_sites:
            return _count_hbm_traffic(demands) / memory
        return self._count_bytes(demands) / (memory / 3 + network.entering(self.sites)[0])

    def explain(self, demands: DemandSet, network: Network) -> str:
        memory = format_rate(sum(network.hbm_rate(site) for site in list_sites(self.sites)))
        if self.sites == network.all_sites:
            return f"combining: {format_bytes(_count_hbm_traffic(demands))} of HBM traffic at least, at {memory} in all"
        names = ", ".join(map(str, list_sites(self.sites)))
        entering = format_rate(network.entering(self.sites)[0])
        return (
            f"combining in {{{names}}}: {format_bytes(self._count_bytes(demands))} must be combined there, "
            f"at a third of {memory} of HBM, or enter through {entering}"
        )

    def _count_bytes(self, demands: DemandSet) -> int:
        combined = sum(entry.size for entry in _list_combined_inside(demands, self.sites))
        return count_needed_bytes(demands, self.sites) + combined


def find_best_combining(demands: DemandSet, network: Network) -> CombiningWitness | None:
    """The best over all sites, single sites, and the sets of sites that need the same aggregates."""
    if not demands.forming:
        return None
    sets = dict.fromkeys([network.all_sites, *(1 << site for site in network.sites)])
    sets.update(dict.fromkeys([entry.targets for entry in demands.forming if entry.targets][:64]))
    return max((CombiningWitness(sites) for sites in sets), key=lambda witness: witness.proved_ms(demands, network))


def _count_hbm_traffic(demands: DemandSet) -> int:
    """HBM traffic of all sites; the family's aggregates are disjoint, so that no action serves two of them."""
    return sum((entry.parts + 1) * entry.size for entry in demands.forming if not entry.formed_at)


def _list_combined_inside(demands: DemandSet, sites: int) -> list[FormingClass]:
    """What is needed in a set of sites and held there, but in parts. Overlapping aggregates count by rank alone."""
    return [
        entry
        for entry in demands.forming
        if entry.targets & sites
        and not entry.formed_at & sites
        and all(holder & sites for holder in entry.holders)
        and not entry.overlapping
    ]


@dataclass(frozen=True, slots=True)
class RadiusWitness:
    """The longest way that an atom of some demand has to go."""

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        return max((time for time, _, _ in _list_journeys(demands, network)), default=0.0)

    def explain(self, demands: DemandSet, network: Network) -> str:
        _, target, size = max(_list_journeys(demands, network), default=(0.0, 0, 0))
        atom = format_bytes(size)
        return f"radius: a whole atom of {atom} has to get to site {target}, and the result to be combined"


def _list_journeys(demands: DemandSet, network: Network) -> Iterator[tuple[float, int, int]]:
    """(milliseconds, target, bytes): of every class's largest copy, and of what has to be combined on the way."""
    fastest = max(map(network.hbm_rate, network.sites), default=1.0)
    distances: dict[int, dict[int, float]] = {}
    journeys = [(demand.largest, demand.holders, demand.targets, 0.0) for demand in demands.family]
    journeys += [
        (entry.largest, entry.holders, entry.targets, 3 * entry.largest / fastest)
        for entry in demands.forming
        if not entry.formed_at
    ]
    for size, holders, targets, combining in journeys:
        for target in list_sites(targets):
            if target not in distances:
                distances[target] = _compute_distances(network, target)
            to_target = distances[target]
            away = max(min(to_target.get(site, float("inf")) for site in list_sites(holder)) for holder in holders)
            yield size * away + combining, target, size


def _compute_distances(network: Network, target: int) -> dict[int, float]:
    """Milliseconds that one byte takes from each site to the target by the best way."""
    before: dict[int, list[tuple[int, float]]] = {}
    for (source, destination), path in network.paths.items():
        width = min(network.rates[resource] for resource in path)
        before.setdefault(destination, []).append((source, 1 / width))
    distances: dict[int, float] = {}
    queue = [(0.0, target)]
    while queue:
        time, site = heapq.heappop(queue)
        if site not in distances:
            distances[site] = time
            for source, hop in before.get(site, ()):
                heapq.heappush(queue, (time + hop, source))
    return distances
