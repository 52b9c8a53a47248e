"""The levels of a machine: which sites lie close together, as the GPUs of a node do, and their places there.

At each bandwidth that a pair of sites has, sites belong together if a chain of pairs of at least this bandwidth joins
them. A network of nodes has two levels: nodes, and everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from einc.exchange.language.exact_cover import find_root
from einc.machines.model import Pair
from einc_runtime.dtypes import Ints

Clusters = tuple[tuple[int, ...], ...]


def find_levels(widths: Mapping[Pair, float], sites: Sequence[int]) -> tuple[Clusters, ...]:
    """Divisions of the sites into clusters, from single sites to all that is joined; each joins clusters of the last.

    `widths` has the bandwidth of every pair that can talk. Clusters and their sites are in ascending order.
    """
    parent = {site: site for site in sites}
    levels: list[Clusters] = [tuple((site,) for site in sites)]
    by_width: dict[float, list[Pair]] = {}
    for pair, width in widths.items():
        by_width.setdefault(width, []).append(pair)
    for width in sorted(by_width, reverse=True):
        for a, b in by_width[width]:
            kept_root, merged_root = sorted((find_root(parent, a), find_root(parent, b)))
            parent[merged_root] = kept_root
        clusters: dict[int, list[int]] = {}
        for site in sites:
            clusters.setdefault(find_root(parent, site), []).append(site)
        level = tuple(map(tuple, clusters.values()))
        if len(level) < len(levels[-1]):
            levels.append(level)
        if len(level) == 1:
            break
    return tuple(levels)


def compute_offsets(levels: Sequence[Clusters], sites: Sequence[int]) -> Ints:
    """For every two sites (by number) how far the second one's place is from the first one's: (sites, sites).

    A site's place has a digit for each level: the number of its cluster in the next larger one. Differences are taken
    digit by digit, around the larger cluster, and the smallest cluster's digit counts most. So sites at one place of
    two nodes are near each other, and all sites have another one at each distance if clusters are alike.
    """
    number = {site: position for position, site in enumerate(sites)}
    offsets: Ints = np.zeros((len(sites), len(sites)), np.int64)
    for small, large in itertools.pairwise(levels):
        around = {site: k for k, cluster in enumerate(large) for site in cluster}
        digit: Ints = np.zeros(len(sites), np.int64)
        count = [0] * len(large)
        for cluster in small:
            where = around[cluster[0]]
            digit[[number[site] for site in cluster]] = count[where]
            count[where] += 1
        size = max(count)
        offsets = offsets * size + (digit[None, :] - digit[:, None]) % size
    return offsets
