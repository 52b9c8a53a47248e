"""Memberships of the partitions that a preamble declares by size, chosen for the least time of the fullest resource.

Prices on the resources give every membership a lower bound, all of them at once from one table per demand. Routes are
allocated for the membership of the least bound; their prices raise the bounds of others, and so on. Once no bound lies
below the best time found, that membership is the best of all. Among equal bounds the fewest bytes go first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from einc.exchange.language.program import Program, Requirement
from einc.exchange.memberships import (
    close_partitions,
    compute_target_masks,
    decode_masks,
    enumerate_masks,
    is_open,
    list_free_sites,
)
from einc.exchange.network import Network
from einc.exchange.synthesis.allocation import (
    OPTIMALITY_GAP,
    PendingAmounts,
    RouteAmounts,
    allocate_greedily,
    allocate_routes,
    sum_volumes,
)
from einc.exchange.synthesis.demands import MAX_TERMINALS, Demand, find_demands, group_by_shape
from einc.exchange.synthesis.trees import PathPrices, price_target_sets
from einc.machines.site_counts import MANY_SITES
from einc_runtime.dtypes import Floats, Ints

MAX_ALLOCATED = 24
"""Memberships for which routes are allocated."""

_MAX_BOUND_PART = 0.98
"""A membership is not tried if its bound is more than this part of the best time."""

EQUAL = 1 + OPTIMALITY_GAP
"""Times within this factor of each other count as equal, as linear programs are not solved more exactly."""

_MAX_LP_SIZE = 30_000
_MAX_LP_SHAPES = 600
"""With more shapes, whose parts and targets times sites are more than that, no linear program chooses the routes."""


def place(
    program: Program,
    network: Network,
    slack: float,
    stop: Callable[[], bool] = lambda: False,
    max_ms: float = np.inf,
    min_ms: float = 0.0,
) -> tuple[Program, tuple[Demand, ...], RouteAmounts]:
    """The program with the best membership found, its demands, and their routes.

    The search ends early if no membership can take less than `max_ms`. The caller knows that none takes less than
    `min_ms`.
    """
    if not is_open(program):
        demands = find_demands(program)
        return program, demands, _allocate(demands, network, slack, np.inf, stop, min_ms).finish()
    if len(network.sites) > MANY_SITES:
        placed = close_partitions(program, choose_fewest_bytes(program, network.sites))
        demands = find_demands(placed)
        return placed, demands, _allocate(demands, network, slack, np.inf, stop).finish()
    search = _MembershipBounds(program, network)
    best: tuple[Program, tuple[Demand, ...], PendingAmounts] | None = None
    for _ in range(MAX_ALLOCATED):
        pick = search.pick()
        if best is not None:
            fullest = best[2].fullest_ms
            if stop() or search.bounds[pick] >= min(fullest * _MAX_BOUND_PART, max_ms) or fullest <= min_ms * EQUAL:
                break
        trial = close_partitions(program, search.members(pick))
        demands = find_demands(trial)
        draft = _allocate(demands, network, slack, max_ms if best is None else min(max_ms, best[2].fullest_ms), stop)
        if best is None or draft.fullest_ms < best[2].fullest_ms:
            best = trial, demands, draft
        search.learn(PathPrices(network, draft.price / np.array(network.rates)))
        search.bounds[pick] = np.inf
    assert best is not None, "there is at least one membership"
    return best[0], best[1], best[2].finish()


def _allocate(
    demands: Sequence[Demand],
    network: Network,
    slack: float,
    cutoff: float,
    stop: Callable[[], bool],
    known_ms: float = 0.0,
) -> PendingAmounts:
    if not demands:
        return _wrap(RouteAmounts({}, 0.0), network)
    volumes = sum_volumes(group_by_shape(demands), [demand.size for demand in demands])
    size = sum(len(shape.holders) + len(shape.targets) for shape in volumes) * len(network.sites)
    if size > _MAX_LP_SIZE and len(volumes) > _MAX_LP_SHAPES:
        return _wrap(allocate_greedily(volumes, network), network)
    return allocate_routes(volumes, network, slack, cutoff, stop, known_ms)


def _wrap(amounts: RouteAmounts, network: Network) -> PendingAmounts:
    """A solution that was found without prices."""
    return PendingAmounts(amounts.fullest_ms, np.zeros(len(network.rates)), lambda: amounts)


class _MembershipBounds:
    """All memberships, and a lower bound on the time of each."""

    def __init__(self, program: Program, network: Network) -> None:
        self.program, self.network = program, network
        demands = find_demands_anywhere(program, network.sites)
        self.masks = enumerate_masks(program, network.sites)
        missing = tabulate_moved_bytes(program, demands, network.sites)
        self.bytes: Floats = np.zeros(len(self.masks))
        for column, row in enumerate(missing):
            for position, moved in enumerate(row):
                self.bytes += moved * (self.masks[:, column] >> position & 1)
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
            self.groups.setdefault(holders, []).append(
                (volume, compute_target_masks(program, self.masks, network.sites, targets))
            )
        rates = np.array(network.rates)
        rates[network.first_hbm :] = 0.0  # at first, only the network has a price
        self.learn(PathPrices(network, rates / rates.sum() / np.array(network.rates)))

    def pick(self) -> int:
        """The membership of the least bound; among bounds that hardly differ, the one with the fewest bytes."""
        low = np.flatnonzero(self.bounds <= self.bounds.min() * (1 + 1e-6))
        return int(low[self.bytes[low].argmin()])

    def members(self, pick: int) -> dict[str, tuple[int, ...]]:
        return decode_masks(self.program, self.masks[pick], self.network.sites)

    def learn(self, prices: PathPrices) -> None:
        """Raise the bounds to what the demands of every membership cost at these prices."""
        multicast = prices.get_multicast(self.network.sites)
        total: Floats = np.zeros(len(self.masks))
        for holders, group in self.groups.items():
            if len(holders) > MAX_TERMINALS:
                continue  # their routes are not priced: they add nothing to the bound
            best = price_target_sets(prices.get_reduction(holders), multicast)[0]
            for volume, masks in group:
                total += volume * best[masks]
        self.bounds = np.maximum(self.bounds, total)


def find_demands_anywhere(program: Program, sites: Sequence[int]) -> dict[tuple[str, ...], Demand]:
    """The demand of every required aggregate as if all sites needed it and none had it."""
    everywhere = dict.fromkeys(Requirement(entry.aggregate, tuple(sites)) for entry in program.requirements)
    bare = dataclasses.replace(program, partitions=(), requirements=tuple(everywhere))
    return {demand.aggregate: demand for demand in find_demands(bare)}


def tabulate_moved_bytes(program: Program, demands: Mapping[tuple[str, ...], Demand], sites: Sequence[int]) -> Floats:
    """Bytes that must come to a site if an open partition has it, part by part: (open partitions, sites)."""
    names = [partition.name for partition in program.partitions if partition.members is None]
    number = {name: position for position, name in enumerate(names)}
    at = {site: position for position, site in enumerate(sites)}
    missing: Floats = np.zeros((len(names), len(sites)))
    for requirement in program.requirements:
        demand = demands.get(requirement.aggregate)
        for target in requirement.targets if demand else ():
            if isinstance(target, str) and target in number and demand is not None:
                row = missing[number[target]]
                for holders in demand.shape.holders:
                    row += demand.size
                    row[[at[site] for site in holders]] -= demand.size
    return missing


def choose_fewest_bytes(program: Program, sites: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The membership that moves the fewest bytes. Raises ProgramError where sites do not suffice."""
    from lap import lapjv

    open_, free = list_free_sites(program, sites)
    columns = [position for position, site in enumerate(sites) if site in free]
    missing = tabulate_moved_bytes(program, find_demands_anywhere(program, sites), sites)[:, columns]
    slots = [row for row, partition in enumerate(open_) for _ in range(partition.size)]
    _, chosen, _ = lapjv(missing[slots], extend_cost=True)
    members: dict[str, list[int]] = {partition.name: [] for partition in open_}
    for row, column in zip(slots, chosen, strict=True):
        members[open_[row].name].append(sites[columns[int(column)]])
    return {name: tuple(sorted(sites)) for name, sites in members.items()}
