"""The combining bound: aggregations take HBM time, wherever they run.

An aggregate that IN has in n parts takes actions that combine them; m parts cost m + 1 times the bytes, so n parts
cost at least n + 1 times (in a single action), and all sites together have so much HBM bandwidth. For a set S of sites:
an aggregate needed there, whose atoms are all there, is combined in S for 3 times its bytes or more, or enters S whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from einc.exchange.bounds.certificate import bytes_text, rate_text
from einc.exchange.bounds.cut import needed_in
from einc.exchange.bounds.demand import Demands, Forming
from einc.exchange.network import Network, list_sites


@dataclass(frozen=True, slots=True)
class Combining:
    """The HBM of a set of sites, and what can enter it instead."""

    sites: int

    def worth(self, demands: Demands, network: Network) -> float:
        memory = sum(network.hbm_rate(site) for site in list_sites(self.sites))
        if self.sites == network.all_sites:
            return _traffic(demands) / memory
        return self._bytes(demands) / (memory / 3 + network.entering(self.sites)[0])

    def words(self, demands: Demands, network: Network) -> str:
        memory = rate_text(sum(network.hbm_rate(site) for site in list_sites(self.sites)))
        if self.sites == network.all_sites:
            return f"combining: {bytes_text(_traffic(demands))} of HBM traffic at least, at {memory} in all"
        names = ", ".join(map(str, list_sites(self.sites)))
        entering = rate_text(network.entering(self.sites)[0])
        return (
            f"combining in {{{names}}}: {bytes_text(self._bytes(demands))} must be combined there, "
            f"at a third of {memory} of HBM, or enter through {entering}"
        )

    def _bytes(self, demands: Demands) -> int:
        return needed_in(demands, self.sites) + sum(entry.size for entry in _local(demands, self.sites))


def best_combining(demands: Demands, network: Network) -> Combining | None:
    """The best over all sites, single sites, and the sets of sites that need the same aggregates."""
    if not demands.forming:
        return None
    sets = dict.fromkeys([network.all_sites, *(1 << site for site in network.sites)])
    sets.update(dict.fromkeys([entry.targets for entry in demands.forming if entry.targets][:64]))
    return max((Combining(sites) for sites in sets), key=lambda one: one.worth(demands, network))


def _traffic(demands: Demands) -> int:
    """HBM traffic of all sites; the family's aggregates are disjoint, so that no action serves two of them."""
    return sum((entry.parts + 1) * entry.size for entry in demands.forming if not entry.whole)


def _local(demands: Demands, sites: int) -> list[Forming]:
    """What is needed in a set of sites and held there, but in parts. Tangled aggregates are counted by rank alone."""
    return [
        entry
        for entry in demands.forming
        if entry.targets & sites
        and not entry.whole & sites
        and all(holder & sites for holder in entry.holders)
        and not entry.tangled
    ]
