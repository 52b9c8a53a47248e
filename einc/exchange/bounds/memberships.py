"""The least bound over all memberships of the partitions that a program declares by size.

First, cheap bounds are computed for all memberships at once. Then memberships are bounded one by one with everything:
those of the least cheap bound first, and of these the ones that send the fewest bytes. Once the cheap bound of the next
membership is no less than the least full bound, that one is the answer. A search that ends early falls back on the
cheap bounds of the memberships that are left. Memberships that differ in names alone, in equal blocks that trade
places, or by a symmetry of the machine are bounded once.

Symmetries are permutations of the sites under which the network stays the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from einc.exchange.bounds.closed_form import choose_disjoint_holders
from einc.exchange.bounds.demands import Certificate, DemandSet, DemandTable
from einc.exchange.language.program import Program
from einc.exchange.memberships import compute_target_masks, decode_masks, enumerate_masks
from einc.exchange.network import Network, list_sites, make_mask
from einc.machines.site_counts import MANY_SITES
from einc_runtime.dtypes import Floats, Ints

MAX_TRIED = 100
"""Memberships that are bounded one by one before the search ends."""

SETS_AT_ONCE = 8
"""Sets of sites after which memberships that are bounded well enough are left out: the sets that promise most are
often those of single sites."""

_BOUND_DIGITS = 9
"""Bounds that differ only in later digits count as equal."""

BoundDemands = Callable[[DemandSet, bool], Certificate]
"""Computes the bound for demands; the flag says whether it may also solve the linear program."""


def bound_over_memberships(
    program: Program, network: Network, bound_demands: BoundDemands, stop: Callable[[], bool], enough_ms: float
) -> Certificate:
    """The certificate of the membership with the least bound. The search ends early when `stop` says so, or where all
    bounds are at least `enough_ms`.

    On more than MANY_SITES sites the certificate is one that holds for any membership, and it names none.
    """
    table = DemandTable(program)
    if len(network.sites) > MANY_SITES:
        return bound_demands(table.list_demands(program.partitions), False)
    masks = _drop_equivalent(program, table, enumerate_masks(program, network.sites))
    bounds, sent = compute_quick_bounds(program, table, masks, network, enough_ms)
    order = np.lexsort((sent, (bounds / max(float(bounds.max()), 1e-300)).round(_BOUND_DIGITS)))
    best: Certificate | None = None
    first: DemandSet | None = None
    classes: set[object] = set()
    for tried, pick in enumerate(order):
        if best is not None and bounds[pick] >= min(best.bound_ms, enough_ms) * (1 - 1e-9):
            return best
        chosen = decode_masks(program, masks[pick], network.sites)
        members = {partition.name: chosen.get(partition.name, partition.members) for partition in program.partitions}
        partitions = [
            dataclasses.replace(partition, members=members[partition.name]) for partition in program.partitions
        ]
        demands = table.list_demands(partitions)
        ended = tried >= MAX_TRIED or stop()
        if first is None:
            first = demands
        elif not ended:
            if not classes:  # of the first one, which is often the last
                classes.add(_find_class(first, network))
            if (equivalent := _find_class(demands, network)) in classes:
                continue
            classes.add(equivalent)
        certificate = dataclasses.replace(bound_demands(demands, not ended), memberships=tuple(chosen.items()))
        if ended:
            left = float(bounds[order[tried:]].min())
            return dataclasses.replace(certificate, bound_ms=min(certificate.bound_ms, left))
        if best is None or certificate.bound_ms < best.bound_ms:
            best = certificate
    assert best is not None, "there is at least one membership"
    return best


def _find_class(demands: DemandSet, network: Network) -> object:
    """A value that is equal for demands with the same bounds."""
    return demands if demands.overlapping else find_symmetry_class(demands, network)


def _drop_equivalent(program: Program, table: DemandTable, masks: Ints) -> Ints:
    """Memberships without those in which indistinguishable partitions have traded places."""
    if table.list_demands(program.partitions).overlapping:
        return masks
    sizes: dict[tuple[frozenset[str], object], tuple[int, int]] = {}
    for demand in table.family:
        key = (
            frozenset(demand.partitions),
            (demand.holders, demand.complete, demand.formed_at, demand.parts, demand.sites),
        )
        size, largest = sizes.get(key, (0, 0))
        sizes[key] = size + demand.size, max(largest, demand.largest)
    open_ = [partition for partition in program.partitions if partition.members is None]
    for (i, partition), (j, other_partition) in itertools.combinations(enumerate(open_), 2):
        trade = {partition.name: other_partition.name, other_partition.name: partition.name}
        traded = {
            (frozenset([trade.get(name, name) for name in names]), demand_key): totals
            for (names, demand_key), totals in sizes.items()
        }
        if partition.size == other_partition.size and sizes == traded:
            # Of two memberships that differ by the trade, the one with the smaller mask first is kept.
            masks = masks[masks[:, i] < masks[:, j]]
    return masks


def compute_quick_bounds(
    program: Program, table: DemandTable, masks: Ints, network: Network, enough_ms: float = math.inf
) -> tuple[Floats, Floats]:
    """For every row of `enumerate_masks` a lower bound in ms, and the bytes that have to be sent at least. Rows whose
    bound is at least `enough_ms` may have a higher one.

    The bounds are those by cuts, combining and counting. What has to enter a set of sites depends only on which open
    partitions have members in it, and the number of transfers only on the set of targets: so tables over sets give the
    bounds of all memberships. Of overlapping aggregates only the disjoint ones of the family count; the bounds stay
    sound.
    """
    sent = _count_sent_bytes(program, table, masks, network)
    bounds = np.zeros(len(masks))
    if sent.any():
        milliseconds = sent / network.total_capacity if network.total_capacity else np.inf
        bounds = np.where(sent > 0, milliseconds + network.transfer_latency, 0.0)
    set_bounds = _tabulate_set_bounds(program, table, network)
    promises = 1 + np.argsort(-set_bounds[1:].max(axis=1), kind="stable")  # all sets but the empty one
    rows = np.arange(len(masks))  # the memberships that may still be below `enough_ms`
    for start in range(0, len(promises), SETS_AT_ONCE):
        rows = rows[bounds[rows] < enough_ms * (1 - 1e-9)]
        if not len(rows):
            break
        left = masks[rows]
        for sites in promises[start : start + SETS_AT_ONCE]:
            # Which open partitions have members in the set, as bits.
            inside = np.packbits(left & sites != 0, axis=1, bitorder="little")[:, 0]
            bounds[rows] = np.maximum(bounds[rows], set_bounds[sites].take(inside))
    return bounds, sent


def _count_sent_bytes(program: Program, table: DemandTable, masks: Ints, network: Network) -> Floats:
    """The bytes that transfers send at least, by the argument of the counting bound."""
    by_targets: dict[tuple[int, tuple[str, ...]], Floats] = {}  # by sites and partitions: the bytes, by set of targets
    for demand in table.family:
        disjoint = (0,) if demand.complete else choose_disjoint_holders(demand.holders)
        holders = tuple(_mask_positions(holder, network) for holder in disjoint)
        transfers = _tabulate_transfers(holders, _mask_positions(demand.complete, network), len(network.sites))
        key = demand.sites, demand.partitions
        by_targets[key] = by_targets.get(key, 0.0) + demand.size * transfers
    sent = np.zeros(len(masks))
    for (sites, partitions), sent_bytes in by_targets.items():
        fixed_sites = [site for site in list_sites(sites) if site in network.sites]
        sent += sent_bytes.take(compute_target_masks(program, masks, network.sites, (*fixed_sites, *partitions)))
    return sent


@lru_cache(maxsize=1 << 10)
def _tabulate_transfers(disjoint: tuple[int, ...], complete: int, sites: int) -> Floats:
    """By set of targets, how often a copy is sent: `count_transfers` for all sets, given disjoint sets of holders."""
    targets = np.arange(1 << sites) & ~complete
    count: Floats = (targets[:, None] >> np.arange(sites) & 1).sum(1).astype(np.float64)
    if complete or len(disjoint) == 1:
        return count
    shared = np.logical_or.reduce([targets & holder != 0 for holder in disjoint])
    return np.where(count > 0, count + (len(disjoint) - 1) - shared, 0.0)


def _tabulate_set_bounds(program: Program, table: DemandTable, network: Network) -> Floats:
    """The time for what has to enter a set of sites, or to be combined there: (sets of sites, sets of partitions)."""
    family = table.family
    sets = np.arange(1 << len(network.sites))
    names = [partition.name for partition in program.partitions if partition.members is None]
    known = {partition.name: make_mask(partition.members or ()) for partition in program.partitions}
    size = np.array([float(demand.size) for demand in family])
    holders = [tuple(_mask_positions(mask, network) for mask in demand.holders) for demand in family]
    lacking = np.array([_find_lacking_sets(masks, len(sets)) for masks in holders]).T
    complete = np.array([_mask_positions(demand.formed_at, network) for demand in family], np.int64)
    forming = np.array([demand.holders != (demand.formed_at,) and not demand.overlapping for demand in family])
    combined = ~lacking & forming & (sets[:, None] & complete == 0)
    targets = [demand.sites | sum(known[name] for name in demand.partitions) for demand in family]
    fixed = np.array([_mask_positions(mask, network) for mask in targets])
    asking = np.array([sum(1 << names.index(name) for name in demand.partitions if name in names) for demand in family])
    asked_by_fixed = sets[:, None] & fixed != 0
    asked_by_partition = (np.arange(1 << len(names))[:, None] & asking != 0).T.astype(np.float64)

    def count_bytes(chosen: Any) -> Floats:
        always: Floats = (chosen & asked_by_fixed) @ size
        total: Floats = always[:, None] + (size * (chosen & ~asked_by_fixed)) @ asked_by_partition
        return total

    enter = count_bytes(lacking)
    named = [_mask_sites(int(positions), network) for positions in sets]
    capacity = np.array([network.entering(mask)[0] for mask in named])[:, None]
    memory = np.array([sum([network.hbm_rate(site) for site in list_sites(mask)]) for mask in named])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cut = np.where(enter > 0, enter / capacity + network.transfer_latency, 0.0)
        bounds: Floats = np.maximum(cut, (enter + count_bytes(combined)) / (memory / 3 + capacity))
    bounds[-1] = sum(
        [
            (demand.parts + 1) * demand.size
            for demand in family
            if demand.holders != (demand.formed_at,) and not demand.formed_at
        ]
    )
    bounds[-1] /= memory[-1]
    return bounds


@lru_cache(maxsize=1 << 10)
def _find_lacking_sets(holders: tuple[int, ...], count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the first `count` sets of sites have no holder of some atom."""
    sets = np.arange(count)
    lacking: np.ndarray[Any, np.dtype[np.bool_]] = np.logical_or.reduce([sets & holder == 0 for holder in holders])
    return lacking


def _mask_positions(mask: int, network: Network) -> int:
    """A set of sites as a set of positions in the network's sites."""
    return sum([1 << position for position, site in enumerate(network.sites) if mask >> site & 1])


def _mask_sites(mask: int, network: Network) -> int:
    """A set of positions in the network's sites as a set of sites."""
    return sum([1 << site for position, site in enumerate(network.sites) if mask >> position & 1])


MAX_SYMMETRIES = 64
"""Symmetries that are used; a switch has one for every permutation of its sites, which is too many."""

MAX_TRIES = 2000
"""Sites tried as images of others. A network that is regular except for its last sites would take too long."""


@lru_cache(maxsize=4)
def find_symmetries(network: Network) -> tuple[dict[int, int], ...]:
    """Permutations of the sites, the identity first, that map routes to routes over resources of the same capacity.

    If there are many, or the search takes long, only some are returned.
    """
    return tuple(itertools.islice(_extend(network, {}, {}, itertools.count()), MAX_SYMMETRIES))


def _extend(
    network: Network, image: dict[int, int], resources: dict[int, int], tries: Iterator[int]
) -> Iterator[dict[int, int]]:
    """All ways to map the remaining sites, if the first ones and the resources between them are mapped like this."""
    if len(image) == len(network.sites):
        yield image
        return
    site = network.sites[len(image)]
    for candidate in network.sites:
        if candidate not in image.values() and network.hbm_rate(candidate) == network.hbm_rate(site):
            if next(tries) >= MAX_TRIES:
                return
            larger = {**image, site: candidate}
            mapped = _map_resources(network, site, larger, resources)
            if mapped is not None:
                yield from _extend(network, larger, mapped, tries)


def _map_resources(
    network: Network, site: int, image: dict[int, int], resources: dict[int, int]
) -> dict[int, int] | None:
    """The images of resources, those between a site and the mapped sites included; None if the routes do not fit."""
    mapped = dict(resources)
    for peer in image:
        for pair in ((site, peer), (peer, site)):
            route = network.paths.get(pair, ())
            onto = network.paths.get((image[pair[0]], image[pair[1]]), ())
            if len(route) != len(onto):
                return None
            for resource, image_resource in zip(route, onto, strict=True):
                if (
                    mapped.setdefault(resource, image_resource) != image_resource
                    or network.rates[resource] != network.rates[image_resource]
                ):
                    return None
    return mapped if len({*mapped.values()}) == len(mapped) else None


def find_symmetry_class(demands: DemandSet, network: Network) -> object:
    """A value that is equal for demands that a symmetry maps onto each other, and for no others; names do not matter.

    No demand may be in an overlap group, or wait for open partitions.
    """

    def apply(symmetry: dict[int, int]) -> tuple[tuple[Any, ...], ...]:
        masks: dict[int, int] = {}

        def map_mask(mask: int) -> int:
            if mask not in masks:
                masks[mask] = sum([1 << symmetry[site] for site in list_sites(mask)])
            return masks[mask]

        def map_all(holders: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted(map(map_mask, holders)))

        family = [
            (demand.size, map_all(demand.holders), map_mask(demand.targets), map_mask(demand.complete), demand.largest)
            for demand in demands.family
        ]
        forming = [
            (
                demand.size,
                map_all(demand.holders),
                map_mask(demand.targets),
                map_mask(demand.formed_at),
                demand.parts,
                demand.largest,
            )
            for demand in demands.forming
        ]
        return tuple(sorted(family)), tuple(sorted(forming))

    return min(map(apply, find_symmetries(network)))
