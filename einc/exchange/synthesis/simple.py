"""Routes that need no prices: everything straight to one root, and from there straight to the targets.

On a switch they are all that is needed; elsewhere they are where the packing begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Shape
from einc.exchange.synthesis.routes import Route, Step, tidy

MOST_SITES = 16
"""On larger machines only sites that hold a part or want the result are roots."""

_TURNS = 3
"""On larger machines, so many choices among the holders of each part are tried."""


def simple_routes(shape: Shape, network: Network, most_roots: int, turn: int = 0) -> list[Route]:
    """One route per root that has paths to all, and those on which every target combines for itself.

    On larger machines no more than `most_roots` roots are taken, others for every `turn`.
    """
    large = len(network.sites) > MOST_SITES
    roots: tuple[int, ...] = network.sites
    if large:
        named = tuple(dict.fromkeys((*shape.targets, *(site for sites in shape.holders for site in sites))))
        first = turn * most_roots % len(named)
        roots = (*named[first:], *named[:first])[:most_roots]
    found = [_gathered(shape, network, number) for number in range(_TURNS if large else 1)]
    found += [_rooted(shape, root, shape.targets, network, turn) for root in roots]
    return list(dict.fromkeys(route for route in found if route is not None))


def _rooted(shape: Shape, root: int, targets: Iterable[int], network: Network, turn: int) -> Route | None:
    full = (1 << len(shape.holders)) - 1
    steps: list[Step] = []
    for part, sites in enumerate(shape.holders):
        if root not in sites:
            source = _nearest(sites, root, network, turn)
            if source is None:
                return None
            steps.append(Step(1 << part, source, root))
    if len(shape.holders) > 1:
        steps.append(Step(full, root, root, tuple(1 << part for part in range(len(shape.holders)))))
    for target in targets:
        if target != root:
            if (root, target) not in network.paths:
                return None
            steps.append(Step(full, root, target))
    return tidy(shape, tuple(steps))


def _gathered(shape: Shape, network: Network, turn: int) -> Route | None:
    steps: list[Step] = []
    for target in shape.targets:
        part = _rooted(Shape(shape.holders, (target,)), target, (), network, turn)
        if part is None:
            return None
        steps += part
    return tidy(shape, tuple(steps))


def _nearest(sites: tuple[int, ...], target: int, network: Network, turn: int) -> int | None:
    """The holder with the widest path; of several the first one after the target, or `turn` places further."""
    paths, rates = network.paths, network.rates
    width = {site: min(rates[r] for r in paths[site, target]) for site in sites if (site, target) in paths}
    if not width:
        return None
    widest = max(width.values())
    able = [site for site in sites if width.get(site) == widest]
    after = sum(site <= target for site in able)
    return able[(after + turn) % len(able)]
