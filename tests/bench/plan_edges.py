"""What moves between the operators of a plan, as arrays: distinct blocks, who makes them, and who reads how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.core.tensor import TensorType
from einc.logical.plan import Candidate
from einc.machines.model import BYTES_PER_MS, Machine

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes per ms: into the site with the widest links at most, and into all sites together."""

    site: float
    total: float


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

    `size[b, g]` are the bytes of block b that function g reads, `read[b]` those that any of them reads. `counted` is
    false for a tensor that the reader reads a second time.
    """

    producer: int
    position: int
    consumer: int
    blocks: MadeBlocks
    size: Array
    read: Array
    counted: bool


def measure_links(machine: Machine, sites: int) -> LinkRates:
    """All that enters a site crosses one of the resources that join another site with it."""
    into = []
    for site in range(sites):
        routes = [crossed for (a, b), crossed in machine.routes.items() if b == site and a < sites]
        if routes:
            single = sum(min(machine.resources[r].gbs for r in crossed) for crossed in routes)
            common = set.intersection(*map(set, routes))
            into.append(min([single, *(machine.resources[r].gbs for r in common)]) * BYTES_PER_MS)
    return LinkRates(max(into, default=math.inf), sum(into) if into else math.inf)


def stack_bounds(blocks: Sequence[TensorType]) -> tuple[Array, Array]:
    return np.array([one.lower for one in blocks]), np.array([one.upper for one in blocks])


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
    return ReadEdge(*producer, consumer, blocks, size * itemsize, read * itemsize, counted)


def _measure_disjoint(lower: Array, upper: Array) -> float:
    """The elements of different boxes, or 0 if any two overlap."""
    shared = np.minimum(upper[:, None], upper[None]) - np.maximum(lower[:, None], lower[None])
    overlaps = (shared > 0).all(axis=2)
    disjoint = int(overlaps.sum()) == len(lower)
    return float((upper - lower).prod(axis=1, dtype=np.float64).sum()) if disjoint else 0.0
