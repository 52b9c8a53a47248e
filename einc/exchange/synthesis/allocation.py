"""How many bytes of every demand take which route, so that the fullest resource is busy for the least time.

A linear program divides the bytes. Routes are found as they are needed: the prices that the program puts on the
resources lead to the cheapest routes, which join it until none is cheaper than those it has (column generation).

On machines with many sites there are thousands of demands, and direct routes suffice. There, without a linear program,
each demand takes the route that adds least to the fullest resources; then every choice is made again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.exchange.network import Network
from einc.exchange.synthesis.demands import DemandShape
from einc.exchange.synthesis.routes import Route, compute_delay, compute_load, list_direct_routes
from einc.exchange.synthesis.trees import MAX_TERMINALS, Floats, PathPrices, find_cheapest_routes

MAX_ROUNDS = 60
_SPREADS = (0.03, 0.1, 0.3, 1.0)
"""What a hop costs beside its price, as parts of the mean price of a path: higher costs give shorter routes."""
MAX_DIRECT_ROUTES = 4000
"""Direct routes of all shapes together, on machines so large that not all sites are roots."""

_CLOSE = 1e-3
"""The part by which the result may lie above the optimum."""


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
) -> PendingAmounts:
    """The best routes for the bytes of every shape, or the best ones found when `stop` says so.

    Among solutions within `slack` of the best one, the one with the quickest routes is taken: a piece that arrives
    early can be passed on early. The search gives up once no solution can take less than `cutoff` ms; the prices that
    are returned then prove it.
    """
    master = _MasterProgram(volumes, network)
    max_roots = max(16, MAX_DIRECT_ROUTES // len(volumes))
    for shape in volumes:
        for route in list_direct_routes(shape, network, max_roots):
            master.add(shape, route)
    priced = [shape for shape in volumes if max(len(shape.holders), len(shape.targets)) <= MAX_TERMINALS]
    least = 0.0
    centre: Floats | None = None
    for _ in range(MAX_ROUNDS):
        value, price = master.solve()
        if stop() or len(priced) < len(volumes):
            break
        # Prices oscillate; halfway to the best ones so far they converge sooner.
        price = price if centre is None else 0.5 * centre + 0.5 * price
        prices = PathPrices(network, price / np.array(network.rates))
        bound, added = 0.0, False
        for shape in priced:
            cost, routes = find_cheapest_routes(shape, prices)
            bound += cost * volumes[shape]
            for route in routes:
                added |= master.add(shape, route)
        if bound > least:
            least, centre = bound, price
        if least >= cutoff or not added or value <= least * (1 + _CLOSE):
            break
    best = price if centre is None else centre

    def finish() -> RouteAmounts:
        for spread in _SPREADS if centre is not None else ():
            prices = PathPrices(network, best / np.array(network.rates), spread)
            for shape in priced:
                for route in find_cheapest_routes(shape, prices)[1]:
                    master.add(shape, route)
        return master.finish(slack)

    return PendingAmounts(master.solve()[0], best, finish)


class _MasterProgram:
    """The linear program over the routes known so far: least T with the load of every resource at most T."""

    def __init__(self, volumes: Mapping[DemandShape, float], network: Network) -> None:
        import highspy

        self.network = network
        self.volumes = volumes
        self.rows = {shape: row for row, shape in enumerate(volumes)}
        self.columns: dict[tuple[DemandShape, Route], int] = {}
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.solver.silent()
        self.unit = max(volumes.values())
        infinity = highspy.kHighsInf
        nothing = np.array([], np.int32), np.array([], np.float64)
        for volume in volumes.values():
            self.solver.addRow(volume / self.unit, infinity, 0, *nothing)
        for _ in network.rates:
            self.solver.addRow(-infinity, 0.0, 0, *nothing)
        rows = np.arange(len(volumes), len(volumes) + len(network.rates), dtype=np.int32)
        self.solver.addCol(1.0, 0.0, infinity, len(rows), rows, np.full(len(rows), -1.0))
        self.infinity = infinity

    def add(self, shape: DemandShape, route: Route) -> bool:
        """Add a route; returns whether it is new."""
        if (shape, route) in self.columns:
            return False
        self.columns[shape, route] = len(self.columns) + 1
        load = compute_load(route, self.network)
        rows = [self.rows[shape], *(len(self.volumes) + resource for resource in load)]
        values = [1.0, *(bytes_ * self.unit / self.network.rates[resource] for resource, bytes_ in load.items())]
        self.solver.addCol(0.0, 0.0, self.infinity, len(rows), np.array(rows, np.int32), np.array(values, np.float64))
        return True

    def solve(self) -> tuple[float, Floats]:
        """The least time, and the price of each resource; prices add up to 1."""
        self.solver.run()
        solution = self.solver.getSolution()
        dual = np.array(solution.row_dual)
        price = np.maximum(0.0, -dual[len(self.volumes) :])
        return self.solver.getObjectiveValue(), price / max(price.sum(), 1e-30)

    def finish(self, slack: float) -> RouteAmounts:
        value, _ = self.solve()
        solver = self.solver
        solver.changeColBounds(0, 0.0, value * (1 + slack))
        solver.changeColCost(0, 0.0)
        for (_, route), column in self.columns.items():
            solver.changeColCost(column, compute_delay(route, self.network) * self.unit)
        solver.run()
        amounts = solver.getSolution().col_value
        routes: dict[DemandShape, list[tuple[Route, float]]] = {shape: [] for shape in self.volumes}
        for (shape, route), column in self.columns.items():
            routes[shape].append((route, max(0.0, amounts[column]) * self.unit))
        return RouteAmounts({shape: tuple(found) for shape, found in routes.items()}, value)


def sum_volumes(shapes: Mapping[DemandShape, Sequence[int]], sizes: Sequence[int]) -> dict[DemandShape, float]:
    """The bytes of all demands of every shape."""
    return {shape: float(sum(sizes[position] for position in found)) for shape, found in shapes.items()}


MAX_ROOTS = 12
SHARES = 4
"""Equal parts of a demand's bytes that may take different routes, where there are not too many demands."""

MAX_SHARES = 4000
_GREEDY_ROUNDS = 3
_SHARPNESS = 8
"""Loads count with this power, so that the fullest resources dominate."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


def allocate_greedily(volumes: Mapping[DemandShape, float], network: Network) -> RouteAmounts:
    """Routes for the bytes of every shape, without a linear program."""
    rates = np.array(network.rates)
    load: Floats = np.zeros(len(rates))
    shares = max(1, min(SHARES, MAX_SHARES // len(volumes)))
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
        own = slice(self.starts[route], self.starts[route + 1])
        load[self.resources[own]] += size * self.times[own]

    def find_cheapest(self, load: Floats, size: float) -> int:
        """The route on which the powers of the loads grow least."""
        before = load[self.resources]
        after = before + size * self.times
        scale = max(float(load.max()), float(after.max()))
        growth = (after / scale) ** _SHARPNESS - (before / scale) ** _SHARPNESS
        return int(np.add.reduceat(growth, self.starts[:-1]).argmin())
