"""The paper's rewrites of program bodies (paper, Section 5.4): each proposes bodies, and validity decides.

A rewrite that removes an action also removes the waits for it.

`improve_by_rewrites` is the local search: it proposes rewrites at random, times them, and keeps those that are faster.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator

from einc.errors import ProgramError
from einc.exchange.language.closure import compute_closure, strip_waits
from einc.exchange.language.program import Action, Aggregate, Program
from einc.exchange.simulation.simulator import BodyEvaluator
from einc.machines.model import Machine

Body = tuple[Action, ...]


def split_multicast(program: Program, machine: Machine) -> Iterator[Program]:
    """`X @ s -> D1, D2` becomes `X @ s -> D1` and `X @ s -> D2`, one destination split off. Always valid."""
    for action in program.actions:
        for site in action.destinations if len(action.destinations) > 1 else ():
            remaining = tuple(destination for destination in action.destinations if destination != site)
            yield _replace_actions(program, (action,), (_redirect(action, (site,)), _redirect(action, remaining)))


def fuse_multicasts(program: Program, machine: Machine) -> Iterator[Program]:
    """Two actions that send one copy become one. Always valid."""
    for first, second in itertools.combinations(program.actions, 2):
        if (first.aggregate, first.source, first.after) == (second.aggregate, second.source, second.after):
            union = tuple(sorted({*first.destinations, *second.destinations}))
            yield _replace_actions(program, (first, second), (_redirect(first, union),))


def introduce_relay(program: Program, machine: Machine) -> Iterator[Program]:
    """`X @ s -> d` becomes `X @ s -> r -> d`. Always valid."""
    paths = machine.routes
    sites = program.gpus or range(len(machine.sites))
    for action in program.actions:
        for site in action.destinations:
            for relay in sites:
                if relay not in (site, action.source) and (action.source, relay) in paths and (relay, site) in paths:
                    ends = tuple(sorted({*action.destinations, relay} - {site}))
                    yield _replace_actions(
                        program, (action,), (_redirect(action, ends), Action(action.aggregate, relay, (site,)))
                    )


def eliminate_relay(program: Program, machine: Machine) -> Iterator[Program]:
    """`X @ s -> r -> d` becomes `X @ s -> d`: valid where no other action needs X at r."""
    paths = machine.routes
    for first, second in itertools.permutations(program.actions, 2):
        if first.aggregate == second.aggregate and second.source in first.destinations:
            ends = tuple(sorted({*first.destinations, *second.destinations} - {second.source, first.source}))
            if all((first.source, site) in paths for site in ends):
                yield _replace_actions(program, (first, second), (_redirect(first, ends),))


def push_down(program: Program, machine: Machine) -> Iterator[Program]:
    """`X @ r -> s` and `Y @ r -> s` become `X+Y @ r -> s`: valid where X and Y alone are not needed at s."""
    for first, second in itertools.combinations(program.actions, 2):
        if first.source == second.source and not set(first.aggregate) & set(second.aggregate):
            union = tuple(sorted((*first.aggregate, *second.aggregate)))
            for site in sorted(set(first.destinations) & set(second.destinations)):
                yield _replace_actions(
                    program,
                    (first, second),
                    (
                        *_drop_destination(first, site),
                        *_drop_destination(second, site),
                        Action(union, first.source, (site,)),
                    ),
                )


def pull_up(program: Program, machine: Machine) -> Iterator[Program]:
    """`X+Y @ r -> s` becomes `X @ r -> s` and `Y @ r -> s`, with `X+Y @ s` to form there what was sent."""
    held = sorted(compute_closure(program))
    for action in program.actions:
        inside = [part for part, site in held if site == action.source and _is_strictly_in(part, action.aggregate)]
        for first, second in itertools.combinations(inside, 2):
            if tuple(sorted((*first, *second))) == action.aggregate:
                for site in action.destinations:
                    parts = (Action(first, action.source, (site,)), Action(second, action.source, (site,)))
                    yield _replace_actions(
                        program, (action,), (*_drop_destination(action, site), *parts, Action(action.aggregate, site))
                    )


def substitute_source(program: Program, machine: Machine) -> Iterator[Program]:
    """A transfer of X to d draws from another site that has X: valid where X gets to that site without it."""
    paths = machine.routes
    at: dict[Aggregate, list[int]] = {}
    for aggregate, site in sorted(compute_closure(program)):
        at.setdefault(aggregate, []).append(site)
    for action in program.actions:
        for site in action.destinations:
            for source in at.get(action.aggregate, ()):
                if source not in (site, action.source) and (source, site) in paths:
                    yield _replace_actions(
                        program,
                        (action,),
                        (*_drop_destination(action, site), Action(action.aggregate, source, (site,))),
                    )


def drop(program: Program, machine: Machine) -> Iterator[Program]:
    """The program without one of its actions: valid where nothing needs what it brings."""
    for action in program.actions:
        yield _replace_actions(program, (action,), ())


REWRITES: dict[str, Callable[[Program, Machine], Iterator[Program]]] = {
    "multicast fission": split_multicast,
    "multicast fusion": fuse_multicasts,
    "relay introduction": introduce_relay,
    "relay elimination": eliminate_relay,
    "aggregation pushdown": push_down,
    "aggregation pullup": pull_up,
    "source substitution": substitute_source,
    "delete": drop,
}


def _replace_actions(program: Program, without: Collection[Action], more: Iterable[Action]) -> Program:
    """The program without some actions and with others; waits for actions that are gone go too."""
    body = dict.fromkeys([*(action for action in program.actions if action not in without), *more])
    names = {strip_waits(action) for action in body}
    if any(action.after for action in body):
        body = dict.fromkeys(
            dataclasses.replace(action, after=tuple(wait for wait in action.after if strip_waits(wait) in names))
            for action in body
        )
    return dataclasses.replace(program, actions=tuple(body))


def _redirect(action: Action, destinations: tuple[int, ...]) -> Action:
    return dataclasses.replace(action, destinations=destinations)


def _drop_destination(action: Action, site: int) -> Body:
    """The action without a destination; nothing where it has no other one."""
    remaining = tuple(destination for destination in action.destinations if destination != site)
    return (_redirect(action, remaining),) if remaining else ()


def _is_strictly_in(part: Aggregate, container: Aggregate) -> bool:
    return len(part) < len(container) and set(part) <= set(container)


MAX_REWRITTEN = 80
"""Actions; larger bodies have too many neighbours for a search by single rewrites."""


def improve_by_rewrites(
    program: Program, machine: Machine, seed: int, iterations: int, stop: Callable[[], bool]
) -> Iterator[Program]:
    """Faster and faster bodies; at most `iterations` candidates are timed.

    The search also follows rewrites that leave the time as it is, and tries two rewrites at once now and then, as many
    good moves need two steps.
    """
    evaluator = BodyEvaluator(program, machine)
    chance = random.Random(seed)
    best_ms = evaluator.completion(program.actions)
    now, now_ms = program, best_ms
    left = iterations
    names = sorted(REWRITES)
    while left > 0 and not stop():
        left -= 1
        candidate = now
        for _ in range(chance.choice((1, 1, 2))):
            neighbours = list(REWRITES[chance.choice(names)](candidate, machine))
            if neighbours:
                candidate = chance.choice(neighbours)
        if candidate is now or len(candidate.actions) > MAX_REWRITTEN:
            continue
        try:
            taken = evaluator.completion(candidate.actions, now_ms * (1 + 1e-9))
        except ProgramError:
            continue
        if math.isfinite(taken):
            now, now_ms = candidate, taken
            if taken < best_ms * (1 - 1e-9):
                best_ms = taken
                yield candidate
