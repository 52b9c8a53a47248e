"""A schedule as actions: the order in which every resource serves its tasks becomes waits."""

from __future__ import annotations

import dataclasses

from einc.exchange.language.program import Action, Aggregate
from einc.exchange.synthesis.scheduling import Schedule
from einc.exchange.synthesis.tasks import Tasks


def actions_of(tasks: Tasks, schedule: Schedule, together: int = 1) -> tuple[Action, ...]:
    """The tasks as actions in the order of their starts; each waits for the one before it on each of its resources.

    With more `together` it waits for the one that many places before it, so that the latency of one passes while
    others use the resource.
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


def plain_actions(tasks: Tasks) -> tuple[Action, ...]:
    """The tasks without any order: all that leaves one copy is one action, which aggregates once for all."""
    leaving: dict[tuple[Aggregate, int], set[int]] = {}
    for action in tasks.actions:
        leaving.setdefault((action.aggregate, action.source), set()).update(action.destinations)
    return tuple(Action(aggregate, site, tuple(sorted(ends))) for (aggregate, site), ends in leaving.items())
