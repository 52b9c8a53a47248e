"""Weighted inequalities and prices: the form in which the flow bound is proved and checked.

Let y(u, v) be the number of copies sent from u to v for an aggregate X, in parts of a copy where atoms are split.
Taken piece by piece and in the order of their ends, the transfers of a piece make some site v the first that has
received every atom (where no site held them all). With a(S) the part of the pieces whose first site is in S, and
y = b + c, where b counts transfers up to that moment and c those after it, every body satisfies

- enter S: y into S is at least 1, where S has a target and lacks all holders of an atom;
- leave S: b out of S is at least 1 - a(S), where S has all holders of an atom: the first site got it from there;
- receive t: c into t is at least 1 - a({t}), for a target t: it became complete later, so something came in.

Weights on such rows for X, and prices on resources under which each pair costs at least the rows' weights on it, give:
the total price of all transfers is at least the weighted sum of the right-hand sides, and at most the time times the
capacity of the resources at their prices. As the a of all sites add up to 1, X contributes the sum of its weights less
the greatest sum of those weights in whose row one site's a stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from einc.exchange.bounds.certificate import after_latency
from einc.exchange.bounds.demand import Demand, Demands
from einc.exchange.network import Network, ResourcePrices, enters
from einc.machines.model import Pair

Kind = Literal["enter", "leave", "receive"]


@dataclass(frozen=True, slots=True)
class Row:
    """One inequality for a demand (its position), with its weight. `sites` is a bit mask."""

    demand: int
    kind: Kind
    sites: int
    weight: float

    def covers(self, pair: Pair) -> bool:
        """Whether transfers of the pair count in the row."""
        if self.kind == "leave":
            return bool(self.sites >> pair[0] & 1) and not self.sites >> pair[1] & 1
        return enters(pair, self.sites)


def holds(row: Row, demand: Demand, network: Network) -> bool:
    """Whether every body satisfies the row."""
    if row.kind == "enter":
        return demand.must_enter(row.sites)
    if demand.complete:
        return False
    if row.kind == "leave":
        return any(not holder & ~row.sites for holder in demand.holders)
    return row.sites.bit_count() == 1 and bool(row.sites & demand.targets)


@dataclass(frozen=True, slots=True)
class Priced:
    """Rows and prices; `told` is how they came about, in words."""

    rows: tuple[Row, ...]
    prices: tuple[tuple[int, float], ...]
    told: str

    def worth(self, demands: Demands, network: Network) -> float:
        prices = dict(self.prices)
        capacity = network.priced_capacity(prices)
        if not all(price >= 0 for price in prices.values()) or not capacity:
            return 0.0
        total = 0.0
        for position, rows in _by_demand(self.rows).items():
            total += _share(demands.family[position], rows, prices, network)
        return total / capacity + network.transfer_latency if total > 0 else 0.0

    def words(self, demands: Demands, network: Network) -> str:
        return self.told + after_latency(network.transfer_latency)


def _by_demand(rows: Iterable[Row]) -> dict[int, list[Row]]:
    grouped: dict[int, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.demand, []).append(row)
    return grouped


def _share(demand: Demand, rows: list[Row], prices: ResourcePrices, network: Network) -> float:
    """The bytes, times their price, that the rows of a demand prove; weights beyond the prices are scaled down."""
    if not all(row.weight >= 0 and holds(row, demand, network) for row in rows):
        return 0.0
    scale = 1.0
    for pair in network.paths:
        early = sum(row.weight for row in rows if row.kind != "receive" and row.covers(pair))
        late = sum(row.weight for row in rows if row.kind != "leave" and row.covers(pair))
        weight = max(early, late)
        if weight:
            scale = min(scale, network.price(pair, prices) / weight)
    first = [row for row in rows if row.kind != "enter"]
    most = max((sum(row.weight for row in first if row.sites >> site & 1) for site in network.sites), default=0.0)
    return demand.size * scale * max(0.0, sum(row.weight for row in rows) - most)
