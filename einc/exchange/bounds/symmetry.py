"""Symmetries: permutations of the sites under which the network stays the same.

Demands that a symmetry maps onto each other have the same bounds, so that only one of them has to be bounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from einc.exchange.bounds.demands import DemandSet
from einc.exchange.network import Network, list_sites

MAX_SYMMETRIES = 64
"""All permutations of the sites of a switch are symmetries: more than are of use."""

MAX_TRIES = 2000
"""Sites tried as another's image. A network that is regular except for its last sites would take too long to search."""


@lru_cache(maxsize=4)
def find_symmetries(network: Network) -> tuple[dict[int, int], ...]:
    """Permutations of the sites, the identity first, that map routes to routes over resources of the same capacity.

    Only some of them, where there are many or the search takes long.
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
    for other in network.sites:
        if other not in image.values() and network.hbm_rate(other) == network.hbm_rate(site):
            if next(tries) >= MAX_TRIES:
                return
            larger = {**image, site: other}
            mapped = _map_resources(network, site, larger, resources)
            if mapped is not None:
                yield from _extend(network, larger, mapped, tries)


def _map_resources(
    network: Network, site: int, image: dict[int, int], resources: dict[int, int]
) -> dict[int, int] | None:
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


def find_symmetry_class(demands: DemandSet, network: Network) -> object:
    """A value that is equal for demands that a symmetry maps onto each other, and for no others; names do not matter.

    No demand may be in an overlap group, or wait for open partitions.
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

    return min(map(image, find_symmetries(network)))
