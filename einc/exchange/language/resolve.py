"""Syntax tree to ground program: lists, chains and partitions written out, names and sites checked.

The membership of partitions that a program declares by size (paper, Section 5.2) is chosen here; for bounds and
synthesis it stays open (`resolve_preamble`). Memberships are tried in lexicographic order, partition by partition as
declared. In the *relaxed* program every partition that is still open has all sites that are still free. The closure
only grows with the actions, so what the relaxed program does not reach, no completion of the choice reaches: then the
choice is dropped early.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.closure import Copy, compute_closure
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


Membership = dict[str, tuple[int, ...]]

MAX_WORK = 150_000
"""The search gives up after this many fired actions and choices in all trials together."""


@dataclass(frozen=True, slots=True)
class OpenPartitions:
    """The partitions without members, and what any membership has to reach.

    `sizes` are the open partitions in their order, `free` the sites that they may take. `fixed` copies must be in the
    closure under every membership; `needs` are the aggregates that must be at every member of a partition. `moving`
    says that actions mention open partitions, so that the closure depends on the choice.
    """

    sizes: Mapping[str, int]
    free: tuple[int, ...]
    fixed: Sequence[Copy]
    needs: Mapping[str, Sequence[Aggregate]]
    moving: bool


def choose_membership(
    open_partitions: OpenPartitions, ground: Callable[[Membership], Program], machine: Machine | None
) -> Membership:
    """The first membership under which `ground` yields a valid program; the first of all where none does.

    Raises ProgramError where the search takes too long.
    """
    membership = next(_MembershipSearch(open_partitions, ground, machine).list_valid({}, None), None)
    return (
        membership
        if membership is not None
        else next(_enumerate_memberships(list(open_partitions.sizes.items()), open_partitions.free))
    )


class _MembershipSearch:
    def __init__(
        self, open_partitions: OpenPartitions, ground: Callable[[Membership], Program], machine: Machine | None
    ) -> None:
        self.open_partitions, self.ground, self.machine = open_partitions, ground, machine
        self.work = MAX_WORK

    def list_valid(self, chosen: Membership, reached: frozenset[Copy] | None) -> Iterator[Membership]:
        """The valid completions of a choice in lexicographic order; `reached` is the closure relaxed so far."""
        open_partitions = self.open_partitions
        unchosen = [name for name in open_partitions.sizes if name not in chosen]
        if not unchosen:
            program = self.ground(chosen)
            self._spend(len(program.actions))
            if check(program, self.machine).valid:
                yield chosen
            return
        self._spend(1)
        taken = {site for members in chosen.values() for site in members}
        left = tuple(site for site in open_partitions.free if site not in taken)
        if reached is None or open_partitions.moving:
            relaxed = self.ground({**chosen, **dict.fromkeys(unchosen, left)})
            self._spend(len(relaxed.actions))
            reached = compute_closure(relaxed)
        if not all(copy in reached for copy in (*open_partitions.fixed, *self._list_needed(chosen))):
            return
        able = {
            name: [s for s in left if all((x, s) in reached for x in open_partitions.needs[name])] for name in unchosen
        }
        if any(len(able[name]) < open_partitions.sizes[name] for name in unchosen):
            return
        name = unchosen[0]
        for members in itertools.combinations(able[name], open_partitions.sizes[name]):
            yield from self.list_valid({**chosen, name: members}, reached)

    def _list_needed(self, chosen: Membership) -> Iterator[Copy]:
        for name, members in chosen.items():
            yield from itertools.product(self.open_partitions.needs[name], members)

    def _spend(self, steps: int) -> None:
        self.work -= 1 + steps
        if self.work < 0:
            raise ProgramError(
                "too many memberships of the partitions declared by size have to be tried",
                hint="write memberships out, for example G1 {0, 1, 2, 3}",
            )


def _enumerate_memberships(sizes: list[tuple[str, int]], free: Sequence[int]) -> Iterator[Membership]:
    if not sizes:
        yield {}
        return
    (name, size), *remaining = sizes
    for members in itertools.combinations(free, size):
        for membership in _enumerate_memberships(remaining, [site for site in free if site not in members]):
            yield {name: members, **membership}
