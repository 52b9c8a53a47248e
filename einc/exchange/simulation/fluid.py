"""Jobs that share resources at max-min fair rates, from event to event: the inner loop of the simulators.

Everything is kept in integers and flat lists. Rates are computed again only for lanes that share a resource, directly
or through others, with a lane whose jobs have changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

SAME_INSTANT = 1e-12
"""Ends within this part of the time passed count as one instant."""

_TIED = 16
"""Once all lanes were found to be connected, they are filled together this often before it is checked again."""

Job = tuple[int, int]
"""The name of a job, chosen by the caller."""


class Fluid:
    """Lanes of jobs; the jobs of a lane cross the same resources and always have the same rate. Of a resource that a
    lane names several times, each of its jobs takes as many shares.

    Capacities are in bytes per ms; times in ms never decrease from call to call. After jobs have joined or left,
    `balance` must be called before `upcoming`. With `update_all` every `balance` brings all lanes up to date and
    computes all rates, which is slower. Times then do not depend, in their last bits, on which lanes are connected.
    """

    __slots__ = (
        "_active",
        "_capacity",
        "_changed",
        "_crossings",
        "_load",
        "_marks",
        "_next",
        "_private",
        "_rate",
        "_routes",
        "_served",
        "_sharing",
        "_since",
        "_tied",
        "_update_all",
        "_used",
        "_users",
    )

    def __init__(
        self,
        capacity: list[float],
        routes: Sequence[tuple[int, ...]],
        private: Sequence[float],
        crossings: Sequence[Mapping[int, tuple[int, ...]]] | None = None,
        update_all: bool = False,
    ) -> None:
        lanes = len(routes)
        self._capacity = capacity
        self._routes = routes  # by lane: the resources that it crosses
        self._private = private  # by lane: its capacity where no other lane crosses its resources, else 0
        # By resource and lane: what else the lane crosses.
        self._crossings = index_crossings(len(capacity), routes) if crossings is None else crossings
        # By lane: when jobs end, in `served`. Lanes without jobs share a list, as few of many are used.
        self._marks: list[list[tuple[float, Job]]] = [[]] * lanes
        self._rate = [0.0] * lanes
        self._served = [0.0] * lanes  # bytes that each job of the lane has been given up to `since`
        self._since = [0.0] * lanes
        self._next = [0.0] * lanes  # when the first job of the lane ends, if the rate stays
        self._active: dict[int, None] = {}  # lanes that have jobs
        self._users: list[set[int]] = [set() for _ in capacity]  # by resource that lanes share: active lanes
        self._sharing: set[int] = set()  # active lanes that are not alone, and the resources that they cross
        self._used: set[int] = set()
        self._tied = 0  # how many more times they all count as connected
        self._load = [0] * len(capacity)  # by resource that lanes share: jobs
        self._changed: dict[int, None] = {}  # lanes whose jobs came or went since `balance`
        self._update_all = update_all

    def join(self, lane: int, size: float, job: Job, now: float) -> None:
        """A job of `size` bytes joins."""
        marks = self._marks[lane]
        if marks:
            served = self._served[lane] = self._served[lane] + self._rate[lane] * (now - self._since[lane])
        else:  # counting starts at zero, as large sums would cost precision
            marks = self._marks[lane] = []
            served = self._served[lane] = self._rate[lane] = 0.0
            self._active[lane] = None
            if not self._private[lane]:
                self._sharing.add(lane)
                for resource in self._routes[lane]:
                    self._users[resource].add(lane)
                    self._used.add(resource)
        if not self._private[lane]:
            for resource in self._routes[lane]:
                self._load[resource] += 1
        self._since[lane] = now
        heapq.heappush(marks, (served + size, job))
        self._changed[lane] = None

    def upcoming(self) -> float | None:
        """When the next job ends; None where there is none."""
        return min(map(self._next.__getitem__, self._active)) if self._active else None

    def leave(self, now: float, slack: float) -> list[tuple[int, Job]]:
        """The jobs that end by `now` + `slack` leave, each with its lane."""
        done = []
        due = now + slack
        following = self._next
        for lane in [lane for lane in self._active if following[lane] <= due]:
            marks = self._marks[lane]
            rate = self._rate[lane]
            served = self._served[lane] = self._served[lane] + rate * (now - self._since[lane])
            self._since[lane] = now
            done.append((lane, heapq.heappop(marks)[1]))
            gone = 1
            reach = served + rate * slack
            while marks and marks[0][0] <= reach:
                done.append((lane, heapq.heappop(marks)[1]))
                gone += 1
            self._changed[lane] = None
            if not marks:
                del self._active[lane]
            if not self._private[lane]:
                for resource in self._routes[lane]:
                    self._load[resource] -= gone
                    if not marks:  # a lane may take several shares of a resource
                        self._users[resource].discard(lane)
                        if not self._users[resource]:
                            self._used.discard(resource)
                if not marks:
                    self._sharing.remove(lane)
        return done

    def balance(self, now: float) -> None:
        """Give every lane whose rate may have changed its max-min fair rate."""
        changed = self._changed
        if not changed:
            return
        if self._update_all:
            for lane in self._active:
                if self._private[lane]:
                    self._set(lane, self._private[lane] / len(self._marks[lane]), now)
            self._fill(self._used, self._sharing.copy(), now)
            changed.clear()
            return
        shared = []
        for lane in changed:
            if not self._private[lane]:
                shared.append(lane)
            elif jobs := len(self._marks[lane]):
                self._set(lane, self._private[lane] / jobs, now)
        if self._tied:  # filling all at once is also correct, and likely to be needed here
            self._tied -= 1
            if shared:
                self._fill(self._used, self._sharing.copy(), now)
        else:
            self._fill_around(shared, now)
        changed.clear()

    def _fill_around(self, shared: Sequence[int], now: float) -> None:
        """Fill everything that is connected with these lanes."""
        seen: set[int] = set()
        for lane in shared:
            for resource in self._routes[lane]:
                if resource not in seen and self._users[resource]:
                    component, lanes = self._component(resource)
                    seen.update(component)
                    if len(lanes) == len(self._sharing):
                        self._tied = _TIED
                    self._fill(component, lanes, now)

    def _component(self, resource: int) -> tuple[set[int], set[int]]:
        """The resources and active lanes that a resource is connected with."""
        component = {resource}
        lanes: set[int] = set()
        reached = [resource]
        users, routes = self._users, self._routes
        for reached_resource in reached:
            new = users[reached_resource] - lanes
            lanes |= new
            for lane in new:
                for route_resource in routes[lane]:
                    if route_resource not in component:
                        component.add(route_resource)
                        reached.append(route_resource)
        return component, lanes

    def _fill(self, component: set[int], rising: set[int], now: float) -> None:
        """Progressive filling: all rates rise together; those of lanes that cross a full resource stop."""
        marks, rates, users = self._marks, self._rate, self._users
        served, since, following = self._served, self._since, self._next
        changed, crossings, update_all = self._changed, self._crossings, self._update_all
        load, left = self._load.copy(), self._capacity.copy()
        queue = [(left[resource] / load[resource], resource) for resource in component]
        heapq.heapify(queue)
        level = 0.0
        while rising:
            share, resource = queue[0]
            jobs = load[resource]
            if not jobs:
                heapq.heappop(queue)
                continue
            fills = left[resource] / jobs
            if fills > share:
                heapq.heapreplace(queue, (fills, resource))  # jobs have stopped elsewhere since: it fills later
                continue
            heapq.heappop(queue)
            if fills > level:
                level = fills
            stopping = users[resource] & rising
            rising -= stopping
            crossed = crossings[resource]
            for lane in stopping:
                lane_marks = marks[lane]
                count = len(lane_marks)
                for crossing in crossed[lane]:
                    load[crossing] -= count
                    left[crossing] -= level * count
                rate = rates[lane]
                if rate != level or update_all or lane in changed:
                    delivered = served[lane] = served[lane] + rate * (now - since[lane])
                    since[lane] = now
                    rates[lane] = level
                    missing = lane_marks[0][0] - delivered
                    following[lane] = now + missing / level if missing > 0.0 else now

    def _set(self, lane: int, rate: float, now: float) -> None:
        served = self._served[lane] = self._served[lane] + self._rate[lane] * (now - self._since[lane])
        self._since[lane] = now
        self._rate[lane] = rate
        self._next[lane] = now + max(0.0, self._marks[lane][0][0] - served) / rate


def find_private_capacities(capacity: Sequence[float], routes: Iterable[tuple[int, ...]]) -> list[float]:
    """For every lane its capacity, where no other lane crosses its resources; 0 where one does."""
    crossing = [0] * len(capacity)
    kept = list(routes)
    for route in kept:
        for resource in route:
            crossing[resource] += 1
    return [
        min(capacity[resource] for resource in route) if all(crossing[resource] == 1 for resource in route) else 0.0
        for route in kept
    ]


def index_crossings(resources: int, routes: Iterable[tuple[int, ...]]) -> list[dict[int, tuple[int, ...]]]:
    """For every resource the lanes that cross it, each with the other resources that the lane crosses."""
    table: list[dict[int, tuple[int, ...]]] = [{} for _ in range(resources)]
    for lane, route in enumerate(routes):
        for resource in route:
            table[resource][lane] = tuple(crossed for crossed in route if crossed != resource)
    return table
