"""Memberships of the partitions that a preamble declares by size, chosen for the least time of the fullest resource.

Prices on the resources give every membership a bound from below, all of them at once from one table per demand. The
membership of the least bound is packed, the packing's prices raise the bounds of others, and so on: once no bound lies
below the best packing, that one is the best of all. Among equal bounds the fewest bytes go first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einc.exchange.language.program import Program
from einc.exchange.memberships import MOST_SITES, Ints, all_masks, membership, unions
from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Demand, demands_of, shapes_of
from einc.exchange.synthesis.greedy import pack_greedily
from einc.exchange.synthesis.memberships import anywhere, fewest_bytes, is_open, moved_bytes, with_members
from einc.exchange.synthesis.packing import Draft, Packing, pack, total_volume
from einc.exchange.synthesis.trees import MOST_TERMINALS, Floats, Prices, cheapest_sets

MOST_PACKED = 24

_CLOSE = 0.98
"""A bound so near to the best packing promises nothing."""

_EQUAL = 1.001
"""How nearly packings are solved."""

_MUCH = 30_000
"""Parts and targets of all shapes together, times sites, from which routes are chosen without a linear program."""


def place(
    program: Program,
    network: Network,
    slack: float,
    stop: Callable[[], bool] = lambda: False,
    below: float = np.inf,
    least: float = 0.0,
) -> tuple[Program, tuple[Demand, ...], Packing]:
    """The program with the best membership found, its demands, and their packing.

    The search ends early where no membership can have a packing of less than `below` ms. None has one of less than
    `least` ms, as bounds have shown.
    """
    if not is_open(program):
        demands = demands_of(program)
        return program, demands, _pack(demands, network, slack, np.inf, stop).finish()
    if len(network.sites) > MOST_SITES:
        placed = with_members(program, fewest_bytes(program, network.sites))
        demands = demands_of(placed)
        return placed, demands, _pack(demands, network, slack, np.inf, stop).finish()
    search = _Choices(program, network)
    best: tuple[Program, tuple[Demand, ...], Draft] | None = None
    for _ in range(MOST_PACKED):
        pick = search.pick()
        if best is not None:
            fullest = best[2].fullest_ms
            if stop() or search.bounds[pick] >= min(fullest * _CLOSE, below) or fullest <= least * _EQUAL:
                break
        trial = with_members(program, search.members(pick))
        demands = demands_of(trial)
        draft = _pack(demands, network, slack, below if best is None else min(below, best[2].fullest_ms), stop)
        if best is None or draft.fullest_ms < best[2].fullest_ms:
            best = trial, demands, draft
        search.learn(Prices(network, draft.price / np.array(network.rates)))
        search.bounds[pick] = np.inf
    assert best is not None, "there is at least one membership"
    return best[0], best[1], best[2].finish()


def _pack(demands: Sequence[Demand], network: Network, slack: float, cutoff: float, stop: Callable[[], bool]) -> Draft:
    if not demands:
        return _done(Packing({}, 0.0), network)
    volumes = total_volume(shapes_of(demands), [demand.size for demand in demands])
    if sum(len(shape.holders) + len(shape.targets) for shape in volumes) * len(network.sites) > _MUCH:
        return _done(pack_greedily(volumes, network), network)
    return pack(volumes, network, slack, cutoff, stop)


def _done(packing: Packing, network: Network) -> Draft:
    """A packing that was made without prices."""
    return Draft(packing.fullest_ms, np.zeros(len(network.rates)), lambda: packing)


class _Choices:
    """All memberships, and what is known of the least time of each."""

    def __init__(self, program: Program, network: Network) -> None:
        self.program, self.network = program, network
        demands = anywhere(program, network.sites)
        self.masks = all_masks(program, network.sites)
        missing = moved_bytes(program, demands, network.sites)
        self.bytes: Floats = np.zeros(len(self.masks))
        for column, row in enumerate(missing):
            for position, much in enumerate(row):
                self.bytes += much * (self.masks[:, column] >> position & 1)
        self.bounds: Floats = np.zeros(len(self.masks))
        # By holders of the parts: the bytes of all that has the same targets, and those under every membership.
        self.groups: dict[tuple[tuple[int, ...], ...], list[tuple[float, Ints]]] = {}
        volumes: dict[tuple[tuple[tuple[int, ...], ...], tuple[int | str, ...]], float] = {}
        for requirement in program.requirements:
            demand = demands.get(requirement.aggregate)
            if demand is not None:
                key = (demand.shape.holders, requirement.targets)
                volumes[key] = volumes.get(key, 0.0) + demand.size
        for (holders, targets), volume in volumes.items():
            self.groups.setdefault(holders, []).append((volume, unions(program, self.masks, network.sites, targets)))
        rates = np.array(network.rates)
        rates[network.first_hbm :] = 0.0  # at first, only the network has a price
        self.learn(Prices(network, rates / rates.sum() / np.array(network.rates)))

    def pick(self) -> int:
        """The least bound; of those that hardly differ, the fewest bytes."""
        low = np.flatnonzero(self.bounds <= self.bounds.min() * (1 + 1e-6))
        return int(low[self.bytes[low].argmin()])

    def members(self, pick: int) -> dict[str, tuple[int, ...]]:
        return membership(self.program, self.masks[pick], self.network.sites)

    def learn(self, prices: Prices) -> None:
        """Raise the bounds by what the demands of every membership cost at these prices."""
        multicast = prices.multicast(self.network.sites)
        total: Floats = np.zeros(len(self.masks))
        for holders, uses in self.groups.items():
            if len(holders) > MOST_TERMINALS:
                continue  # its routes are not priced: its bound stays zero
            best = cheapest_sets(prices.reduction(holders), multicast)[0]
            for volume, masks in uses:
                total += volume * best[masks]
        self.bounds = np.maximum(self.bounds, total)
