"""Tasks of a plan that take place at the same time because the plan looks alike from their sites.

On a machine of equal nodes most plans do the same everywhere, so that one task of each class is enough to simulate. The
classes are the coarsest ones that are equitable: tasks of a class take equally long, wait for equally many tasks of
every class, stand at the same place of the order of their sites, and cross resources of the same classes; resources of
a class are crossed by equally many transfers of every class, and sites of a class run the same classes in the same
order. By induction over the instants of the simulation, such tasks start and end together: at every instant the flows
under way are whole classes, resources of a class have the same load, and max-min fair rates are unique.

The classes are found by colour refinement (Weisfeiler and Leman): every round hashes what a task, a site or a resource
is next to, until no class is split. What is merged depends on the plan alone, and merging changes times in their last
bits at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.machines.model import Machine
from einc.machines.site_counts import MANY_SITES
from einc.predict.costs import TaskCost, TaskKind
from einc_runtime.dtypes import Ints

Words = np.ndarray[Any, np.dtype[np.uint64]]

MIN_MEMBERS = 2
"""Tasks of a class on average, from which on merging pays."""

NO_LANE = -1
"""In place of the number of a lane, where a task is no transfer."""

_MAX_ROUNDS = 64
"""Rounds of refinement. Most plans need fewer than ten, as all tasks of a site are next to each other."""


@dataclass(frozen=True, slots=True)
class TaskLanes:
    """What every task crosses: its route or NO_LANE, the resources of every route, and the bytes per ms of these.

    A route that names a resource several times takes as many shares of it.
    """

    of_tasks: Sequence[int]
    routes: tuple[tuple[int, ...], ...]
    capacity: list[float]


@dataclass(frozen=True, slots=True)
class MergedTasks:
    """One task of every class, what these cross, and the class of every task of the plan."""

    costs: tuple[TaskCost, ...]
    lanes: TaskLanes
    classes: tuple[int, ...]


def merge_alike(costs: Sequence[TaskCost], lanes: TaskLanes, machine: Machine) -> MergedTasks | None:
    """One task of each class of those that start and end together; None if there are too many classes to gain."""
    if len(machine.sites) <= MANY_SITES or not costs:
        return None
    refinement = _Refinement(costs, lanes, machine)
    if not refinement.refine():
        return None
    return refinement.merge()


class _Refinement:
    """The colours of tasks, sites and resources, refined until they do not change any more."""

    def __init__(self, costs: Sequence[TaskCost], lanes: TaskLanes, machine: Machine) -> None:
        self.costs, self.lanes = costs, lanes
        self.tasks = np.array(_number([_describe(cost) for cost in costs]), np.uint64)
        kinds = [cost.kind for cost in costs]
        sites = np.array([cost.site for cost in costs], np.int64)
        waits = np.array([len(cost.after) for cost in costs], np.int64)
        self.befores: Ints = np.array([before for cost in costs for before in cost.after], np.int64)
        self.afters: Ints = np.repeat(np.arange(len(costs)), waits)
        # Runs: what occupies a site, by site and in the order of the plan.
        runs = np.array([kind in (TaskKind.KERNEL, TaskKind.COMBINE) for kind in kinds])
        self.runs: Ints = np.flatnonzero(runs)[np.argsort(sites[runs], kind="stable")]
        self.run_sites: Ints = sites[self.runs]
        first_runs = np.searchsorted(self.run_sites, np.arange(len(machine.sites)))
        self.turns: Words = _mix((np.arange(len(self.runs)) - first_runs[self.run_sites]).astype(np.uint64))
        self.sites: Words = _mix(np.array(_number(machine.sites), np.uint64))
        # Crossings: a transfer, and a resource of its route.
        moves = np.flatnonzero([kind is TaskKind.TRANSFER for kind in kinds])
        routes = [lanes.routes[lanes.of_tasks[move]] for move in moves.tolist()]
        self.moves: Ints = np.repeat(moves, [len(route) for route in routes])
        self.crossed: Ints = np.array([resource for route in routes for resource in route], np.int64)
        self.resources: Words = _mix(np.array(_number(lanes.capacity), np.uint64))
        self.colours: Words = _mix(self.tasks + _mix(np.array(_find_depths(costs), np.uint64)))

    def refine(self) -> bool:
        """Splits classes until none is split; whether so few are left that merging pays."""
        count = 0
        for _ in range(_MAX_ROUNDS):
            old, count = count, len(set(self.colours.tolist()))
            if count * MIN_MEMBERS > len(self.costs):
                return False
            if old == count:
                return True
            self._refine_once()
        return False

    def _refine_once(self) -> None:
        colours = self.colours
        site_colours = self.sites + self._add_up(_mix(colours[self.runs] + self.turns), self.run_sites, len(self.sites))
        resources = self.resources + self._add_up(_mix(colours[self.moves]), self.crossed, len(self.resources))
        around = self._add_up(_mix(colours[self.befores] + _WAITED), self.afters, len(colours))
        around += self._add_up(_mix(_mix(resources)[self.crossed]), self.moves, len(colours))
        around[self.runs] += _mix(_mix(site_colours)[self.run_sites] + self.turns)
        self.colours = _mix(colours + _mix(around))
        self.site_colours, self.resource_colours = site_colours, resources

    @staticmethod
    def _add_up(values: Words, places: Ints, size: int) -> Words:
        """The sum, modulo 2^64, of what belongs to each place."""
        sums = np.zeros(size, np.uint64)
        np.add.at(sums, places, values)
        return sums

    def merge(self) -> MergedTasks:
        """The tasks of the first site of every class, and one transfer and one fence of every class."""
        classes: Ints = np.unique(self.colours, return_inverse=True)[1]
        _, first_sites, site_classes = np.unique(self.site_colours, return_index=True, return_inverse=True)
        stands_for = first_sites[site_classes]  # by site: the first one of its class
        examples: dict[int, int] = {}
        for task, cost in enumerate(self.costs):
            runs = cost.kind in (TaskKind.KERNEL, TaskKind.COMBINE)
            if not runs or stands_for[cost.site] == cost.site:
                examples.setdefault(int(classes[task]), task)
        order = sorted(examples, key=examples.__getitem__)  # so that sites keep the order of what they run
        number = np.zeros(len(order), np.int64)
        number[order] = np.arange(len(order))
        numbered = number[classes]
        merged = tuple(_renumber(self.costs[examples[c]], numbered) for c in order)
        return MergedTasks(merged, self._merge_lanes(numbered, len(order)), tuple(numbered.tolist()))

    def _merge_lanes(self, classes: Ints, count: int) -> TaskLanes:
        """For every class of transfers the classes of resources that it crosses, with the shares that it takes.

        Of a resource, a class takes as many shares as there are transfers of it that cross this resource.
        """
        _, first, resource_classes = np.unique(self.resource_colours, return_index=True, return_inverse=True)
        sizes = np.bincount(resource_classes)
        crossings: dict[tuple[int, int], int] = {}
        pairs = zip(classes[self.moves].tolist(), resource_classes[self.crossed].tolist(), strict=True)
        for pair in pairs:
            crossings[pair] = crossings.get(pair, 0) + 1
        shares = {pair: crossed // int(sizes[pair[1]]) for pair, crossed in crossings.items()}
        common = [0] * len(sizes)
        for (_, resource), share in shares.items():
            common[resource] = math.gcd(common[resource], share)
        crossed_by: list[list[int]] = [[] for _ in range(count)]
        for (task, resource), share in sorted(shares.items()):
            crossed_by[task] += [resource] * (share // common[resource])
        routes = tuple(dict.fromkeys(tuple(route) for route in crossed_by if route))
        position = {route: lane for lane, route in enumerate(routes)}
        capacity = [self.lanes.capacity[int(f)] / max(1, g) for f, g in zip(first, common, strict=True)]
        return TaskLanes([position.get(tuple(route), NO_LANE) for route in crossed_by], routes, capacity)


_WAITED = np.uint64(0x9E3779B97F4A7C15)
"""Keeps what a task waits for apart from what it is next to in other ways: the odd constant of splitmix64."""

_MIX_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_MIX_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The finalizer of splitmix64 (Steele, Lea and Flood, 2014), which mixes all bits of a word."""


def _mix(words: Words) -> Words:
    mixed = words + _WAITED
    mixed = (mixed ^ (mixed >> _MIX_SHIFTS[0])) * _MIX_FACTORS[0]
    mixed = (mixed ^ (mixed >> _MIX_SHIFTS[1])) * _MIX_FACTORS[1]
    return mixed ^ (mixed >> _MIX_SHIFTS[2])


def _describe(cost: TaskCost) -> Hashable:
    """All that a task takes time for, wherever it is. The task that its early bytes wait for is one that it waits for
    itself."""
    early = None if cost.early is None else cost.early._replace(after=0)
    return cost.kind, cost.size, cost.flops, cost.precision, cost.task, cost.work, cost.latency_ms, early


def _renumber(cost: TaskCost, numbered: Ints) -> TaskCost:
    early = None if cost.early is None else cost.early._replace(after=int(numbered[cost.early.after]))
    return cost._replace(after=tuple(sorted({int(numbered[before]) for before in cost.after})), early=early)


def _number(values: Sequence[Any]) -> list[int]:
    """Equal values get the same number."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _find_depths(costs: Sequence[TaskCost]) -> list[int]:
    """For every task how many tasks wait for each other before it: a first colour, which makes rounds few."""
    depths: list[int] = []
    get: Callable[[int], int] = depths.__getitem__
    for cost in costs:
        depths.append(1 + max(map(get, cost.after), default=0))
    return depths
