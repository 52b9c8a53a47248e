"""The flow bound on many sites: prices of resources from a small linear program, and cuts that fit under them.

The rows are those of `flow.py` that say what has to enter a set of sites, for sets of a special kind. For an atom and a
target of a demand, the sets of all sites that are nearer to the target than some distance, under the prices, lack the
atom as long as the distance is less than that of its nearest holder. So do the sets of all sites that are farther from
its holders than some distance, which are taken where a demand has more atoms than targets. Weighted by the differences
between distances, their rows weigh no more on any pair than its price, and all together the whole distance. What they
weigh is taken from the prices of pairs, and the next atom and target go on with what is left. (This is dual ascent for
Steiner trees, after Wong.) `FlowWitness` sums up what prices and rows prove.

The prices are those under which trees that meet the demands cost most, for so much capacity. Trees that are cheap under
the prices so far are added to the linear program, until what the rows prove comes near to what it promises. Resources
that look alike (their rate, and what their sites hold and need) have one price. This keeps the program small, and any
prices prove something.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from einc.exchange.bounds.demands import DemandClass, DemandSet
from einc.exchange.bounds.flow import FlowRow, FlowWitness
from einc.exchange.linear import LinearProgram
from einc.exchange.network import Network, list_sites
from einc.exchange.steiner_heuristic import find_cheapest_paths, grow_tree
from einc.machines.site_counts import MAX_SWITCHED_SITES
from einc_runtime.dtypes import Floats

MAX_JOURNEYS = 1500
"""Pairs of an atom and a target, of all demands together."""

MAX_PRICE_ROUNDS = 15  # a limit of time: prices after any round give a bound
_STEP_PARTS = (0.5, 0.9, 1.0)
_MIN_PRICE_GAIN = 1.003  # a round that promises less is not worth its time
_LEAST = 1e-12  # price of a link: with a price of zero, paths of any length would cost the same


def solve_priced_flow(demands: DemandSet, network: Network) -> FlowWitness | None:
    """The best bound that rounds of the linear program prove; None where it is too large, or nothing is sent."""
    journeys = sum(len(demand.holders) * demand.targets.bit_count() for demand in demands.family)
    if not journeys or journeys > MAX_JOURNEYS or len(network.sites) > MAX_SWITCHED_SITES or not network.paths:
        return None
    program = _PriceProgram(demands, network)
    prices = program.begin()
    program.add_trees(prices)
    best, most = prices, program.prove(prices)
    for _ in range(MAX_PRICE_ROUNDS):
        promised, dearest = program.solve()
        if promised <= most * _MIN_PRICE_GAIN:
            break
        # Prices oscillate; halfway to the best ones they converge sooner. Where that shows no new tree, they go on.
        for part in _STEP_PARTS:
            prices = part * dearest + (1 - part) * best
            proved = program.prove(prices)
            if proved > most:
                best, most = prices, proved
            if program.add_trees(prices):
                break
        else:
            break
    return program.make_witness(best)


class _PriceProgram:
    """Prices of resources, adding up to 1 when multiplied by their rates, and what every demand costs at most."""

    def __init__(self, demands: DemandSet, network: Network) -> None:
        self.network = network
        self.family = demands.family
        self.number = {site: position for position, site in enumerate(network.sites)}
        self.sources, self.ends, self.paths = network.path_table
        self.used = np.unique(self.paths[self.paths >= 0])
        self.kind = self._find_kinds()
        self.rates: Floats = np.zeros(max(self.kind.values()) + 1)
        for resource, kind in self.kind.items():
            self.rates[kind] += network.rates[resource]
        self.total = float(sum(demand.size for demand in self.family))
        self.known: set[tuple[tuple[int, float], ...]] = set()
        # It minimizes: so the costs of demands, which are to be greatest, are negative.
        self.program = LinearProgram(priced=False)
        count = len(self.rates)
        self.program.add_columns([0.0] * count + [-demand.size / self.total for demand in self.family])
        # In units of the widest kind's rate, so that prices are about 1.
        self.unit = float(self.rates.max())
        self.program.add_row(1.0, 1.0, range(count), list(self.rates / self.unit))

    def _find_kinds(self) -> dict[int, int]:
        """The kind of each resource in use, as a number: by its rate, and what its sites hold and need."""
        held: dict[int, int] = {}
        needed: dict[int, int] = {}
        for demand in self.family:
            for holder in demand.holders:
                for site in list_sites(holder):
                    held[site] = held.get(site, 0) + demand.size
            for site in list_sites(demand.targets):
                needed[site] = needed.get(site, 0) + demand.size
        ends: dict[int, tuple[list[Any], list[Any]]] = {int(resource): ([], []) for resource in self.used}
        for pair, path in self.network.paths.items():
            for resource in path:
                for side, site in zip(ends[resource], pair, strict=True):
                    side.append((held.get(site, 0), needed.get(site, 0)))
        numbers: dict[Any, int] = {}
        kinds = {}
        for resource, both in ends.items():
            kind_key = self.network.rates[resource], *(tuple(sorted(side)) for side in both)
            kinds[resource] = numbers.setdefault(kind_key, len(numbers))
        return kinds

    def begin(self) -> Floats:
        """Prices under which all resources are as dear as they are wide."""
        return self.unit / (self.rates * len(self.rates))

    def _price_pairs(self, prices: Floats) -> Floats:
        """The price of every pair, infinite where it cannot talk: (sites, sites)."""
        count = len(self.network.sites)
        edge: Floats = np.full((count, count), np.inf)
        of_all = np.zeros(len(self.network.rates) + 1)
        for resource, kind in self.kind.items():
            of_all[resource] = prices[kind]
        edge[self.sources, self.ends] = of_all[self.paths].sum(1)
        np.fill_diagonal(edge, 0.0)
        return edge

    def prove(self, prices: Floats) -> float:
        """What rows under these prices prove, in the unit of the program's value."""
        edge = self._price_pairs(prices)
        return sum([demand.size * sum(self._ascend(demand, edge.copy(), None)) for demand in self.family]) / self.total

    def _ascend(self, demand: DemandClass, edge: Floats, rows: list[tuple[int, float]] | None) -> list[float]:
        """The distances of a demand's atoms and targets, one after the other; takes them from the prices of pairs.

        The sets and weights are added to `rows`, where they are wanted.
        """
        gained = []
        around_holders = len(demand.holders) > demand.targets.bit_count()
        for target in list_sites(demand.targets):
            end = [self.number[target]]
            for holder in demand.holders:
                start = [self.number[site] for site in list_sites(holder) if site in self.number]
                # `near` rises from the holders, which are at 0, to the target.
                if around_holders:
                    near = _find_distances(edge.T, start)
                else:
                    away = _find_distances(edge, end)
                    near = float(away[start].min()) - np.minimum(away, away[start].min())
                reach = float(near[end[0]])
                if not _LEAST < reach < np.inf:
                    continue
                # Each level of `near` is a cut around the target: the sites above it lack the atom, so its bytes enter.
                # A pair that crosses cuts pays for them out of its price; what is left of it pays for the next atom.
                near = np.minimum(near, reach)
                if rows is not None:
                    levels = np.unique(near)
                    for low, high in itertools.pairwise(levels):
                        inside = np.flatnonzero(near >= high)
                        rows.append((sum([1 << self.network.sites[k] for k in inside]), float(high - low)))
                edge -= np.maximum(0.0, near[None, :] - near[:, None])
                np.maximum(edge, 0.0, out=edge)
                gained.append(reach)
        return gained

    def add_trees(self, prices: Floats) -> bool:
        """Adds trees that meet the demands and are cheap under the prices; returns whether one is new."""
        edge = self._price_pairs(prices)
        distance, hop = find_cheapest_paths(edge + _LEAST)
        added = False
        for position, demand in enumerate(self.family):
            for tree in self._find_trees(demand, distance, hop):
                load: dict[int, float] = {len(self.rates) + position: 1.0}
                for a, b in tree:
                    for resource in self.network.paths[self.network.sites[a], self.network.sites[b]]:
                        load[self.kind[resource]] = load.get(self.kind[resource], 0.0) - 1.0
                key = tuple(sorted(load.items()))
                if key in self.known:
                    continue
                self.known.add(key)
                added = True
                self.program.add_row(-math.inf, 0.0, *zip(*key, strict=True))
        return added

    def _find_trees(self, demand: DemandClass, distance: Floats, hop: Any) -> list[tuple[tuple[int, int], ...]]:
        """Trees over numbers of sites: from all atoms to one target, and from there to the others."""
        targets = [self.number[site] for site in list_sites(demand.targets)]
        holders = [[self.number[site] for site in list_sites(holder)] for holder in demand.holders]
        trees = []
        for lag in (0.0, 0.5):
            if len(holders) == 1:
                hops = grow_tree(holders[0], [[target] for target in targets], distance, hop, lag, False)
            else:
                root = min(targets, key=lambda site: sum([distance[sites, site].min() for sites in holders]))
                hops = grow_tree([root], holders, distance, hop, lag, True)
                hops += grow_tree([root], [[target] for target in targets], distance, hop, lag, False)
            trees.append(tuple(sorted(hops)))
        return trees

    def solve(self) -> tuple[float, Floats]:
        """The cost that trees promise, and the prices."""
        solution = self.program.solve()
        assert solution is not None, "some tree costs most"
        return -solution[0], solution[1][: len(self.rates)]

    def make_witness(self, prices: Floats) -> FlowWitness:
        edge = self._price_pairs(prices)
        rows = []
        for position, demand in enumerate(self.family):
            raised: list[tuple[int, float]] = []
            self._ascend(demand, edge.copy(), raised)
            weights: dict[int, float] = {}
            for sites, weight in raised:
                weights[sites] = weights.get(sites, 0.0) + weight
            rows += [FlowRow(position, "enter", sites, weight) for sites, weight in sorted(weights.items())]
        kept = {resource: float(prices[kind]) for resource, kind in sorted(self.kind.items()) if prices[kind] > 0}
        return FlowWitness(
            tuple(rows), tuple(kept.items()), "flow: cuts around targets fill the network at these prices"
        )


def _find_distances(edge: Floats, ends: list[int]) -> Floats:
    """The price of the cheapest path from every site to the nearest of some."""
    away: Floats = edge[:, ends].min(1)
    for _ in range(len(edge)):
        shorter = (edge + away).min(1)
        if (shorter >= away).all():
            break
        away = np.minimum(away, shorter)
    return away
