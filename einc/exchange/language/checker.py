"""The validity of ground programs (paper, Definition 7), with the reasons for every fault in words.

The closure ignores waits. A valid program must also run to its end with them, on the machine it is checked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from einc.exchange.language.closure import State, fire_actions, strip_waits
from einc.exchange.language.printer import format_action, format_aggregate, format_size
from einc.exchange.language.program import (
    Action,
    Aggregate,
    Program,
    Requirement,
    collect_atom_sizes,
    explain_reads,
    list_targets,
)
from einc.machines.model import Machine, find_adding_switches


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
    """Whether a program is valid, and every fault found (at most MAX_FAULTS)."""

    valid: bool
    faults: tuple[Fault, ...] = ()


MAX_FAULTS = 20  # in one report: who has mended twenty checks again


def check(program: Program, machine: Machine | None = None) -> Verdict:
    """Whether the program is valid: well-formed, all requirements met, waits that end, and atoms of equal size.

    With a machine, also whether its sites exist and every transfer has a path. Raises ProgramError only where
    aggregates overlap beyond what can be searched.
    """
    faults: list[Fault] = []
    for fault in _find_faults(program, machine):
        faults.append(fault)
        if len(faults) == MAX_FAULTS:
            break
    return Verdict(not faults, tuple(faults))


def _find_faults(program: Program, machine: Machine | None) -> Iterator[Fault]:
    yield from find_static_faults(program, machine)
    order, state = fire_actions(program, waits=False)
    fired = {firing.action for firing in order}
    for action in program.actions:
        if action not in fired:
            reason = _explain_unread(program, state, action) or explain_not_formed(
                program, state, action.aggregate, action.source
            )
            yield Fault(f"the action {format_action(action)} is never enabled: {reason}", action)
    for requirement in program.requirements:
        for site in list_targets(program, requirement):
            if (requirement.aggregate, site) not in state:
                reason = _explain_absence(program, state, requirement.aggregate, site)
                name = format_aggregate(requirement.aggregate)
                yield Fault(f"{name} is required at site {site} and never gets there: {reason}", requirement)
    yield from _find_wait_faults(program, fired)


def find_static_faults(program: Program, machine: Machine | None) -> Iterator[Fault]:
    """Faults that are found without firing any action: sites, paths and sizes."""
    yield from _find_site_faults(program, machine)
    yield from (Fault(message, aggregate) for aggregate, message in _find_size_faults(program))


def _find_site_faults(program: Program, machine: Machine | None) -> Iterator[Fault]:
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
    declared += [(f"IN places {format_aggregate(holding.aggregate)}", holding.sites) for holding in program.holdings]
    for subject, sites in declared:
        if (reason := stray(sites)) is not None:
            yield Fault(f"{subject}: {reason}")
    for requirement in program.requirements:
        if (reason := stray(list_targets(program, requirement))) is not None:
            yield Fault(f"OUT requires {format_aggregate(requirement.aggregate)}: {reason}", requirement)
    for action in program.actions:
        if (reason := stray(action.sites)) is not None:
            yield Fault(f"the action {format_action(action)}: {reason}", action)
        elif action.uses_switch:
            if (reason := explain_reads(action.aggregate, action.reads)) is not None:
                yield Fault(f"the action {format_action(action)}: {reason}", action)
            if machine is not None and not any(s.joins(action.sites) for s in find_adding_switches(machine)):
                reason = f"no switch of {machine.name} that copies and adds joins these sites"
                yield Fault(f"the action {format_action(action)}: {reason}", action)
        elif machine is not None:
            for site in action.destinations:
                if (action.source, site) not in routes:
                    reason = f"{machine.name} has no path from site {action.source} to site {site}"
                    yield Fault(f"the action {format_action(action)}: {reason}", action)


def _explain_unread(program: Program, state: State, action: Action) -> str | None:
    """Why a switch cannot read what it has to add, in the closure `state`."""
    absent = next((copy for copy in action.reads if copy not in state), None)
    if absent is None:
        return None
    name = f"{format_aggregate(absent[0])} is not at site {absent[1]}, where the switch reads it"
    return f"{name}: {explain_not_formed(program, state, *absent)}" if not state.can_form(*absent) else name


def _find_wait_faults(program: Program, enabled: set[Action]) -> Iterator[Fault]:
    known = {strip_waits(action) for action in program.actions}
    absent = False
    for action in program.actions:
        for awaited in action.after:
            if strip_waits(awaited) not in known:
                absent = True
                reason = f"waits for {format_action(strip_waits(awaited))}, which is not in the program"
                yield Fault(f"the action {format_action(action)} {reason}", action)
    if absent or not any(action.after for action in program.actions):
        return
    ended = {firing.action for firing in fire_actions(program, waits=True)[0]}
    for action in program.actions:
        if action in enabled and action not in ended:
            reason = "waits, directly or through the data it needs, for itself or for an action that never ends"
            yield Fault(f"the action {format_action(action)} never starts: it {reason}", action)


def _find_size_faults(program: Program) -> Iterator[tuple[Aggregate, str]]:
    """Aggregates whose sizes do not agree, each with the reason in words."""
    sizes = collect_atom_sizes(program)
    for holding in program.holdings:
        for atom in holding.aggregate:
            if sizes[atom] != holding.size:
                declared_size, first_size = format_size(holding.size), format_size(sizes[atom])
                yield (
                    holding.aggregate,
                    f"IN gives atom {atom} the size {declared_size} here and {first_size} elsewhere",
                )
                break
    named = [requirement.aggregate for requirement in program.requirements]
    named += [action.aggregate for action in program.actions]
    for aggregate in dict.fromkeys(named):
        known = [atom for atom in aggregate if atom in sizes]
        other_atom = next((atom for atom in known if sizes[atom] != sizes[known[0]]), None)
        if other_atom is not None:
            yield (
                aggregate,
                f"{format_aggregate(aggregate)} combines atoms of different sizes: {known[0]} has "
                f"{format_size(sizes[known[0]])}, {other_atom} has {format_size(sizes[other_atom])}",
            )


_MAX_WORDS = 6  # items of a list in a message; the others are counted


def _explain_absence(program: Program, state: State, aggregate: Aggregate, site: int) -> str:
    """Why a requirement is not met by the closure `state`."""
    if state.can_form(aggregate, site):
        parts = state.coverage(aggregate, site).parts
        return f"its parts are there ({_join_aggregates(parts)}), but no action combines them at site {site}"
    return explain_not_formed(program, state, aggregate, site)


def explain_not_formed(program: Program, state: State, aggregate: Aggregate, site: int) -> str:
    """Why no disjoint copies at `site` partition the aggregate, in the closure `state`."""
    held_atoms = {atom for holding in program.holdings for atom in holding.aggregate}
    unknown = [atom for atom in aggregate if atom not in held_atoms]
    if unknown:
        return f"IN holds no {_join_words(unknown, 'or')}"
    missing, _, parts = state.coverage(aggregate, site)
    if not missing:
        names, shared = _join_aggregates(parts), _name_shared_atoms(parts)
        return (
            f"only overlapping aggregates are at site {site} ({names}), and combining them would count {shared} twice"
        )
    lost = [atom for atom in aggregate if atom in missing]
    inside = sorted(
        held
        for held, where in state.copies
        if where == site and not missing.isdisjoint(held) and not set(held).issubset(aggregate)
    )
    reason = f"site {site} never holds {_join_words(lost, 'or')}"
    if inside:
        reason += f" apart from what is mixed into {_join_aggregates(inside)}"
    return reason


def _name_shared_atoms(parts: Sequence[Aggregate]) -> str:
    """The atoms that two or more of the parts share."""
    seen: dict[str, int] = {}
    for part in parts:
        for atom in part:
            seen[atom] = seen.get(atom, 0) + 1
    shared = sorted(atom for atom, count in seen.items() if count > 1)
    return _join_words(shared, "or") if shared else "an atom"


def _join_aggregates(aggregates: Sequence[Aggregate]) -> str:
    return _join_words([format_aggregate(aggregate)[:80] for aggregate in aggregates], "and")


def _join_words(words: Sequence[str], last: str) -> str:
    if len(words) > _MAX_WORDS:
        return f"{', '.join(words[:_MAX_WORDS])} {last} {len(words) - _MAX_WORDS} more"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
