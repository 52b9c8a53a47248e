"""How many bytes of every demand take which route, so that the fullest resource is busy for the least time.

A linear program divides the bytes. Routes are found as they are needed: the prices that the program puts on the
resources lead to the cheapest routes, which join it until none is cheaper than those it has (column generation).

Routes with up to eight parts and targets are the cheapest ones (`trees.py`). With more ends, a tree begins at a root
and takes in one end after the other, over the cheapest path from anywhere in it (the path heuristic for Steiner trees,
after Takahashi and Matsuyama). A price on the network between nodes then makes every copy cross it once per node, and
go on from there. A *lag* counts what a copy has already paid on its way to where the path begins: 0 makes long chains,
which load every site alike, and 1 shortest paths, on which pieces arrive early.

On machines with many sites there may be thousands of demands. Then, without a linear program, each demand takes the
route that adds least to the fullest resources; then every choice is made again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einc.exchange.linear import LinearProgram
from einc.exchange.network import Network
from einc.exchange.steiner_heuristic import grow_tree
from einc.exchange.synthesis.demands import MAX_TERMINALS, DemandShape
from einc.exchange.synthesis.routes import Route, RouteStep, compute_delay, compute_load, list_direct_routes, tidy_route
from einc.exchange.synthesis.trees import PathPrices, find_cheapest_routes
from einc.machines.site_counts import LARGE_MACHINE_SITES
from einc_runtime.dtypes import Floats, Ints

MAX_GROWTH_ROUNDS = 60
_SPREADS = (0.03, 0.1, 0.3, 1.0)
"""What a hop costs beside its price, as parts of the mean price of a path: higher costs give shorter routes."""
MAX_DIRECT_ROUTES = 4000
"""Direct routes of all shapes together, on machines so large that not all sites are roots."""

OPTIMALITY_GAP = 1e-3
"""The part by which the result may lie above the optimum."""

_BOUND_GAP = 5e-3
"""The same above a time that is known to be needed."""

_MAX_GROWN_ENDS = 60_000
"""Parts and targets of all shapes together, times the rounds in which routes grow for them."""

_MIN_GROWN_ROUNDS = 3
"""Rounds that even the largest exchanges get."""

_MANY_SHAPES = 150
"""With more shapes there are fewer rounds on large machines."""

_MAX_SPARE = 24
"""Routes of a large shape beyond this many are kept only if they carry much."""

_TIGHT = 1e-6
"""The slack with large shapes: their routes have so many steps that few pieces take each, and do not even out."""

_LITTLE = 0.05
"""A route of a large shape that carries less than this part of what its fullest route does carries nothing."""


@dataclass(frozen=True, slots=True)
class RouteAmounts:
    """Routes of every shape with the bytes that each should carry, and the time in ms of the fullest resource."""

    routes: Mapping[DemandShape, tuple[tuple[Route, float], ...]]
    fullest_ms: float


@dataclass(frozen=True, slots=True)
class PendingAmounts:
    """The time of a solution, to compare placements by; `finish` works out its routes.

    `price` is the value of a millisecond of each resource.
    """

    fullest_ms: float
    price: Floats
    finish: Callable[[], RouteAmounts]


def allocate_routes(
    volumes: Mapping[DemandShape, float],
    network: Network,
    slack: float = 0.02,
    cutoff: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
    known_ms: float = 0.0,
) -> PendingAmounts:
    """The best routes for the bytes of every shape, or the best ones found when `stop` says so.

    The caller knows that no solution takes less than `known_ms`: on large machines, the search ends near it.

    Among solutions within `slack` of the best one, the one with the quickest routes is taken: a piece that arrives
    early can be passed on early. The search gives up once no solution can take less than `cutoff` ms; the prices that
    are returned then prove it.
    """
    master = _MasterProgram(volumes, network)
    max_roots = max(16, MAX_DIRECT_ROUTES // len(volumes))
    large = [shape for shape in volumes if shape.is_large]
    finder = _RouteFinder(network, large, max(1, max_roots // 16), len(volumes))
    for shape in volumes:
        for route in list_direct_routes(shape, network, max_roots):
            master.add(shape, route)
    if finder.grows and not master.solve()[0] <= known_ms * (1 + _BOUND_GAP):
        prices = PathPrices(network, 1 / np.array(network.rates))
        for shape in large:
            for route in finder.find(shape, prices, max_roots)[1]:
                master.add(shape, route)
    many = len(network.sites) > MAX_TERMINALS
    least = 0.0
    centre: Floats | None = None
    for _ in range(finder.max_rounds):
        value, price = master.solve()
        if stop() or (large and not finder.grows) or (many and value <= known_ms * (1 + _BOUND_GAP)):
            break
        # Prices oscillate; halfway to the best ones so far they converge sooner.
        price = price if centre is None else 0.5 * centre + 0.5 * price
        prices = PathPrices(network, price / np.array(network.rates))
        # Column generation. Prices add up to 1, so that all bytes on their cheapest routes cost no more than the time
        # of any solution: that is the bound. Only routes cheaper than those of the program can lower its value.
        bound, added = 0.0, False
        for shape in volumes:
            cost, routes = finder.find(shape, prices)
            bound += cost * volumes[shape]
            for route in routes:
                added |= master.add(shape, route)
        if bound > least:
            least, centre = bound, price
        if least >= cutoff or not added or value <= least * (1 + OPTIMALITY_GAP):
            break
    best = price if centre is None else centre

    def finish() -> RouteAmounts:
        for spread in _SPREADS if centre is not None else ():
            prices = PathPrices(network, best / np.array(network.rates), spread)
            for shape in volumes:
                for route in finder.find(shape, prices)[1]:
                    master.add(shape, route)
        return master.finish(_TIGHT if finder.grows else slack)

    return PendingAmounts(master.solve()[0], best, finish)


class _RouteFinder:
    """Cheap routes of shapes under prices: the cheapest ones of small shapes, and grown ones of large shapes.

    On machines with so few sites that small shapes are the rule, no routes are grown.
    """

    def __init__(self, network: Network, large: Sequence[DemandShape], roots: int, shapes: int) -> None:
        self.network, self.roots = network, roots
        self.turns = {shape: turn for turn, shape in enumerate(large)}
        self.grows = bool(large) and len(network.sites) > MAX_TERMINALS
        ends = sum([len(shape.holders) + len(shape.targets) for shape in large])
        self.max_rounds = min(MAX_GROWTH_ROUNDS, max(_MIN_GROWN_ROUNDS, _MAX_GROWN_ENDS // max(1, ends)))
        if len(network.sites) > LARGE_MACHINE_SITES:
            self.max_rounds = max(_MIN_GROWN_ROUNDS, self.max_rounds * LARGE_MACHINE_SITES // len(network.sites))
        if shapes > _MANY_SHAPES and len(network.sites) > MAX_TERMINALS:
            self.max_rounds = min(self.max_rounds, max(_MIN_GROWN_ROUNDS, MAX_GROWTH_ROUNDS * _MANY_SHAPES // shapes))

    def find(self, shape: DemandShape, prices: PathPrices, roots: int | None = None) -> tuple[float, list[Route]]:
        """The least price per byte that was found, and routes, for large shapes with several roots."""
        if shape not in self.turns:
            return find_cheapest_routes(shape, prices)
        routes = grow_routes(shape, prices, roots or self.roots, self.turns[shape])
        costs = [prices.compute_cost(compute_load(route, self.network)) for route in routes]
        return min(costs, default=0.0), routes


class _MasterProgram:
    """The linear program over the routes known so far: least T with the load of every resource at most T."""

    def __init__(self, volumes: Mapping[DemandShape, float], network: Network) -> None:
        self.network = network
        self.volumes = volumes
        self.rows = {shape: row for row, shape in enumerate(volumes)}
        self.columns: dict[tuple[DemandShape, Route], int] = {}
        # In units of the largest volume, and of the time that it takes the fastest resource.
        self.volume = max(volumes.values())
        self.time_ms = self.volume / max(network.rates)
        self.program = LinearProgram(priced=True)
        for volume in volumes.values():
            self.program.add_row(volume / self.volume, math.inf, (), ())
        for _ in network.rates:
            self.program.add_row(-math.inf, 0.0, (), ())
        rows = range(len(volumes), len(volumes) + len(network.rates))
        self.program.add_column(1.0, rows, [-1.0] * len(rows))

    def add(self, shape: DemandShape, route: Route) -> bool:
        """Add a route; returns whether it is new."""
        if (shape, route) in self.columns:
            return False
        self.columns[shape, route] = len(self.columns) + 1
        load = compute_load(route, self.network)
        rows = [self.rows[shape], *(len(self.volumes) + resource for resource in load)]
        unit = self.volume / self.time_ms
        values = [1.0, *(bytes_ * unit / self.network.rates[resource] for resource, bytes_ in load.items())]
        self.program.add_column(0.0, rows, values)
        return True

    def solve(self) -> tuple[float, Floats]:
        """The least time, and the price of each resource; prices add up to 1."""
        solution = self.program.solve()
        assert solution is not None, "every shape has a route"
        value, prices = solution
        # The rows of resources say "load - T <= 0", so that their prices are negative in a program that minimizes T.
        price = np.maximum(0.0, -prices[len(self.volumes) :])
        return value * self.time_ms, price / max(price.sum(), 1e-30)

    def finish(self, slack: float) -> RouteAmounts:
        fullest_ms, _ = self.solve()
        # Many solutions take the least time. T becomes a limit, and the delays of routes are what is minimized.
        self.program.ask(priced=False)
        self.program.limit_column(0, fullest_ms / self.time_ms * (1 + slack))
        unit = self.volume / self.time_ms
        delays = [compute_delay(route, self.network) * unit for _, route in self.columns]
        self.program.change_costs(range(len(self.columns) + 1), [0.0, *delays])
        solution = self.program.solve()
        assert solution is not None, "the routes of the least time are a solution"
        amounts = solution[1] * self.volume
        routes: dict[DemandShape, list[tuple[Route, float]]] = {shape: [] for shape in self.volumes}
        for (shape, route), column in self.columns.items():
            routes[shape].append((route, max(0.0, float(amounts[column]))))
        return RouteAmounts({shape: _drop_unused(shape, routed) for shape, routed in routes.items()}, fullest_ms)


def _drop_unused(shape: DemandShape, routes: list[tuple[Route, float]]) -> tuple[tuple[Route, float], ...]:
    """Of a large shape the routes that carry much, and a few of the others; all routes of small shapes."""
    if not shape.is_large:
        return tuple(routes)
    least = _LITTLE * max(amount for _, amount in routes)
    used = [(route, amount) for route, amount in routes if amount > least]
    spare = [(route, 0.0) for route, amount in routes if amount <= least]
    return (*used, *spare[: max(0, _MAX_SPARE - len(used))])


def sum_volumes(shapes: Mapping[DemandShape, Sequence[int]], sizes: Sequence[int]) -> dict[DemandShape, float]:
    """The bytes of all demands of every shape."""
    return {shape: float(sum(sizes[position] for position in positions)) for shape, positions in shapes.items()}


MAX_ROOTS = 12
SHARES = 4
"""Equal parts of a demand's bytes that may take different routes, where there are not too many demands."""

MAX_ALLOCATION_SHARES = 4000
"""Shares of all demands together: each looks at all routes of its shape."""

_GREEDY_ROUNDS = 3
_SHARPNESS = 8
"""Loads count with this power, so that the fullest resources dominate."""


def allocate_greedily(volumes: Mapping[DemandShape, float], network: Network) -> RouteAmounts:
    """Routes for the bytes of every shape, without a linear program."""
    rates = np.array(network.rates)
    load: Floats = np.zeros(len(rates))
    shares = max(1, min(SHARES, MAX_ALLOCATION_SHARES // len(volumes)))
    pools = {
        shape: _RouteLoads(list_direct_routes(shape, network, MAX_ROOTS, turn), network, rates)
        for turn, shape in enumerate(volumes)
    }
    order = sorted(volumes, key=lambda shape: -volumes[shape] * len(shape.holders))
    taken: dict[DemandShape, list[int]] = {shape: [-1] * shares for shape in order}
    for _ in range(_GREEDY_ROUNDS):
        moved = False
        for shape in order:
            loads, share = pools[shape], volumes[shape] / shares
            for number, before in enumerate(taken[shape]):
                if before >= 0:
                    loads.add(load, before, -share)
                now = loads.find_cheapest(load, share)
                loads.add(load, now, share)
                taken[shape][number] = now
                moved |= now != before
        if not moved:
            break
    routes = {
        shape: tuple(
            (route, volumes[shape] / shares * taken[shape].count(number))
            for number, route in enumerate(pools[shape].routes)
            if number in taken[shape]
        )
        for shape in volumes
    }
    return RouteAmounts(routes, float(load.max()))


class _RouteLoads:
    """The routes of a shape, and how long a byte on each keeps which resources busy, one route after the other."""

    def __init__(self, routes: list[Route], network: Network, rates: Floats) -> None:
        self.routes = routes
        loads = [compute_load(route, network) for route in routes]
        self.starts: Ints = np.cumsum([0, *(len(entry) for entry in loads)])
        self.resources: Ints = np.array([resource for entry in loads for resource in entry], np.int64)
        traffic = np.array([size for entry in loads for size in entry.values()])
        self.times: Floats = traffic / rates[self.resources]

    def add(self, load: Floats, route: int, size: float) -> None:
        entries = slice(self.starts[route], self.starts[route + 1])
        load[self.resources[entries]] += size * self.times[entries]

    def find_cheapest(self, load: Floats, size: float) -> int:
        """The route on which the powers of the loads grow least."""
        before = load[self.resources]
        after = before + size * self.times
        scale = max(float(load.max()), float(after.max()))
        growth = (after / scale) ** _SHARPNESS - (before / scale) ** _SHARPNESS
        return int(np.add.reduceat(growth, self.starts[:-1]).argmin())


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
