"""Cheap routes with many ends under prices: trees that grow by the nearest end that is not reached yet.

`trees.py` finds the cheapest trees of up to eight ends. With more, a tree begins at a root and takes in one end after
the other, over the cheapest path from anywhere in it (the path heuristic for Steiner trees, after Takahashi and
Matsuyama). A price on the network between nodes then makes every copy cross it once per node, and go on from there. A
*lag* counts what a copy has already paid on its way to where the path begins: 0 makes long chains, which load every
site alike, and 1 shortest paths, on which pieces arrive early.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc.exchange.steiner_heuristic import grow_tree
from einc.exchange.synthesis.demands import DemandShape
from einc.exchange.synthesis.routes import Route, RouteStep, tidy_route
from einc.exchange.synthesis.trees import PathPrices

LAGS = (1.0, 0.3, 0.0)


def grow_routes(shape: DemandShape, prices: PathPrices, roots: int, turn: int = 0) -> list[Route]:
    """Routes for a shape of any size: for the `roots` cheapest roots (of equal ones the first from `turn` on), and
    each lag."""
    routes: list[Route | None] = []
    number = prices.number
    holders = [[number[site] for site in sites] for sites in shape.holders]
    targets = [number[site] for site in shape.targets]
    for root in _choose_roots(holders, targets, prices, roots, turn):
        for lag in LAGS:
            routes.append(_build_route(shape, holders, targets, root, prices, lag))
    return list(dict.fromkeys(route for route in routes if route is not None))


def _choose_roots(
    holders: Sequence[Sequence[int]], targets: Sequence[int], prices: PathPrices, count: int, turn: int
) -> list[int]:
    """The sites that are nearest to all parts and targets.

    Of a shape with one part it is one of its holders, and of one with one target the target.
    """
    if len(holders) == 1 or len(targets) == 1:
        return [holders[0][0] if len(holders) == 1 else targets[0]]
    candidates = sorted({*targets, *(site for sites in holders for site in sites)})
    cost = {
        root: float(
            prices.distance[root, targets].sum()
            + sum([prices.distance[sites, root].min() for sites in holders])
            + prices.form[root] * (len(holders) + 1)
        )
        for root in candidates
    }
    unit = max(min(cost.values()), 1e-300) * 1e-6
    return sorted(candidates, key=lambda root: (round(cost[root] / unit), (root - turn) % len(prices.form)))[:count]


def _build_route(
    shape: DemandShape,
    holders: Sequence[Sequence[int]],
    targets: Sequence[int],
    root: int,
    prices: PathPrices,
    lag: float,
) -> Route | None:
    """Combines all parts at the root, and brings the result from there to the targets."""
    sites = prices.network.sites
    full = (1 << len(holders)) - 1
    steps: list[RouteStep] = []
    starts = [root]
    if len(holders) > 1:
        steps += _combine(holders, root, prices, lag)
    else:
        starts += [site for site in holders[0] if site != root]
    out = grow_tree(starts, [[target] for target in targets], prices.rail_distance, prices.hop, lag, False)
    steps += [RouteStep(full, sites[a], sites[b]) for a, b in out]
    return tidy_route(shape, tuple(steps))


def _combine(holders: Sequence[Sequence[int]], root: int, prices: PathPrices, lag: float) -> list[RouteStep]:
    """The steps that combine all parts at the root: sites of the tree combine what meets there."""
    sites = prices.network.sites
    hops = grow_tree([root], holders, prices.rail_distance, prices.hop, lag, True)
    inside = {root, *(child for child, _ in hops)}
    parts_at: dict[int, list[int]] = {site: [] for site in inside}
    for part, part_holders in enumerate(holders):
        parts_at[next(site for site in part_holders if site in inside)].append(1 << part)
    steps: list[RouteStep] = []
    for child, parent in [*reversed(hops), (root, -1)]:
        copies = sorted(parts_at[child])
        combined = sum(copies)
        if len(copies) > 1:
            steps.append(RouteStep(combined, sites[child], sites[child], tuple(copies)))
        if copies and parent >= 0:
            steps.append(RouteStep(combined, sites[child], sites[parent]))
            parts_at[parent].append(combined)
    return steps
