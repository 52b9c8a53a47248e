"""How much of every demand takes which route, so that the fullest resource is as empty as can be: a linear program.

Routes are found as they are needed: the prices that the program puts on the resources lead to the cheapest routes,
which join it until none is cheaper than those it has (column generation).

Routes for thousands of demands: each takes the one on which the fullest resources suffer least, then thinks again.

A packing without a linear program, for machines with many sites, where routes straight to one root suffice.
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
"""How much a hop costs beside its price, of the mean price of a path: the more, the shorter the routes."""
MAX_DIRECT_ROUTES = 4000
"""Routes through simple roots, of all shapes together, on machines so large that not all sites are roots."""

_CLOSE = 1e-3
"""The part by which the packing may lie above the best one."""


@dataclass(frozen=True, slots=True)
class RouteAmounts:
    """Routes of every shape with the bytes that each should carry, and the time in ms of the fullest resource."""

    routes: Mapping[DemandShape, tuple[tuple[Route, float], ...]]
    fullest_ms: float


@dataclass(frozen=True, slots=True)
class PendingAmounts:
    """What a packing comes to, as far as it is needed to compare it with others; `finish` works out the routes.

    `price` is what it says a millisecond of each resource is worth.
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
    """The best packing of so many bytes of every shape, or the best found when `stop` says so.

    Among packings within `slack` of the best one, that with the quickest routes is taken: a piece that arrives early
    can be passed on early. The search is given up once no packing can take less than `cutoff` ms: what is returned
    then has prices that prove it.
    """
    master = _MasterProgram(volumes, network)
    most_roots = max(16, MAX_DIRECT_ROUTES // len(volumes))
    for shape in volumes:
        for route in list_direct_routes(shape, network, most_roots):
            master.add(shape, route)
    priced = [shape for shape in volumes if max(len(shape.holders), len(shape.targets)) <= MAX_TERMINALS]
    least = 0.0
    centre: Floats | None = None
    for _ in range(MAX_ROUNDS):
        value, price = master.solve()
        if stop() or len(priced) < len(volumes):
            break
        # Prices jump about; halfway to the best ones so far they settle sooner.
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
        return master.packing(slack)

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
        """Whether the route is new."""
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

    def packing(self, slack: float) -> RouteAmounts:
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
"""The power of its load with which a resource counts: high enough that the fullest ones dominate."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


def allocate_greedily(volumes: Mapping[DemandShape, float], network: Network) -> RouteAmounts:
    """A packing of so many bytes of every shape."""
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
            pool, much = pools[shape], volumes[shape] / shares
            for number, before in enumerate(taken[shape]):
                if before >= 0:
                    pool.add(load, before, -much)
                now = pool.cheapest(load, much)
                pool.add(load, now, much)
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
    """The routes of a shape, and what a byte on each takes of which resources, end to end."""

    def __init__(self, routes: list[Route], network: Network, rates: Floats) -> None:
        self.routes = routes
        loads = [compute_load(route, network) for route in routes]
        self.starts: Ints = np.cumsum([0, *(len(entry) for entry in loads)])
        self.resources: Ints = np.array([resource for entry in loads for resource in entry], np.int64)
        traffic = np.array([much for entry in loads for much in entry.values()])
        self.times: Floats = traffic / rates[self.resources]

    def add(self, load: Floats, route: int, much: float) -> None:
        own = slice(self.starts[route], self.starts[route + 1])
        load[self.resources[own]] += much * self.times[own]

    def cheapest(self, load: Floats, much: float) -> int:
        """The route on which the powers of the loads grow least."""
        before = load[self.resources]
        after = before + much * self.times
        scale = max(float(load.max()), float(after.max()))
        growth = (after / scale) ** _SHARPNESS - (before / scale) ** _SHARPNESS
        return int(np.add.reduceat(growth, self.starts[:-1]).argmin())
