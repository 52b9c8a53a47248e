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
