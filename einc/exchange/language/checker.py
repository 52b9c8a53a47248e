"""Closure, firing order, well-formedness and validity of ground programs (paper, Definition 7), with reasons in words.

The closure ignores waits. A valid program must also run to its end with them, on the machine it is checked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from einc.exchange.language.explain import why_absent, why_not_formed
from einc.exchange.language.program import Action, Aggregate, Program, Requirement, targets_of
from einc.exchange.language.sizes import size_faults
from einc.exchange.language.state import Copy, State
from einc.exchange.language.words import action_text, aggregate_text
from einc.machines.model import Machine


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason why a program is not valid.

    `subject` is the action, requirement or aggregate at fault; None where it is a declaration.
    """

    message: str
    subject: Action | Requirement | Aggregate | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program is valid, and every fault found (at most MOST_FAULTS are told)."""

    valid: bool
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Firing:
    """An action, and the copies at its source that it combines: itself alone where it is held whole."""

    action: Action
    parts: tuple[Aggregate, ...]


MOST_FAULTS = 20


def closure(program: Program) -> frozenset[Copy]:
    """S*(P): the least state that contains IN and is closed under firing enabled actions; waits do not count."""
    _, state = _fire(program, waits=False)
    return state.copies


def firing_order(program: Program) -> tuple[Firing, ...]:
    """The actions in an order in which the parts of each are present when it fires, waits respected.

    Actions fire in rounds: all that the state before a round enables, in the program's order, each with the fewest
    parts then present. Actions that can never fire are left out; a valid program has none.
    """
    return _fire(program, waits=True)[0]


def check(program: Program, machine: Machine | None = None) -> Verdict:
    """Whether the program is valid: well-formed, all requirements met, waits that end, and atoms of equal size.

    With a machine, also whether its sites exist and every transfer has a path. Raises ProgramError only where
    aggregates overlap beyond what can be searched.
    """
    faults: list[Fault] = []
    for fault in _faults(program, machine):
        faults.append(fault)
        if len(faults) == MOST_FAULTS:
            break
    return Verdict(not faults, tuple(faults))


def _faults(program: Program, machine: Machine | None) -> Iterator[Fault]:
    yield from static_faults(program, machine)
    order, state = _fire(program, waits=False)
    fired = {firing.action for firing in order}
    for action in program.actions:
        if action not in fired:
            reason = why_not_formed(program, state, action.aggregate, action.source)
            yield Fault(f"the action {action_text(action)} is never enabled: {reason}", action)
    for requirement in program.requirements:
        for site in targets_of(program, requirement):
            if (requirement.aggregate, site) not in state:
                reason = why_absent(program, state, requirement.aggregate, site)
                name = aggregate_text(requirement.aggregate)
                yield Fault(f"{name} is required at site {site} and never gets there: {reason}", requirement)
    yield from _wait_faults(program, fired)


def static_faults(program: Program, machine: Machine | None) -> Iterator[Fault]:
    """Faults that are seen without running anything: sites, paths and sizes."""
    yield from _site_faults(program, machine)
    yield from (Fault(message, aggregate) for aggregate, message in size_faults(program))


def _site_faults(program: Program, machine: Machine | None) -> Iterator[Fault]:
    known = None if program.gpus is None else frozenset(program.gpus)
    count = None if machine is None else len(machine.sites)
    routes = {} if machine is None else machine.routes

    def stray(sites: Iterable[int]) -> str | None:
        for site in sites:
            if known is not None and site not in known:
                return f"site {site} is not among GPUS"
            if site < 0 or (count is not None and site >= count):
                return f"there is no site {site}" + ("" if machine is None else f" on {machine.name} ({count} sites)")
        return None

    declared: list[tuple[str, Sequence[int]]] = [("GPUS", program.gpus or ())]
    declared += [(f"partition {partition.name}", partition.members or ()) for partition in program.partitions]
    declared += [(f"IN places {aggregate_text(holding.aggregate)}", holding.sites) for holding in program.holdings]
    for what, sites in declared:
        if (reason := stray(sites)) is not None:
            yield Fault(f"{what}: {reason}")
    for requirement in program.requirements:
        if (reason := stray(targets_of(program, requirement))) is not None:
            yield Fault(f"OUT requires {aggregate_text(requirement.aggregate)}: {reason}", requirement)
    for action in program.actions:
        if (reason := stray((action.source, *action.destinations))) is not None:
            yield Fault(f"the action {action_text(action)}: {reason}", action)
        elif machine is not None:
            for site in action.destinations:
                if (action.source, site) not in routes:
                    reason = f"{machine.name} has no path from site {action.source} to site {site}"
                    yield Fault(f"the action {action_text(action)}: {reason}", action)


def _wait_faults(program: Program, enabled: set[Action]) -> Iterator[Fault]:
    known = {plain(action) for action in program.actions}
    absent = False
    for action in program.actions:
        for awaited in action.after:
            if plain(awaited) not in known:
                absent = True
                reason = f"waits for {action_text(plain(awaited))}, which is not in the program"
                yield Fault(f"the action {action_text(action)} {reason}", action)
    if absent or not any(action.after for action in program.actions):
        return
    ended = {firing.action for firing in _fire(program, waits=True)[0]}
    for action in program.actions:
        if action in enabled and action not in ended:
            reason = "waits, directly or through the data it needs, for itself or for an action that never ends"
            yield Fault(f"the action {action_text(action)} never starts: it {reason}", action)


def plain(action: Action) -> Action:
    """The action without its waits, as waits name it."""
    return Action(action.aggregate, action.source, action.destinations) if action.after else action


def waits_of(program: Program) -> tuple[list[int], dict[int, list[int]]]:
    """For every action the number of actions that it waits for, and for an action those that wait for it.

    Positions are those of the program's actions. A wait on an action that is not there counts and is never met.
    """
    named: dict[Action, list[int]] = {}
    if any(action.after for action in program.actions):
        for position, action in enumerate(program.actions):
            named.setdefault(plain(action), []).append(position)
    open_waits = [0] * len(program.actions)
    waiters: dict[int, list[int]] = {}
    for position, action in enumerate(program.actions):
        for awaited in dict.fromkeys(map(plain, action.after)):
            found = named.get(awaited, [])
            open_waits[position] += len(found) or 1
            for before in found:
                waiters.setdefault(before, []).append(position)
    return open_waits, waiters


def _fire(program: Program, waits: bool) -> tuple[tuple[Firing, ...], State]:
    """Fire every action that can be, round by round."""
    actions = program.actions
    state = State((action.aggregate, action.source) for action in actions)
    at_goal: dict[Copy, list[int]] = {}
    for position, action in enumerate(actions):
        at_goal.setdefault((action.aggregate, action.source), []).append(position)
    open_waits, waiters = waits_of(program) if waits else ([0] * len(actions), {})
    arrived: deque[Copy] = deque((holding.aggregate, site) for holding in program.holdings for site in holding.sites)
    order: list[Firing] = []
    freed: list[int] = []
    while arrived or freed:
        startable = [position for position in freed if state.is_ready(_goal(actions[position]))]
        for aggregate, site in arrived:
            for goal in state.add(aggregate, site):
                startable += [position for position in at_goal[goal] if not open_waits[position]]
        arrived.clear()
        freed = []
        for position in sorted(set(startable)):
            action = actions[position]
            order.append(Firing(action, state.partition(_goal(action))))
            arrived += [(action.aggregate, site) for site in (action.source, *action.destinations)]
            for waiter in waiters.get(position, ()):
                open_waits[waiter] -= 1
                if not open_waits[waiter]:
                    freed.append(waiter)
    return tuple(order), state


def _goal(action: Action) -> Copy:
    return action.aggregate, action.source
