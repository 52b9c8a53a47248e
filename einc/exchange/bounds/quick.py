"""The bounds by cuts, combining and counting of all memberships of open partitions at once.

What has to enter a set of sites depends on which open partitions have members in it, and how many transfers something
takes on the set of its targets: so tables over sets tell it for all memberships. Of aggregates that overlap, only the
disjoint ones of the family count, which makes the bounds no less sound.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from einc.exchange.bounds.counting import disjoint
from einc.exchange.bounds.outline import Outline
from einc.exchange.language.program import Program
from einc.exchange.memberships import Ints, unions
from einc.exchange.network import Network, list_sites, make_mask

Floats = np.ndarray[Any, np.dtype[np.float64]]


def quick_bounds(program: Program, outline: Outline, masks: Ints, network: Network) -> tuple[Floats, Floats]:
    """For every row of `all_masks` a lower bound in ms, and the bytes that have to be sent at least."""
    sent = _sent(program, outline, masks, network)
    bounds = np.zeros(len(masks))
    if sent.any():
        bounds = np.where(
            sent > 0,
            (sent / network.total_capacity if network.total_capacity else np.inf) + network.transfer_latency,
            0.0,
        )
    table = _table(program, outline, network)
    inside: list[Any] = [0]  # by set of sites: which open partitions have members in it, as bits
    for sites in range(1, len(table)):
        rest = sites & sites - 1
        if rest:
            inside.append(inside[rest] | inside[sites ^ rest])
        else:
            inside.append(np.packbits(masks & sites != 0, axis=1, bitorder="little")[:, 0])
        np.maximum(bounds, table[sites].take(inside[sites]), out=bounds)
    return bounds, sent


def _sent(program: Program, outline: Outline, masks: Ints, network: Network) -> Floats:
    """The bytes that take part in transfers, as the counting bound has it."""
    tables: dict[tuple[int, tuple[str, ...]], Floats] = {}  # by who needs it: the bytes, by the set of targets
    for one in outline.family:
        packed = (0,) if one.complete else disjoint(one.holders)
        transfers = _transfers(
            tuple(_placed(holder, network) for holder in packed), _placed(one.complete, network), len(network.sites)
        )
        wanted = one.sites, one.partitions
        tables[wanted] = tables.get(wanted, 0.0) + one.size * transfers
    sent = np.zeros(len(masks))
    for (sites, partitions), table in tables.items():
        own = [site for site in list_sites(sites) if site in network.sites]
        sent += table.take(unions(program, masks, network.sites, (*own, *partitions)))
    return sent


@lru_cache(maxsize=1 << 10)
def _transfers(packed: tuple[int, ...], complete: int, sites: int) -> Floats:
    """By the set of targets, how often a copy is sent: `counting.transfers`, with the holders packed."""
    targets = np.arange(1 << sites) & ~complete
    count: Floats = (targets[:, None] >> np.arange(sites) & 1).sum(1).astype(np.float64)
    if complete or len(packed) == 1:
        return count
    shared = np.logical_or.reduce([targets & holder != 0 for holder in packed])
    return np.where(count > 0, count + (len(packed) - 1) - shared, 0.0)


def _table(program: Program, outline: Outline, network: Network) -> Floats:
    """What has to enter a set of sites, or to be combined there, in ms: (sets of sites, sets of open partitions)."""
    family = outline.family
    sets = np.arange(1 << len(network.sites))
    names = [one.name for one in program.partitions if one.members is None]
    known = {one.name: make_mask(one.members or ()) for one in program.partitions}
    size = np.array([float(one.size) for one in family])
    lacking = np.array([_lacking(tuple(_placed(own, network) for own in one.holders), len(sets)) for one in family]).T
    whole = np.array([_placed(one.whole, network) for one in family], np.int64)
    forming = np.array([one.holders != (one.whole,) and not one.tangled for one in family])
    local = ~lacking & forming & (sets[:, None] & whole == 0)
    fixed = np.array([_placed(one.sites | sum(known[name] for name in one.partitions), network) for one in family])
    asking = np.array([sum(1 << names.index(name) for name in one.partitions if name in names) for one in family])
    here = sets[:, None] & fixed != 0
    there = (np.arange(1 << len(names))[:, None] & asking != 0).T

    def needed(chosen: Any) -> Floats:
        total: Floats = ((chosen & here) @ size)[:, None] + (size * (chosen & ~here)) @ there
        return total

    enter = needed(lacking)
    named = [_named(int(own), network) for own in sets]
    capacity = np.array([network.entering(own)[0] for own in named])[:, None]
    memory = np.array([sum([network.hbm_rate(site) for site in list_sites(own)]) for own in named])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cut = np.where(enter > 0, enter / capacity + network.transfer_latency, 0.0)
        table: Floats = np.maximum(cut, (enter + needed(local)) / (memory / 3 + capacity))
    table[-1] = sum([(one.parts + 1) * one.size for one in family if one.holders != (one.whole,) and not one.whole])
    table[-1] /= memory[-1]
    return table


@lru_cache(maxsize=1 << 10)
def _lacking(holders: tuple[int, ...], count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Of the first sets of sites, which have no holder of some atom."""
    sets = np.arange(count)
    found: np.ndarray[Any, np.dtype[np.bool_]] = np.logical_or.reduce([sets & holder == 0 for holder in holders])
    return found


def _placed(mask: int, network: Network) -> int:
    """A set of sites as one of positions in the network."""
    return sum([1 << position for position, site in enumerate(network.sites) if mask >> site & 1])


def _named(mask: int, network: Network) -> int:
    """A set of positions as one of sites."""
    return sum([1 << site for position, site in enumerate(network.sites) if mask >> position & 1])
