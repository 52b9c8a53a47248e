"""What moves between the operators of a plan, as arrays: distinct blocks, who makes them, and who reads how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.core.tensor import TensorType
from einc.logical.plan import Candidate
from einc.machines.model import BYTES_PER_MS, Machine

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes per ms: into the site with the widest links at most, and over all links together.

    If links join some pairs only, bytes between others count once for every link that they cross: `near[d]` is how many
    sites are at most d links away from a site, itself included. What crosses a resource that several pairs share counts
    as the longest way, of len(near) - 1 links.
    """

    site: float
    total: float
    near: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True, eq=False)
class MadeBlocks:
    """The distinct blocks that a node makes of a tensor: bounds (blocks, rank), whether function f makes block b as
    `makers[b, f]`, and the number of partial copies of each, which is 1 for one that several sites compute whole.

    `needed[b, f]` says whether a reader of the block waits for that function: not if others compute it, too.
    """

    lower: Array
    upper: Array
    makers: Array
    copies: Array
    needed: Array


@dataclass(frozen=True, slots=True, eq=False)
class ReadEdge:
    """One tensor between a node, at a position among its outputs, and a reader of it.

    `size[b, g]` are the bytes of block b that function g reads, `read[b]` those that any of them reads, and
    `single[b, g]` those that no other function reads. `counted` is false for a tensor that the reader reads a second
    time.
    """

    producer: int
    position: int
    consumer: int
    blocks: MadeBlocks
    size: Array
    read: Array
    single: Array
    counted: bool


def measure_links(machine: Machine, sites: int) -> LinkRates:
    """All that enters a site crosses one of the resources that join another site with it, and so do all transfers."""
    routes = {pair: crossed for pair, crossed in machine.routes.items() if max(pair) < sites}
    narrowest = {pair: min(crossed, key=lambda r: (machine.resources[r].gbs, r)) for pair, crossed in routes.items()}

    def add_up(resources: Iterable[int]) -> float:
        return sum(machine.resources[r].gbs for r in set(resources)) * BYTES_PER_MS

    into = []
    for site in range(sites):
        arriving = [pair for pair in routes if pair[1] == site]
        if arriving:
            common = set.intersection(*(set(routes[pair]) for pair in arriving))
            into.append(min([add_up(narrowest[pair] for pair in arriving), *(add_up([r]) for r in common)]))
    if not into:
        return LinkRates(math.inf, math.inf)
    near = _count_near_sites(machine, sites)
    if len(near) < 3:
        return LinkRates(max(into), min(sum(into), add_up(narrowest.values())))
    shared = {r for crossed in routes.values() for r in crossed if len(machine.resources[r].pairs) > 1}
    unshared = {r for crossed in routes.values() for r in crossed} - shared
    return LinkRates(max(into), add_up(unshared) + (len(near) - 1) * add_up(shared), near)


def _count_near_sites(machine: Machine, sites: int) -> tuple[int, ...]:
    """How many sites are 0, 1, ... links away from a site at most, over links that a single pair has."""
    joined: list[set[int]] = [{site} for site in range(sites)]
    for resource in machine.resources:
        if len(resource.pairs) == 1 and max(resource.pairs[0]) < sites:
            source, target = resource.pairs[0]
            joined[source].add(target)
    near = [1]
    reached: list[set[int]] = [{site} for site in range(sites)]
    while near[-1] < sites:
        reached = [set().union(*(joined[neighbour] for neighbour in near_sites)) for near_sites in reached]
        near.append(max(map(len, reached)))
        if near[-1] == near[-2]:
            return (1,)  # some pairs are not joined at all
    return tuple(near) if all(len(near_sites) == sites for near_sites in reached) else (*near, sites)


def stack_bounds(blocks: Sequence[TensorType]) -> tuple[Array, Array]:
    return np.array([block.lower for block in blocks]), np.array([block.upper for block in blocks])


def group_blocks(candidate: Candidate, lower: Array, upper: Array) -> MadeBlocks:
    both = np.concatenate((lower, upper), axis=1)
    distinct, number = np.unique(both, axis=0, return_inverse=True)
    number = number.reshape(-1)
    makers = np.arange(len(distinct))[:, None] == np.tile(number, candidate.replicas)[None]
    copies = np.bincount(number, minlength=len(distinct))
    needed = makers & ((makers.sum(axis=1) == 1) | (copies > 1))[:, None]
    rank = lower.shape[1]
    return MadeBlocks(distinct[:, :rank], distinct[:, rank:], makers, copies, needed)


def connect(
    producer: tuple[int, int],
    consumer: int,
    blocks: MadeBlocks,
    lower: Array,
    upper: Array,
    itemsize: int,
    *,
    counted: bool,
) -> ReadEdge:
    """The edge to functions that read from `lower` to `upper`, both (functions, rank)."""
    first, last = np.maximum(blocks.lower[:, None], lower[None]), np.minimum(blocks.upper[:, None], upper[None])
    size = np.maximum(last - first, 0).prod(axis=2, dtype=np.float64)
    read = size.max(axis=1)
    for b in np.flatnonzero(blocks.copies > 1):
        boxes = np.unique(np.concatenate((first[b], last[b]), axis=1)[size[b] > 0], axis=0)
        read[b] = max(read[b], _measure_disjoint(*np.split(boxes, 2, axis=1)))
    shared = np.minimum(last[:, :, None], last[:, None]) - np.maximum(first[:, :, None], first[:, None])
    alone = (shared > 0).all(axis=3).sum(axis=2) == 1
    sizes = size * itemsize
    return ReadEdge(*producer, consumer, blocks, sizes, read * itemsize, np.where(alone, sizes, 0.0), counted)


def _measure_disjoint(lower: Array, upper: Array) -> float:
    """The elements of different boxes, or 0 if any two overlap."""
    shared = np.minimum(upper[:, None], upper[None]) - np.maximum(lower[:, None], lower[None])
    overlaps = (shared > 0).all(axis=2)
    disjoint = int(overlaps.sum()) == len(lower)
    return float((upper - lower).prod(axis=1, dtype=np.float64).sum()) if disjoint else 0.0
