"""List scheduling: tasks in an order in which every resource serves one at a time, and the search for a good order.

A transfer alone on its path is never slower than with a share of it, and what comes first can go on at once: with k
pieces on a link, an order lets the next link begin after one piece instead of after all.

Tasks are the transfers and aggregations of pieces on their routes, with what each needs first and what it occupies. A
schedule of the tasks becomes actions again: the order in which every resource serves its tasks becomes waits.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from einc.exchange.language.program import Action, Aggregate
from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Demand, DemandShape
from einc.exchange.synthesis.routes import Route, compute_duration, list_crossed, list_needed_copies
from einc.exchange.synthesis.splitting import name_piece, split_size
from einc.machines.site_counts import MANY_SITES

_SETTLED = 2
"""Gaps are closed in this many of the first schedules."""

_FRUITLESS = 10
"""The search for a better order makes at least this many changes without success before it ends."""


class ListScheduler:
    """Schedules the tasks by given priorities, forwards from the beginning or backwards from the end."""

    def __init__(self, tasks: ExchangeTasks) -> None:
        self.durations = tasks.durations
        self.occupied = tasks.occupied
        self.before = tasks.before
        after: list[list[int]] = [[] for _ in tasks.actions]
        for task, needed in enumerate(tasks.before):
            for earlier in needed:
                after[earlier].append(task)
        self.after = [tuple(entry) for entry in after]
        self.resources = 1 + max((resource for path in tasks.occupied for resource in path), default=0)

    def schedule_forwards(self, keys: Sequence[float]) -> TaskSchedule:
        """The schedule in which a free resource is always taken by the ready task of the least key."""
        return self._run(keys, self.before, self.after)

    def close_gaps(self, schedule: TaskSchedule, rounds: int = 2) -> TaskSchedule:
        """Close gaps: push all tasks towards the end, then towards the beginning, in their order."""
        best = schedule
        for _ in range(rounds):
            durations = self.durations
            ends = [-(start + duration) for start, duration in zip(schedule.starts, durations, strict=True)]
            late = self._run(ends, self.after, self.before)
            keys = [-(start + duration) for start, duration in zip(late.starts, durations, strict=True)]
            schedule = self.schedule_forwards(keys)
            if schedule.makespan >= best.makespan * (1 - 1e-9):
                break
            best = schedule
        return best

    def compute_tails(self) -> list[float]:
        """For every task the longest chain of durations from its start to the end of all that needs it."""
        tails = [0.0] * len(self.durations)
        count = [len(entry) for entry in self.after]
        ready = [task for task, open_ in enumerate(count) if not open_]
        while ready:
            task = ready.pop()
            tails[task] += self.durations[task]
            for earlier in self.before[task]:
                tails[earlier] = max(tails[earlier], tails[task])
                count[earlier] -= 1
                if not count[earlier]:
                    ready.append(earlier)
        return tails

    def _run(
        self, keys: Sequence[float], before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]]
    ) -> TaskSchedule:
        durations, occupied = self.durations, self.occupied
        starts = [0.0] * len(durations)
        open_ = [len(entry) for entry in before]
        free = [True] * self.resources
        queued: list[list[tuple[float, int]]] = [[] for _ in range(self.resources)]
        running: list[tuple[float, int]] = []
        # (key, task, the resource in whose queue it waits as the first): those that may start at this instant
        candidates = [(keys[task], task, -1) for task, count in enumerate(open_) if not count]
        heapq.heapify(candidates)
        now = 0.0
        while True:
            while candidates:
                key, task, waited = heapq.heappop(candidates)
                if waited >= 0:
                    if not free[waited]:
                        continue  # taken by now: it goes on waiting
                    heapq.heappop(queued[waited])
                for resource in occupied[task]:
                    if not free[resource]:
                        heapq.heappush(queued[resource], (key, task))
                        break
                else:
                    for resource in occupied[task]:
                        free[resource] = False
                    starts[task] = now
                    heapq.heappush(running, (now + durations[task], task))
                if waited >= 0 and free[waited] and queued[waited]:
                    heapq.heappush(candidates, (*queued[waited][0], waited))
            if not running:
                return TaskSchedule(starts, now)
            now = running[0][0]
            freed: dict[int, None] = {}
            limit = now * (1 + 1e-12)
            while running and running[0][0] <= limit:
                task = heapq.heappop(running)[1]
                for resource in occupied[task]:
                    free[resource] = True
                    freed[resource] = None
                for later in after[task]:
                    open_[later] -= 1
                    if not open_[later]:
                        heapq.heappush(candidates, (keys[later], later, -1))
            for resource in freed:
                if queued[resource]:
                    heapq.heappush(candidates, (*queued[resource][0], resource))


def build_first_schedule(tasks: ExchangeTasks, seed: int) -> TaskSchedule:
    """The best schedule of several rules: the longest chain first, the pieces of every route in turn, and mixtures."""
    scheduler = ListScheduler(tasks)
    tails = scheduler.compute_tails()
    load: dict[int, float] = {}
    for path, duration in zip(tasks.occupied, tasks.durations, strict=True):
        for resource in path:
            load[resource] = load.get(resource, 0.0) + duration
    length = max(load.values(), default=0.0)
    busy = [max(load[resource] for resource in path) for path in tasks.occupied]
    mean = sum(tasks.durations) / max(1, len(tasks.durations))
    noise = random.Random(seed)
    rules: tuple[Sequence[float], ...] = (
        [-tail for tail in tails],
        [-tail - load for tail, load in zip(tails, busy, strict=True)],
        [turn * length - tail for turn, tail in zip(tasks.turns, tails, strict=True)],
        [turn * length for turn in tasks.turns],
        [-tail - noise.random() * 2 * mean for tail in tails],
    )
    if len({action.source for action in tasks.actions}) > MANY_SITES:  # there, sites that lie alike do alike, too
        rules = (
            *rules[:4],
            tasks.places,
            [offset * length - tail for offset, tail in zip(tasks.places, tails, strict=True)],
            [offset * length / 1e3 - tail for offset, tail in zip(tasks.places, tails, strict=True)],
        )
    trials = sorted((scheduler.schedule_forwards(keys) for keys in rules), key=_get_makespan)
    return min((scheduler.close_gaps(trial) for trial in trials[:_SETTLED]), key=_get_makespan)


def _get_makespan(schedule: TaskSchedule) -> float:
    return schedule.makespan


def improve_schedule(
    tasks: ExchangeTasks, best: TaskSchedule, seed: int, rounds: int, stop: Callable[[], bool], goal: float = 0.0
) -> Iterator[TaskSchedule]:
    """Better and better schedules, found by `rounds` random changes of the order of the best one.

    Ends early when one reaches `goal`, or when a quarter of the rounds (at least ten) in a row found nothing.
    """
    scheduler = ListScheduler(tasks)
    mean = sum(tasks.durations) / max(1, len(tasks.durations))
    noise = random.Random(seed)
    patience = max(_FRUITLESS, rounds // 4)
    left = patience
    for _ in range(rounds):
        if stop() or best.makespan <= goal or not left:
            return
        left -= 1
        spread = mean * noise.choice((0.5, 1.0, 3.0))
        keys = [start + noise.gauss(0.0, spread) for start in best.starts]
        trial = scheduler.close_gaps(scheduler.schedule_forwards(keys), 1)
        if trial.makespan < best.makespan * (1 - 1e-9):
            best, left = trial, patience
            yield best


@dataclass(frozen=True, slots=True)
class ExchangeTasks:
    """One entry per action (each a single transfer or aggregation, without waits); times in ms.

    `before` are the positions of the tasks that bring what a task needs. `forms` are those among them that form the
    copy it sends: it must wait for them, or it would aggregate a second time. `turns` are from 0 to 1: the place of a
    task's piece among those that take the same route. `places` are from 0 to 1 too, and tell tasks of one turn apart:
    sends that are equally far around their cluster have the same one, so that all sites can send at once.
    """

    actions: tuple[Action, ...]
    durations: tuple[float, ...]
    occupied: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    forms: tuple[tuple[int, ...], ...]
    turns: tuple[float, ...]
    places: tuple[float, ...]


class TaskSchedule(NamedTuple):
    """When every task starts, and when the last one ends, in ms."""

    starts: list[float]
    makespan: float


def build_tasks(demands: Sequence[Demand], routes: Sequence[Sequence[Route]], network: Network) -> ExchangeTasks:
    """The tasks of all demands, one piece per route. A transfer that two demands share is one task."""
    number: dict[Action, int] = {}
    durations: list[float] = []
    occupied: list[tuple[int, ...]] = []
    before: list[set[int]] = []
    forms: list[set[int]] = []
    turns: list[float] = []
    places: list[float] = []
    number_of = {site: position for position, site in enumerate(network.sites)}
    farthest = int(network.offsets.max()) + 1
    using: dict[tuple[DemandShape, Route], int] = {}
    used: dict[tuple[DemandShape, Route], int] = {}
    for demand, chosen in zip(demands, routes, strict=True):
        for route in chosen:
            using[demand.shape, route] = using.get((demand.shape, route), 0) + 1
    for demand, chosen in zip(demands, routes, strict=True):
        sizes = split_size(demand.size, len(chosen))
        for position, route in enumerate(chosen):
            way = (demand.shape, route)
            used[way] = used.get(way, 0) + 1
            names: dict[int, Aggregate] = {}
            makers: dict[tuple[int, int], int] = {}
            for step in route:
                name = names.get(step.parts)
                if name is None:
                    combined = [atom for k, part in enumerate(demand.parts) if step.parts >> k & 1 for atom in part]
                    name = names[step.parts] = name_piece(tuple(sorted(combined)), position, len(chosen))
                ends = (step.destination,) if step.destination != step.source else ()
                action = Action(name, step.source, ends)
                task = number.setdefault(action, len(number))
                if task == len(durations):
                    durations.append(compute_duration(step, sizes[position], network))
                    occupied.append(list_crossed(step, network))
                    before.append(set())
                    forms.append(set())
                    turns.append((used[way] - 0.5) / using[way])
                    offset = int(network.offsets[number_of[step.source], number_of[step.destination]])
                    places.append((used[way] - 1 + offset / farthest) / using[way])
                makers.setdefault((step.parts, step.destination), task)
                for copy in list_needed_copies(step):
                    if copy in makers:
                        before[task].add(makers[copy])
                        if ends and makers[copy] != task and copy[0] == step.parts:
                            forms[task].add(makers[copy])
    actions = tuple(number)
    return ExchangeTasks(
        actions,
        tuple(durations),
        tuple(occupied),
        tuple(tuple(sorted(entry)) for entry in before),
        tuple(tuple(sorted(task for task in entry if not actions[task].destinations)) for entry in forms),
        tuple(turns),
        tuple(places),
    )


def write_ordered_actions(tasks: ExchangeTasks, schedule: TaskSchedule, together: int = 1) -> tuple[Action, ...]:
    """The tasks as actions in the order of their starts; each waits for the one before it on each of its resources.

    With `together` above 1 it waits for the one that many places before it, so that the latency of one transfer passes
    while others use the resource.
    """
    starts = schedule.starts
    order = sorted(range(len(starts)), key=lambda task: (starts[task], starts[task] + tasks.durations[task], task))
    served: dict[int, list[int]] = {}
    written = []
    for task in order:
        awaited = set(tasks.forms[task])
        for resource in tasks.occupied[task]:
            earlier = served.setdefault(resource, [])
            if len(earlier) >= together and earlier[-together] not in tasks.before[task]:
                awaited.add(earlier[-together])
            earlier.append(task)
        after = tuple(sorted(tasks.actions[earlier] for earlier in awaited))
        written.append(dataclasses.replace(tasks.actions[task], after=after))
    return tuple(written)


def write_unordered_actions(tasks: ExchangeTasks) -> tuple[Action, ...]:
    """The tasks without any order: all transfers of one copy are one action, which aggregates once for all of them."""
    leaving: dict[tuple[Aggregate, int], set[int]] = {}
    for action in tasks.actions:
        leaving.setdefault((action.aggregate, action.source), set()).update(action.destinations)
    return tuple(Action(aggregate, site, tuple(sorted(ends))) for (aggregate, site), ends in leaving.items())
