"""Max-min fair rates by progressive filling: all rates rise together; those that cross a full resource stop."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Route = tuple[int, ...]
"""The positions of the resources that a flow crosses. Flows of one route always have the same rate."""


class Network:
    """Resources of fixed capacity and the flows that cross them; rates are in the unit of the capacities."""

    __slots__ = ("_capacity", "_load", "_users")

    def __init__(self, capacity: Sequence[float]) -> None:
        self._capacity = capacity
        self._load: dict[int, int] = {}  # flows, by resource that any flow crosses
        self._users: dict[int, dict[Route, int]] = {}  # flows by route, for every such resource

    def add(self, route: Route, count: int) -> None:
        """Let `count` more flows (fewer, where negative) take a route of at least one resource."""
        for resource in route:
            users = self._users.setdefault(resource, {})
            users[route] = users.get(route, 0) + count
            self._load[resource] = self._load.get(resource, 0) + count
            if not users[route]:
                del users[route]
            if not users:
                del self._users[resource], self._load[resource]

    def rates(self) -> dict[Route, float]:
        """The rate of each single flow of every route that has flows."""
        rates: dict[Route, float] = {}
        load = self._load.copy()  # of flows whose rate still rises
        left = {resource: self._capacity[resource] for resource in load}
        queue = [(left[resource] / flows, resource) for resource, flows in load.items()]
        heapq.heapify(queue)
        level = 0.0
        while queue:
            share, resource = queue[0]
            flows = load[resource]
            if not flows:
                heapq.heappop(queue)
            elif (now := left[resource] / flows) > share:
                heapq.heapreplace(queue, (now, resource))  # flows have stopped elsewhere since: it fills later
            else:
                heapq.heappop(queue)
                level = max(level, now)
                for route, count in self._users[resource].items():
                    if route not in rates:
                        rates[route] = level
                        taken = level * count
                        for crossed in route:
                            load[crossed] -= count
                            left[crossed] -= taken
        return rates
