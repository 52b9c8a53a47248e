"""Routes: how one piece of a demand travels, as steps over sites, without names or times.

A step forms or sends a *part set*, a bit mask over the parts of the demand's shape. *Direct* routes need no prices:
every part goes straight to one root, and the result from there straight to the targets. On a switch they are all that
is needed; elsewhere they are the routes that the linear program begins with. Where no link joins two sites, a direct
route passes through others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from einc.exchange.network import Network
from einc.exchange.synthesis.demands import DemandShape
from einc.machines.site_counts import LARGE_MACHINE_SITES


class RouteStep(NamedTuple):
    """Send `parts` from `source` to `destination`; where they are equal, form it there of the sets in `of`."""

    parts: int
    source: int
    destination: int
    of: tuple[int, ...] = ()


Route = tuple[RouteStep, ...]
"""Steps in an order in which each finds what it needs; each copy arrives once, and every copy is needed."""


@lru_cache(maxsize=1 << 14)
def tidy_route(shape: DemandShape, steps: tuple[RouteStep, ...]) -> Route | None:
    """The steps as a route: reordered, without those that bring a copy that is there already or is not needed.

    None where they do not meet the shape's targets. Results are kept, as prices that change little lead to the same
    steps again and again.
    """
    held = {(1 << part, site) for part, sites in enumerate(shape.holders) for site in sites}
    waiting = list(dict.fromkeys(steps))
    fired: list[RouteStep] = []
    while waiting:
        later = []
        before = len(fired)
        for step in waiting:
            if all(copy in held for copy in list_needed_copies(step)):
                if (step.parts, step.destination) not in held:
                    held.add((step.parts, step.destination))
                    fired.append(step)
            else:
                later.append(step)
        if len(fired) == before and len(later) == len(waiting):
            break
        waiting = later
    full = (1 << len(shape.holders)) - 1
    required = {(full, site) for site in shape.targets}
    if not required <= held:
        return None
    kept: list[RouteStep] = []
    for step in reversed(fired):
        if (step.parts, step.destination) in required:
            kept.append(step)
            required.update(list_needed_copies(step))
    return tuple(reversed(kept))


def list_needed_copies(step: RouteStep) -> Sequence[tuple[int, int]]:
    """The copies that a step needs, as (part set, site)."""
    return [(part, step.source) for part in step.of or (step.parts,)]


def list_crossed(step: RouteStep, network: Network) -> tuple[int, ...]:
    """The resources that a step occupies."""
    if step.source == step.destination:
        return (network.first_hbm + step.source,)
    return network.paths[step.source, step.destination]


def measure_step(step: RouteStep, network: Network) -> tuple[int, float, float]:
    """How many copies of a step's bytes pass its slowest resource, at which rate, and its latency."""
    if step.source == step.destination:
        return len(step.of) + 1, network.hbm_rate(step.source), network.kernel_latency
    rate = min([network.rates[resource] for resource in network.paths[step.source, step.destination]])
    return 1, rate, network.transfer_latency


def compute_duration(step: RouteStep, size: float, network: Network) -> float:
    """How long a step takes alone, in ms, its latency included."""
    copies, rate, latency = measure_step(step, network)
    return copies * size / rate + latency


def compute_delay(steps: Sequence[RouteStep], network: Network) -> float:
    """How long a byte takes to the last target, in ms per byte, latencies aside."""
    arrival: dict[tuple[int, int], float] = {}
    for step in steps:
        ready = max(arrival.get(copy, 0.0) for copy in list_needed_copies(step))
        arrival[step.parts, step.destination] = ready + compute_duration(step, 10**9, network) / 1e9
    return max(arrival.values(), default=0.0)


def compute_load(steps: Sequence[RouteStep], network: Network) -> dict[int, float]:
    """Bytes that each resource moves per byte of the aggregate."""
    load: dict[int, float] = {}
    for step in steps:
        traffic = len(step.of) + 1.0 if step.source == step.destination else 1.0
        for resource in list_crossed(step, network):
            load[resource] = load.get(resource, 0.0) + traffic
    return load


_MAX_GATHERED = 100
"""On larger machines, targets combine for themselves only if this takes no more sends than this."""

_MAX_TURNS = 3
"""On larger machines this many choices among the holders of each part are tried."""


def list_direct_routes(shape: DemandShape, network: Network, max_roots: int, turn: int = 0) -> list[Route]:
    """One route per root that reaches all targets, and those on which every target combines for itself.

    On larger machines no more than `max_roots` roots are taken; which ones depends on `turn`.
    """
    large = len(network.sites) > LARGE_MACHINE_SITES
    roots: tuple[int, ...] = network.sites
    if large:
        named = tuple(dict.fromkeys((*shape.targets, *(site for sites in shape.holders for site in sites))))
        first = turn * max_roots % len(named)
        roots = shape.targets if len(shape.targets) == 1 else (*named[first:], *named[:first])[:max_roots]
    routes = []
    if not large or len(shape.holders) * len(shape.targets) <= _MAX_GATHERED:
        routes = [_build_gathered(shape, network, number) for number in range(_MAX_TURNS if large else 1)]
    routes += [_build_rooted(shape, root, shape.targets, network, turn) for root in roots]
    return list(dict.fromkeys(route for route in routes if route is not None))


def _build_rooted(shape: DemandShape, root: int, targets: Iterable[int], network: Network, turn: int) -> Route | None:
    full = (1 << len(shape.holders)) - 1
    steps: list[RouteStep] = []
    for part, sites in enumerate(shape.holders):
        if root not in sites:
            source = _choose_holder(sites, root, network, turn)
            if source is None:
                return None
            steps += _list_sends(1 << part, source, root, network)
    if len(shape.holders) > 1:
        steps.append(RouteStep(full, root, root, tuple(1 << part for part in range(len(shape.holders)))))
    for target in targets:
        if target != root:
            if not network.ways.reaches(root, target):
                return None
            steps += _list_sends(full, root, target, network)
    return tidy_route(shape, tuple(steps))


def _list_sends(parts: int, source: int, destination: int, network: Network) -> list[RouteStep]:
    """The steps that take a part set from one site to another."""
    return [RouteStep(parts, *pair) for pair in itertools.pairwise(network.ways.find_way(source, destination))]


def _build_gathered(shape: DemandShape, network: Network, turn: int) -> Route | None:
    steps: list[RouteStep] = []
    for target in shape.targets:
        part = _build_rooted(DemandShape(shape.holders, (target,)), target, (), network, turn)
        if part is None:
            return None
        steps += part
    return tidy_route(shape, tuple(steps))


def _choose_holder(sites: tuple[int, ...], target: int, network: Network, turn: int) -> int | None:
    """The holder with the widest path; of several such holders the first after the target, or `turn` places further."""
    paths, rates = network.paths, network.rates
    width = {site: min(rates[r] for r in paths[site, target]) for site in sites if (site, target) in paths}
    if not width:
        reaching = [site for site in sites if network.ways.reaches(site, target)]
        return min(reaching, key=lambda site: (*network.ways.rank(site, target), site), default=None)
    widest = max(width.values())
    able = [site for site in sites if width.get(site) == widest]
    after = sum(site <= target for site in able)
    return able[(after + turn) % len(able)]
