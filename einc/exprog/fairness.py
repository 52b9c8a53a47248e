"""Max-min fair rates by progressive filling: all rates rise together; those that cross a full resource stop."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

Route = tuple[int, ...]
"""The positions of the resources that a flow crosses. Flows of one route always have the same rate."""


def fair_rates(flows: Mapping[Route, int], capacity: Sequence[float]) -> dict[Route, float]:
    """The rate of each single flow of every route.

    `flows` counts the flows per (non-empty) route; `capacity` is by resource, in any unit, and the rates are in it.
    """
    left: dict[int, float] = {}
    load: dict[int, int] = {}  # flows that still rise, by resource
    users: dict[int, list[Route]] = {}
    for route, count in flows.items():
        for resource in route:
            if resource not in load:
                left[resource], load[resource], users[resource] = capacity[resource], 0, []
            load[resource] += count
            users[resource].append(route)
    rates: dict[Route, float] = {}
    queue = [(left[resource] / load[resource], resource) for resource in load]
    heapq.heapify(queue)
    level = 0.0
    while queue:
        share, resource = heapq.heappop(queue)
        if not load[resource]:
            continue
        now = left[resource] / load[resource]
        if now > share:  # flows have stopped elsewhere since: this resource fills later than it seemed
            heapq.heappush(queue, (now, resource))
            continue
        level = max(level, now)
        for route in users[resource]:
            if route not in rates:
                rates[route] = level
                for crossed in route:
                    load[crossed] -= flows[route]
                    left[crossed] -= level * flows[route]
    return rates
