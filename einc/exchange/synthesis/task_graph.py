"""Pieces on their routes as tasks: transfers and aggregations with what each needs first and what it occupies.

A schedule of the tasks becomes actions again: the order in which every resource serves its tasks becomes waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from einc.exchange.language.program import Action, Aggregate
from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Demand, DemandShape
from einc.exchange.synthesis.routes import Route, compute_duration, list_crossed, list_needed_copies
from einc.exchange.synthesis.splitting import name_piece, split_size


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
