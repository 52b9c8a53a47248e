"""Cheapest routes under prices: combine the parts on a tree, then bring the result to the targets on another.

The dynamic program over subsets (after Dreyfus and Wagner) finds the exact optimum for the tree of the reduction and
for that of the multicast, given a price per byte on every path and for aggregating at every site.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from einc.exchange.network import Network
from einc.exchange.steiner_heuristic import find_cheapest_paths
from einc.exchange.synthesis.demands import MAX_TERMINALS, DemandShape
from einc.exchange.synthesis.routes import Route, RouteStep, tidy_route
from einc_runtime.dtypes import Floats, Ints

_TIE = 1e-6
"""The part by which a path between the least like places of clusters counts more than one between like places."""


class PathPrices:
    """The prices of the cheapest paths between sites and of aggregating, from prices of all resources."""

    def __init__(self, network: Network, price: Floats, spread: float = 1e-3) -> None:
        """`price` is per byte on each resource; `spread` times the mean price of a path is added to each path."""
        self.network = network
        self._price = price
        self.number = {site: number for number, site in enumerate(network.sites)}
        n = len(network.sites)
        edge = np.full((n, n), np.inf)
        sources, ends, paths = network.path_table
        edge[sources, ends] = np.append(price, 0.0)[paths].sum(1)
        finite = edge[np.isfinite(edge)]
        extra = spread * (float(finite.mean()) if finite.size else 1.0) + 1e-15
        edge += extra
        np.fill_diagonal(edge, 0.0)
        edge, self.hop = find_cheapest_paths(edge)
        self.distance: Floats = edge
        # Of equal paths those between like places of clusters are taken, so that all sites get as much to do.
        self.rail_distance: Floats = edge * (1 + _TIE * network.offsets / max(1, network.offsets.max()))
        self.form: Floats = price[[network.first_hbm + site for site in network.sites]] + extra * 0.1
        self._reductions: dict[tuple[tuple[int, ...], ...], ReductionTrees] = {}
        self._multicasts: dict[tuple[int, ...], MulticastTrees] = {}

    def compute_cost(self, load: Mapping[int, float]) -> float:
        """The price of what the resources move."""
        return sum([float(self._price[resource]) * moved for resource, moved in load.items()])

    def get_reduction(self, holders: tuple[tuple[int, ...], ...]) -> ReductionTrees:
        """The reduction of parts with these holders; many shapes share it."""
        if holders not in self._reductions:
            self._reductions[holders] = ReductionTrees(self, holders)
        return self._reductions[holders]

    def get_multicast(self, targets: tuple[int, ...]) -> MulticastTrees:
        """The multicast to these targets; many shapes share it."""
        if targets not in self._multicasts:
            self._multicasts[targets] = MulticastTrees(self, targets)
        return self._multicasts[targets]

    def list_path_steps(self, parts: int, source: int, destination: int) -> list[RouteStep]:
        """The sends along the cheapest path, between numbers of sites."""
        sites = self.network.sites
        steps = []
        while source != destination:
            following = int(self.hop[source, destination])
            steps.append(RouteStep(parts, sites[source], sites[following]))
            source = following
        return steps


class ReductionTrees:
    """For every set of parts and every site the price of having the set combined there."""

    def __init__(self, prices: PathPrices, holders: Sequence[Sequence[int]]) -> None:
        self.prices = prices
        n, m = len(prices.network.sites), len(holders)
        columns = np.arange(n)
        self.full = (1 << m) - 1
        self.cost: Floats = np.full((1 << m, n), np.inf)
        self.via: Ints = np.zeros((1 << m, n), np.int64)  # where the set was formed, or held
        lying: Floats = np.full((1 << m, n), np.inf)  # of sets that lie at a site in several parts, or whole
        self.first: Ints = np.zeros((1 << m, n), np.int64)
        self.joins_first = np.zeros((1 << m, n), bool)
        # The dynamic program of Dreyfus and Wagner for Steiner trees: a set is formed at a site, from a subset and the
        # other parts, and then sent along a cheapest path. A subset is a smaller number, and so it is known before.
        for parts in range(1, 1 << m):
            base = np.full(n, np.inf)
            apart = np.full(n, np.inf)
            if parts & (parts - 1) == 0:
                base[[prices.number[site] for site in holders[parts.bit_length() - 1]]] = 0.0
            else:
                halves = _list_halves(parts)
                total = self.cost[halves] + prices.form + lying[parts ^ halves]
                chosen = total.argmin(0)
                self.first[parts] = halves[chosen]
                apart = total[chosen, columns]
                base = apart + prices.form
            total = base[:, None] + prices.distance
            self.via[parts] = total.argmin(0)
            self.cost[parts] = total[self.via[parts], columns]
            # An aggregate has any number of operands. So the other parts may lie there as one operand, which is read
            # once (`form` is the price of a read or a write), or as several.
            together = self.cost[parts] + prices.form
            self.joins_first[parts] = together <= apart
            lying[parts] = np.minimum(together, apart)

    def list_steps(self, parts: int, site: int) -> list[RouteStep]:
        """The steps that combine a set of parts at a site (by number)."""
        at = int(self.via[parts, site])
        way = self.prices.list_path_steps(parts, at, site)
        if parts & (parts - 1) == 0:
            return way
        of, remaining = [], parts
        while True:
            half = int(self.first[remaining, at])
            of.append(half)
            remaining ^= half
            if self.joins_first[remaining, at]:
                of.append(remaining)
                break
        name = self.prices.network.sites[at]
        return [
            *(step for half in of for step in self.list_steps(half, at)),
            RouteStep(parts, name, name, tuple(sorted(of))),
            *way,
        ]


class MulticastTrees:
    """For every set of targets and every site the price of bringing a copy from there to all of them."""

    def __init__(self, prices: PathPrices, targets: Sequence[int]) -> None:
        self.prices = prices
        n, t = len(prices.network.sites), len(targets)
        columns = np.arange(n)
        self.cost: Floats = np.full((1 << t, n), np.inf)
        self.via: Ints = np.zeros((1 << t, n), np.int64)
        self.first: Ints = np.zeros((1 << t, n), np.int64)
        self.cost[0] = 0.0
        for ends in range(1, 1 << t):
            base = np.full(n, np.inf)
            if ends & (ends - 1) == 0:
                base[prices.number[targets[ends.bit_length() - 1]]] = 0.0
            else:
                halves = _list_halves(ends)
                total = self.cost[halves] + self.cost[ends ^ halves]
                chosen = total.argmin(0)
                self.first[ends] = halves[chosen]
                base = total[chosen, columns]
            total = prices.distance + base[None, :]
            self.via[ends] = total.argmin(1)
            self.cost[ends] = total[columns, self.via[ends]]

    def list_steps(self, parts: int, site: int, ends: int) -> list[RouteStep]:
        """The sends that bring a copy of `parts` from a site (by number) to a set of targets."""
        at = int(self.via[ends, site])
        way = self.prices.list_path_steps(parts, site, at)
        if ends & (ends - 1) == 0:
            return way
        half = int(self.first[ends, at])
        return [*way, *self.list_steps(parts, at, half), *self.list_steps(parts, at, ends ^ half)]


def price_target_sets(reduction: ReductionTrees, multicast: MulticastTrees) -> tuple[Floats, Ints]:
    """For every set of targets the least price of meeting it, and the targets that one of its roots serves.

    There may be one root or several, each for some of the targets.
    """
    rooted = (reduction.cost[reduction.full][None, :] + multicast.cost).min(1)
    best = rooted.copy()
    best[0] = 0.0
    first = np.arange(len(best))
    for ends in range(1, len(best)):
        if ends & (ends - 1):
            halves = _list_halves(ends)
            total = rooted[halves] + best[ends ^ halves]
            chosen = int(total.argmin())
            if total[chosen] < best[ends] - 1e-15:
                best[ends], first[ends] = total[chosen], halves[chosen]
    return best, first


def find_cheapest_routes(shape: DemandShape, prices: PathPrices) -> tuple[float, list[Route]]:
    """The least price per byte of meeting a shape, and routes: the cheapest one, then those of other roots."""
    reduction = prices.get_reduction(shape.holders)
    multicast = prices.get_multicast(shape.targets)
    best, first = price_target_sets(reduction, multicast)
    full, every = reduction.full, len(best) - 1
    by_root = reduction.cost[full][None, :] + multicast.cost  # (targets, root)
    steps: list[RouteStep] = []
    ends = every
    while ends:
        half = int(first[ends])
        root = int(by_root[half].argmin())
        steps += reduction.list_steps(full, root) + multicast.list_steps(full, root, half)
        ends ^= half
    routes = [tidy_route(shape, tuple(steps))]
    for root in np.argsort(by_root[every], kind="stable")[: _count_kept_roots(len(prices.network.sites))]:
        if np.isfinite(by_root[every, root]):
            steps = reduction.list_steps(full, int(root)) + multicast.list_steps(full, int(root), every)
            routes.append(tidy_route(shape, tuple(steps)))
    return float(best[every]), list(dict.fromkeys(route for route in routes if route is not None))


def _count_kept_roots(sites: int) -> int:
    """The number of roots whose routes are kept: on large machines only the best one."""
    return sites if sites <= 2 * MAX_TERMINALS else 1


@functools.cache
def _list_halves(bits: int) -> Ints:
    """The proper subsets of a set that contain its lowest element, in ascending order."""
    # With its lowest element in the first half, each way to halve the set is listed once.
    lowest = bits & -bits
    upper_bits = bits ^ lowest
    subsets, part = [], 0
    while part != upper_bits:
        subsets.append(part | lowest)
        part = (part - upper_bits) & upper_bits  # the next larger subset: adds 1 to the bits of `upper_bits` alone
    return np.array(subsets, np.int64)
