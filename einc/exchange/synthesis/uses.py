"""What pieces do on the routes there are for them: which resource each step takes, when, and for how long.

On a route, what comes before a step (its *head*) has to pass before the resource can begin with it, and what comes
after (its *tail*) when it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from einc.exchange.network import Network
from einc.exchange.synthesis.routes import Route, list_crossed, measure_step, needs

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Uses(NamedTuple):
    """A row for every resource that a step of a route takes: the route's number, and times in ms for one piece."""

    route: Ints
    resource: Ints
    time: Floats
    head: Floats
    tail: Floats


class Pool:
    """Routes, and what is known of their steps whatever the size of a piece: for every route and position a column."""

    def __init__(self, routes: Sequence[Route], network: Network) -> None:
        self.routes = routes
        length = max(map(len, routes))
        most_needed = max(len(needs(step)) for route in routes for step in route)
        copies: Floats = np.zeros((len(routes), length))  # bytes that pass the slowest resource per byte of the piece
        rate: Floats = np.ones((len(routes), length))
        latency: Floats = np.zeros((len(routes), length))
        # The steps that bring what a step needs; `length` stands for what is there from the beginning.
        before: Ints = np.full((length, len(routes), most_needed), length)
        taken: list[tuple[int, int, int]] = []
        for number, route in enumerate(routes):
            brought = {(step.parts, step.destination): position for position, step in enumerate(route)}
            for position, step in reversed([*enumerate(route)]):
                here = number, position
                copies[here], rate[here], latency[here] = measure_step(step, network)
                for column, copy in enumerate(needs(step)):
                    before[position, number, column] = brought.get(copy, length)
                taken += [(number, position, resource) for resource in list_crossed(step, network)]
        self._work = copies, rate, latency
        self._before = before
        self._taken: Ints = np.array(taken, np.int64).T

    def uses(self, size: float) -> Uses:
        """What one piece of so many bytes does on each route."""
        copies, rate, latency = self._work
        durations = copies * size / rate + latency
        routes, length = durations.shape
        every = np.arange(routes)[:, None]
        heads: Floats = np.zeros((routes, length))
        ends: Floats = np.zeros((routes, length + 1))
        for position in range(length):
            heads[:, position] = ends[every, self._before[position]].max(1)
            ends[:, position] = heads[:, position] + durations[:, position]
        tails: Floats = np.zeros((routes, length + 1))
        for position in reversed(range(length)):
            needed = every, self._before[position]
            tails[needed] = np.maximum(tails[needed], (tails[:, position] + durations[:, position])[:, None])
        route, position, resource = self._taken
        # Rounded, so that equal heads and tails on different routes are equal here too.
        head, tail = (times[route, position].round(12) for times in (heads, tails))
        return Uses(route, resource, durations[route, position], head, tail)
