"""A schedule as actions: the order in which every resource serves its tasks becomes waits."""

from __future__ import annotations

import dataclasses

from einc.exprog.program import Action, Aggregate
from einc.exprog.synthesis.scheduling import Schedule
from einc.exprog.synthesis.tasks import Tasks


def actions_of(tasks: Tasks, schedule: Schedule) -> tuple[Action, ...]:
    """The tasks as actions in the order of their starts; each waits for the one before it on each of its resources."""
    starts = schedule.starts
    order = sorted(range(len(starts)), key=lambda task: (starts[task], starts[task] + tasks.durations[task], task))
    latest: dict[int, int] = {}
    written = []
    for task in order:
        awaited = set(tasks.forms[task])
        for resource in tasks.occupied[task]:
            if resource in latest and latest[resource] not in tasks.before[task]:
                awaited.add(latest[resource])
            latest[resource] = task
        after = tuple(sorted(tasks.actions[earlier] for earlier in awaited))
        written.append(dataclasses.replace(tasks.actions[task], after=after))
    return tuple(written)


def plain_actions(tasks: Tasks) -> tuple[Action, ...]:
    """The tasks without any order: all that leaves one copy is one action, which aggregates once for all."""
    leaving: dict[tuple[Aggregate, int], set[int]] = {}
    for action in tasks.actions:
        leaving.setdefault((action.aggregate, action.source), set()).update(action.destinations)
    return tuple(Action(aggregate, site, tuple(sorted(ends))) for (aggregate, site), ends in leaving.items())
