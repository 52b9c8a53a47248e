"""How much of every demand takes which route, so that the fullest resource is as empty as can be: a linear program.

Routes are found as they are needed: the prices that the program puts on the resources lead to the cheapest routes,
which join it until none is cheaper than those it has (column generation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Shape
from einc.exchange.synthesis.routes import Route, compute_delay, compute_load
from einc.exchange.synthesis.simple import simple_routes
from einc.exchange.synthesis.trees import MOST_TERMINALS, Floats, Prices, cheapest_routes

MOST_ROUNDS = 60
_SPREADS = (0.03, 0.1, 0.3, 1.0)
"""How much a hop costs beside its price, of the mean price of a path: the more, the shorter the routes."""
MOST_SIMPLE = 4000
"""Routes through simple roots, of all shapes together, on machines so large that not all sites are roots."""

_CLOSE = 1e-3
"""The part by which the packing may lie above the best one."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Routes of every shape with the bytes that each should carry, and the time in ms of the fullest resource."""

    routes: Mapping[Shape, tuple[tuple[Route, float], ...]]
    fullest_ms: float


@dataclass(frozen=True, slots=True)
class Draft:
    """What a packing comes to, as far as it is needed to compare it with others; `finish` works out the routes.

    `price` is what it says a millisecond of each resource is worth.
    """

    fullest_ms: float
    price: Floats
    finish: Callable[[], Packing]


def pack(
    volumes: Mapping[Shape, float],
    network: Network,
    slack: float = 0.02,
    cutoff: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
) -> Draft:
    """The best packing of so many bytes of every shape, or the best found when `stop` says so.

    Among packings within `slack` of the best one, that with the quickest routes is taken: a piece that arrives early
    can be passed on early. The search is given up once no packing can take less than `cutoff` ms: what is returned
    then has prices that prove it.
    """
    master = _Master(volumes, network)
    most_roots = max(16, MOST_SIMPLE // len(volumes))
    for shape in volumes:
        for route in simple_routes(shape, network, most_roots):
            master.add(shape, route)
    priced = [shape for shape in volumes if max(len(shape.holders), len(shape.targets)) <= MOST_TERMINALS]
    least = 0.0
    centre: Floats | None = None
    for _ in range(MOST_ROUNDS):
        value, price = master.solve()
        if stop() or len(priced) < len(volumes):
            break
        # Prices jump about; halfway to the best ones so far they settle sooner.
        price = price if centre is None else 0.5 * centre + 0.5 * price
        prices = Prices(network, price / np.array(network.rates))
        bound, added = 0.0, False
        for shape in priced:
            cost, routes = cheapest_routes(shape, prices)
            bound += cost * volumes[shape]
            for route in routes:
                added |= master.add(shape, route)
        if bound > least:
            least, centre = bound, price
        if least >= cutoff or not added or value <= least * (1 + _CLOSE):
            break
    best = price if centre is None else centre

    def finish() -> Packing:
        for spread in _SPREADS if centre is not None else ():
            prices = Prices(network, best / np.array(network.rates), spread)
            for shape in priced:
                for route in cheapest_routes(shape, prices)[1]:
                    master.add(shape, route)
        return master.packing(slack)

    return Draft(master.solve()[0], best, finish)


class _Master:
    """The linear program over the routes known so far: least T with the load of every resource at most T."""

    def __init__(self, volumes: Mapping[Shape, float], network: Network) -> None:
        import highspy

        self.network = network
        self.volumes = volumes
        self.rows = {shape: row for row, shape in enumerate(volumes)}
        self.columns: dict[tuple[Shape, Route], int] = {}
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

    def add(self, shape: Shape, route: Route) -> bool:
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

    def packing(self, slack: float) -> Packing:
        value, _ = self.solve()
        solver = self.solver
        solver.changeColBounds(0, 0.0, value * (1 + slack))
        solver.changeColCost(0, 0.0)
        for (_, route), column in self.columns.items():
            solver.changeColCost(column, compute_delay(route, self.network) * self.unit)
        solver.run()
        amounts = solver.getSolution().col_value
        routes: dict[Shape, list[tuple[Route, float]]] = {shape: [] for shape in self.volumes}
        for (shape, route), column in self.columns.items():
            routes[shape].append((route, max(0.0, amounts[column]) * self.unit))
        return Packing({shape: tuple(found) for shape, found in routes.items()}, value)


def total_volume(shapes: Mapping[Shape, Sequence[int]], sizes: Sequence[int]) -> dict[Shape, float]:
    """The bytes of all demands of every shape."""
    return {shape: float(sum(sizes[position] for position in found)) for shape, found in shapes.items()}
