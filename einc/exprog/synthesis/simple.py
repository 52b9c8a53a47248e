"""Routes that need no prices: everything straight to one root, and from there straight to the targets.

On a switch they are all that is needed; elsewhere they are where the packing begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from einc.exprog.synthesis.demands import Shape
from einc.exprog.synthesis.fabric import Fabric
from einc.exprog.synthesis.routes import Route, Step, tidy

MOST_SITES = 16
"""On larger machines only the sites that hold a part or want the result are roots."""


def simple_routes(shape: Shape, fabric: Fabric, most_roots: int) -> list[Route]:
    """One route per root that has paths to all, and the one on which every target combines for itself."""
    named = sorted({*shape.targets, *(site for sites in shape.holders for site in sites)})
    roots = fabric.sites if len(fabric.sites) <= MOST_SITES else tuple(named[:most_roots])
    found = [_rooted(shape, root, shape.targets, fabric) for root in roots]
    found.append(_gathered(shape, fabric))
    return list(dict.fromkeys(route for route in found if route is not None))


def _rooted(shape: Shape, root: int, targets: Iterable[int], fabric: Fabric) -> Route | None:
    full = (1 << len(shape.holders)) - 1
    steps: list[Step] = []
    for part, sites in enumerate(shape.holders):
        if root not in sites:
            source = _nearest(sites, root, fabric)
            if source is None:
                return None
            steps.append(Step(1 << part, source, root))
    if len(shape.holders) > 1:
        steps.append(Step(full, root, root, tuple(1 << part for part in range(len(shape.holders)))))
    for target in targets:
        if target != root:
            if (root, target) not in fabric.paths:
                return None
            steps.append(Step(full, root, target))
    return tidy(shape, steps)


def _gathered(shape: Shape, fabric: Fabric) -> Route | None:
    steps: list[Step] = []
    for target in shape.targets:
        part = _rooted(Shape(shape.holders, (target,)), target, (), fabric)
        if part is None:
            return None
        steps += part
    return tidy(shape, steps)


def _nearest(sites: Iterable[int], target: int, fabric: Fabric) -> int | None:
    """The holder with the widest path."""
    paths = fabric.paths
    able = [site for site in sites if (site, target) in paths]
    return min(able, key=lambda s: (-min(fabric.rates[r] for r in paths[s, target]), s), default=None)
