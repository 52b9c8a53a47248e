"""Pieces on their routes as tasks: transfers and aggregations with what each needs first and what it occupies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc.exchange.language.program import Action, Aggregate
from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Demand, Shape
from einc.exchange.synthesis.routes import Route, compute_duration, list_crossed, needs
from einc.exchange.synthesis.splitting import piece, piece_sizes


@dataclass(frozen=True, slots=True)
class Tasks:
    """One entry per action (each a single transfer or aggregation, without waits); times in ms.

    `before` are the positions of the tasks that bring what a task needs; `forms` those among them that form the copy it
    sends, which it must wait for lest it aggregates a second time. `turns` are from 0 to 1: the place of a task's piece
    among those that go the same way.
    """

    actions: tuple[Action, ...]
    durations: tuple[float, ...]
    occupied: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    forms: tuple[tuple[int, ...], ...]
    turns: tuple[float, ...]


def tasks_of(demands: Sequence[Demand], routes: Sequence[Sequence[Route]], network: Network) -> Tasks:
    """The tasks of all demands, one piece per route. A transfer that two demands share is one task."""
    number: dict[Action, int] = {}
    durations: list[float] = []
    occupied: list[tuple[int, ...]] = []
    before: list[set[int]] = []
    forms: list[set[int]] = []
    turns: list[float] = []
    using: dict[tuple[Shape, Route], int] = {}
    used: dict[tuple[Shape, Route], int] = {}
    for demand, chosen in zip(demands, routes, strict=True):
        for route in chosen:
            using[demand.shape, route] = using.get((demand.shape, route), 0) + 1
    for demand, chosen in zip(demands, routes, strict=True):
        sizes = piece_sizes(demand.size, len(chosen))
        for position, route in enumerate(chosen):
            way = (demand.shape, route)
            used[way] = used.get(way, 0) + 1
            names: dict[int, Aggregate] = {}
            makers: dict[tuple[int, int], int] = {}
            for step in route:
                name = names.get(step.parts)
                if name is None:
                    whole = [atom for k, part in enumerate(demand.parts) if step.parts >> k & 1 for atom in part]
                    name = names[step.parts] = piece(tuple(sorted(whole)), position, len(chosen))
                ends = (step.destination,) if step.destination != step.source else ()
                action = Action(name, step.source, ends)
                task = number.setdefault(action, len(number))
                if task == len(durations):
                    durations.append(compute_duration(step, sizes[position], network))
                    occupied.append(list_crossed(step, network))
                    before.append(set())
                    forms.append(set())
                    turns.append((used[way] - 0.5) / using[way])
                makers.setdefault((step.parts, step.destination), task)
                for copy in needs(step):
                    if copy in makers:
                        before[task].add(makers[copy])
                        if ends and makers[copy] != task and copy[0] == step.parts:
                            forms[task].add(makers[copy])
    actions = tuple(number)
    return Tasks(
        actions,
        tuple(durations),
        tuple(occupied),
        tuple(tuple(sorted(entry)) for entry in before),
        tuple(tuple(sorted(task for task in entry if not actions[task].destinations)) for entry in forms),
        tuple(turns),
    )
