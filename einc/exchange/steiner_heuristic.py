"""Trees that grow by the nearest end, under prices of paths: many ends are joined cheaply, though not always optimally.

This is the path heuristic for Steiner trees (Takahashi and Matsuyama).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Floats, Ints


def find_cheapest_paths(edge: Floats) -> tuple[Floats, Ints]:
    """The cheapest paths between all sites, from the price of every pair: prices, and the next site on the way."""
    n = len(edge)
    hop: Ints = np.tile(np.arange(n), (n, 1))
    for middle in range(n):
        through = edge[:, middle, None] + edge[None, middle, :]
        better = through < edge - 1e-18
        edge = np.where(better, through, edge)
        hop = np.where(better, hop[:, middle, None], hop)
    return edge, hop


def grow_tree(
    starts: Sequence[int], ends: Sequence[Sequence[int]], distance: Floats, hop: Ints, lag: float, inwards: bool
) -> list[tuple[int, int]]:
    """The hops of a tree that joins one site of each of `ends` with one of `starts`, in the order of their growth.

    Copies go from the starts to the ends, or `inwards` from the ends to the starts.
    """
    to = distance.T if inwards else distance
    count = len(distance)
    key: Floats = np.full(count, np.inf)
    origin = np.zeros(count, np.int64)
    paid: Floats = np.full(count, np.inf)

    def take_in(site: int, cost: float) -> None:
        paid[site] = cost
        arrival = lag * cost + to[site]
        better = arrival < key
        key[better] = arrival[better]
        origin[better] = site

    groups: dict[int, list[int]] = {}
    open_ends = np.zeros(count, np.int64)  # of how many ends that are not joined yet a site is one
    for group, sites in enumerate(ends):
        open_ends[list(sites)] += 1
        for site in sites:
            groups.setdefault(site, []).append(group)
    left = dict.fromkeys(range(len(ends)))

    def join(site: int, cost: float) -> None:
        take_in(site, cost)
        for group in groups.get(site, ()):
            if group in left:
                del left[group]
                open_ends[list(ends[group])] -= 1

    for start in starts:
        join(start, 0.0)
    hops: list[tuple[int, int]] = []
    while left:
        end = int(np.where(open_ends > 0, key, np.inf).argmin())
        at = int(origin[end])
        way = [end] if inwards else [at]
        while way[-1] != (at if inwards else end):
            way.append(int(hop[way[-1], at if inwards else end]))
        if inwards:
            way.reverse()
        for before, site in itertools.pairwise(way):
            if not np.isfinite(paid[site]):
                hops.append((site, before) if inwards else (before, site))
                join(site, paid[before] + float(to[before, site]))
    return hops
