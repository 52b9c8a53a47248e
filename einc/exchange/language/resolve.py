"""Syntax tree to ground program: lists, chains and partitions written out, names and sites checked.

Open memberships are chosen by `membership.py`; for bounds and synthesis they stay open (`resolve_preamble`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from einc.errors import ProgramError
from einc.exchange.language.closure import Copy
from einc.exchange.language.membership import OpenPartitions, choose_membership
from einc.exchange.language.parser import parse
from einc.exchange.language.printer import format_partition
from einc.exchange.language.program import Action, Aggregate, Partition, Program, Requirement
from einc.exchange.language.syntax import ActionNode, ProgramSource, ProgramTree, Target, TextRange
from einc.machines.model import Machine
from einc_runtime.text import did_you_mean

MAX_FLOWS = 2_000_000
"""Single transfers and waits that a text may expand to."""

MAX_OPEN_SITES = 8
"""On more sites a membership must be written out."""

Members = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A ground program and the places of its parts in the text. `chosen` says that a membership was open."""

    program: Program
    source: ProgramSource
    places: Mapping[Action | Requirement | Aggregate, TextRange]
    chosen: bool


def read_program(
    text: str, file: str = "<program>", machine: Machine | None = None, *, switches: bool = False
) -> Program:
    """The ground program of a text; the machine says which sites exist if `GPUS:` does not.

    Statements for switches that copy or add are refused unless `switches`: plans have no tasks for them.
    """
    return resolve(parse(text, file), machine, switches=switches)


def resolve(tree: ProgramTree, machine: Machine | None = None, *, switches: bool = False) -> Program:
    """The ground program of a tree. Raises ProgramError, with the place in the text, where there is none.

    Partitions declared by size take the lexicographically first membership that makes the program valid. If none does,
    they take the first of all, so that `check` can say what is wrong.
    """
    return resolve_located(tree, machine, switches=switches).program


def resolve_located(tree: ProgramTree, machine: Machine | None = None, *, switches: bool = False) -> Resolved:
    """As `resolve`, with the places of actions and requirements in the text."""
    _check_sites(tree, machine)
    needing = None if switches else next((action for action in tree.actions if action.uses_switch), None)
    if needing is not None:
        raise tree.source.error(
            "a switch has to copy or add here (`=>`, `<=`), for which plans have no task",
            needing.text_range,
            "`einc exprog` checks, times and finds such programs",
        )
    members = {partition.name: partition.members for partition in tree.partitions if partition.members is not None}
    is_open = len(members) < len(tree.partitions)
    if is_open:
        open_partitions = _describe_open_partitions(tree, members, machine)
        members.update(choose_membership(open_partitions, lambda trial: ground(tree, {**members, **trial}), machine))
    return Resolved(ground(tree, members), tree.source, _locate_parts(tree, members), is_open)


def ground(tree: ProgramTree, members: Members) -> Program:
    """The program under a given membership of every partition.

    `choose_membership` also tries memberships in which partitions overlap.
    """
    actions: dict[Action, None] = {}
    flows = 0
    for statement in tree.actions:
        expanded = list(_expand(statement, members, tree.source))
        awaited = {action for wait in statement.after for action in _expand(wait, members, tree.source)}
        flows += sum(1 + len(action.destinations) for action in expanded) + len(expanded) * len(awaited)
        if flows > MAX_FLOWS:
            raise tree.source.error(f"the program stands for more than {MAX_FLOWS} transfers", statement.text_range)
        after = tuple(sorted(awaited))
        for action in expanded:
            ready = dataclasses.replace(action, after=after) if after else action
            actions.setdefault(ready)
    return Program(
        tree.gpus,
        tuple(Partition(entry.name, len(members[entry.name]), members[entry.name]) for entry in tree.partitions),
        tuple(entry.holding for entry in tree.holdings),
        tuple(entry.requirement for entry in tree.requirements),
        tuple(actions),
    )


def _expand(statement: ActionNode, members: Members, source: ProgramSource) -> Iterator[Action]:
    """One action per source and hop of a chain."""
    stops: list[tuple[int, ...]] = []
    size = 0
    for stop in statement.stops:
        sites = tuple(sorted(set(_list_sites(stop, members))))
        size += len(sites) * len(stops[-1]) if stops else len(sites)
        if size > MAX_FLOWS:
            raise source.error(f"the statement stands for more than {MAX_FLOWS} transfers", statement.text_range)
        stops.append(sites)
    if len(stops) == 1:
        yield from (Action(statement.aggregate, site, reads=statement.reads) for site in stops[0])
    for group, following in itertools.pairwise(stops):
        for site in group:
            destinations = tuple(destination for destination in following if destination != site)
            yield Action(statement.aggregate, site, destinations, multicast=statement.multicast and bool(destinations))


def _list_sites(targets: Iterable[Target], members: Members) -> Iterator[int]:
    for target in targets:
        if isinstance(target, str):
            yield from members[target]
        else:
            yield target


def _locate_parts(tree: ProgramTree, members: Members) -> dict[Action | Requirement | Aggregate, TextRange]:
    places: dict[Action | Requirement | Aggregate, TextRange] = {}
    for holding in tree.holdings:
        places.setdefault(holding.holding.aggregate, holding.text_range)
    for requirement in tree.requirements:
        places.setdefault(requirement.requirement, requirement.text_range)
        places.setdefault(requirement.requirement.aggregate, requirement.text_range)
    for statement in tree.actions:
        for action in _expand(statement, members, tree.source):
            places.setdefault(action, statement.text_range)
            places.setdefault(action.aggregate, statement.text_range)
    return places


def _describe_open_partitions(tree: ProgramTree, members: Members, machine: Machine | None) -> OpenPartitions:
    """The open partitions of a tree, and what any membership has to reach."""
    sizes = {partition.name: partition.size for partition in tree.partitions if partition.members is None}
    sites = tree.gpus if tree.gpus is not None else range(len(machine.sites)) if machine is not None else ()
    taken = set(itertools.chain.from_iterable(members.values()))
    free = tuple(sorted(set(sites) - taken))
    _check_open(tree, machine, len(sites), len(free), sum(sizes.values()))
    fixed: list[Copy] = []
    needs: dict[str, list[Aggregate]] = {name: [] for name in sizes}
    needed = [(entry.requirement.aggregate, entry.requirement.targets) for entry in tree.requirements]
    needed += [(action.aggregate, stop) for action in tree.actions for stop in action.stops[:-1] or action.stops]
    for aggregate, targets in needed:
        for target in targets:
            if target in needs:
                needs[str(target)].append(aggregate)
            else:
                fixed += ((aggregate, site) for site in _list_sites((target,), members))
    moving = any(target in needs for action in tree.actions for stop in action.stops for target in stop)
    return OpenPartitions(sizes, free, fixed, needs, moving)


def _check_sites(tree: ProgramTree, machine: Machine | None) -> None:
    """Every site exists, every partition is declared once and stands alone."""
    count = None if machine is None else len(machine.sites)
    known = None if tree.gpus is None else frozenset(tree.gpus)

    def check(sites: Iterable[Target], text_range: TextRange) -> None:
        for site in sites:
            if isinstance(site, str):
                if site not in names:
                    hint = did_you_mean(site, names) or "PARTITIONS: declares names for groups of sites"
                    raise tree.source.error(f"there is no partition {site[:100]}", text_range, hint)
            elif count is not None and machine is not None and site >= count:
                raise tree.source.error(f"there is no site {site} on {machine.name}: it has {count} sites", text_range)
            elif known is not None and site not in known:
                raise tree.source.error(f"site {site} is not among GPUS", text_range)

    names: dict[str, None] = {}
    owner: dict[int, str] = {}
    check(tree.gpus or (), tree.gpus_place)
    for partition in tree.partitions:
        if partition.name in names:
            raise tree.source.error(f"partition {partition.name} is declared twice", partition.text_range)
        if not partition.size:
            raise tree.source.error(f"partition {partition.name} has no sites", partition.text_range)
        names[partition.name] = None
        check(partition.members or (), partition.text_range)
        for site in partition.members or ():
            if site in owner:
                message = f"partitions are disjoint, but {owner[site]} and {partition.name} both have site {site}"
                raise tree.source.error(message, partition.text_range)
            owner[site] = partition.name
    for holding in tree.holdings:
        check(holding.holding.sites, holding.text_range)
    for requirement in tree.requirements:
        check(requirement.requirement.targets, requirement.text_range)
    for statement in tree.actions:
        for action in (statement, *statement.after):
            for stop in (*action.stops, tuple(site for _, site in action.reads)):
                check(stop, action.text_range)


def _check_open(tree: ProgramTree, machine: Machine | None, sites: int, free: int, needed: int) -> None:
    text_range = next(partition.text_range for partition in tree.partitions if partition.members is None)
    if tree.gpus is None and machine is None:
        raise tree.source.error(
            "a partition declared by size needs to know the sites", text_range, "declare GPUS:, or name a machine"
        )
    if needed > free:
        message = f"the partitions declared by size need {needed} sites, and {free} are left"
        raise tree.source.error(message, text_range)
    if sites > MAX_OPEN_SITES:
        raise tree.source.error(
            f"on more than {MAX_OPEN_SITES} sites ({sites} here) a membership must be written out",
            text_range,
            "for example G1 {0, 1, 2, 3}",
        )


def locate_fault(resolved: Resolved, message: str, subject: Action | Requirement | Aggregate | None) -> ProgramError:
    """A fault of a resolved program as an error that points at its statement.

    Where memberships were open, none is valid: the fault is that of the first of them, and the error says so.
    """
    hint = None
    if resolved.chosen:
        chosen = " ".join(map(format_partition, resolved.program.partitions))
        hint = f"no choice of memberships makes the program valid; this is said of the first: {chosen}"
    text_range = resolved.places.get(subject) if subject is not None else None
    if text_range is None:
        return ProgramError(message, where=resolved.source.file, hint=hint)
    return resolved.source.error(message, text_range, hint)


def read_preamble(text: str, file: str = "<program>", machine: Machine | None = None) -> Program:
    """The program of a text as `synthesize` takes it."""
    return resolve_preamble(parse(text, file), machine)


def resolve_preamble(tree: ProgramTree, machine: Machine | None = None, *, switches: bool = False) -> Program:
    """A program with its open partitions left open; its body is kept only where every membership is explicit.

    Raises ProgramError for declarations that contradict each other or the machine.
    """
    if all(partition.members is not None for partition in tree.partitions):
        return resolve(tree, machine, switches=switches)
    resolve(dataclasses.replace(tree, actions=(), requirements=tree.requirements[:0]), machine)  # checks it
    members = {entry.name: entry.members or () for entry in tree.partitions}
    bare = ground(dataclasses.replace(tree, actions=()), members)
    return dataclasses.replace(
        bare, partitions=tuple(Partition(entry.name, entry.size, entry.members) for entry in tree.partitions)
    )
