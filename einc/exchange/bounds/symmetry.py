"""Symmetries: sites that can be exchanged for each other without anything changing for the network.

Demands that a symmetry maps onto each other have the same bounds, so that one of them is enough to be bounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from einc.exchange.bounds.demand import Demands
from einc.exchange.network import Network, list_sites

MOST_SYMMETRIES = 64
"""Of a switch all permutations of its sites are some: more than are of use."""

MOST_TRIES = 2000
"""Sites tried as another's image. Where a network looks regular but for its last sites, a full search takes forever."""


@lru_cache(maxsize=4)
def symmetries(network: Network) -> tuple[dict[int, int], ...]:
    """Permutations of the sites, the identity first, that map routes to routes over resources of the same capacity.

    Some of them, where there are many or finding them takes long.
    """
    return tuple(itertools.islice(_extended(network, {}, {}, itertools.count()), MOST_SYMMETRIES))


def _extended(
    network: Network, image: dict[int, int], resources: dict[int, int], tries: Iterator[int]
) -> Iterator[dict[int, int]]:
    """All ways to map the remaining sites, if the first ones and the resources between them are mapped like this."""
    if len(image) == len(network.sites):
        yield image
        return
    site = network.sites[len(image)]
    for other in network.sites:
        if other not in image.values() and network.hbm_rate(other) == network.hbm_rate(site):
            if next(tries) >= MOST_TRIES:
                return
            larger = {**image, site: other}
            mapped = _mapped(network, site, larger, resources)
            if mapped is not None:
                yield from _extended(network, larger, mapped, tries)


def _mapped(network: Network, site: int, image: dict[int, int], resources: dict[int, int]) -> dict[int, int] | None:
    """The resources' images with those between a site and others that are mapped; None where the routes do not fit."""
    mapped = dict(resources)
    for other in image:
        for pair in ((site, other), (other, site)):
            route = network.paths.get(pair, ())
            onto = network.paths.get((image[pair[0]], image[pair[1]]), ())
            if len(route) != len(onto):
                return None
            for one, its in zip(route, onto, strict=True):
                if mapped.setdefault(one, its) != its or network.rates[one] != network.rates[its]:
                    return None
    return mapped if len({*mapped.values()}) == len(mapped) else None


def class_of(demands: Demands, network: Network) -> object:
    """What demands have in common that a symmetry maps onto each other, and no others have. Names do not matter.

    Nothing may be in tangles, or wait for open partitions.
    """

    def image(symmetry: dict[int, int]) -> tuple[tuple[Any, ...], ...]:
        masks: dict[int, int] = {}

        def of(mask: int) -> int:
            if mask not in masks:
                masks[mask] = sum([1 << symmetry[site] for site in list_sites(mask)])
            return masks[mask]

        family = [
            (one.size, tuple(sorted(map(of, one.holders))), of(one.targets), of(one.complete), one.largest)
            for one in demands.family
        ]
        forming = [
            (one.size, tuple(sorted(map(of, one.holders))), of(one.targets), of(one.whole), one.parts, one.largest)
            for one in demands.forming
        ]
        return tuple(sorted(family)), tuple(sorted(forming))

    return min(map(image, symmetries(network)))
