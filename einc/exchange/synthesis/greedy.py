"""Routes for thousands of demands: each takes the one on which the fullest resources suffer least, then thinks again.

A packing without a linear program, for machines with many sites, where routes straight to one root suffice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Shape
from einc.exchange.synthesis.packing import Packing
from einc.exchange.synthesis.routes import Route, compute_load
from einc.exchange.synthesis.simple import simple_routes

MOST_ROOTS = 12
SHARES = 4
"""Equal parts of a demand's bytes that may take different routes, where there are not too many demands."""

MOST_SHARES = 4000
_ROUNDS = 3
_SHARPNESS = 8
"""The power of its load with which a resource counts: high enough that the fullest ones dominate."""

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Ints = np.ndarray[Any, np.dtype[np.int64]]


def pack_greedily(volumes: Mapping[Shape, float], network: Network) -> Packing:
    """A packing of so many bytes of every shape."""
    rates = np.array(network.rates)
    load: _Floats = np.zeros(len(rates))
    shares = max(1, min(SHARES, MOST_SHARES // len(volumes)))
    pools = {
        shape: _Pool(simple_routes(shape, network, MOST_ROOTS, turn), network, rates)
        for turn, shape in enumerate(volumes)
    }
    order = sorted(volumes, key=lambda shape: -volumes[shape] * len(shape.holders))
    taken: dict[Shape, list[int]] = {shape: [-1] * shares for shape in order}
    for _ in range(_ROUNDS):
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
    return Packing(routes, float(load.max()))


class _Pool:
    """The routes of a shape, and what a byte on each takes of which resources, end to end."""

    def __init__(self, routes: list[Route], network: Network, rates: _Floats) -> None:
        self.routes = routes
        loads = [compute_load(route, network) for route in routes]
        self.starts: _Ints = np.cumsum([0, *(len(entry) for entry in loads)])
        self.resources: _Ints = np.array([resource for entry in loads for resource in entry], np.int64)
        traffic = np.array([much for entry in loads for much in entry.values()])
        self.times: _Floats = traffic / rates[self.resources]

    def add(self, load: _Floats, route: int, much: float) -> None:
        own = slice(self.starts[route], self.starts[route + 1])
        load[self.resources[own]] += much * self.times[own]

    def cheapest(self, load: _Floats, much: float) -> int:
        """The route on which the powers of the loads grow least."""
        before = load[self.resources]
        after = before + much * self.times
        scale = max(float(load.max()), float(after.max()))
        growth = (after / scale) ** _SHARPNESS - (before / scale) ** _SHARPNESS
        return int(np.add.reduceat(growth, self.starts[:-1]).argmin())
