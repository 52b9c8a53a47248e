"""What a preamble demands of the network: which sites have the atoms of each aggregate, and which sites need it.

Only copies of subsets of X can become parts of X. So a transfer *for* X carries a subset of X, and transfers for
disjoint aggregates are different transfers. All bounds count bytes, so they hold for programs that split atoms as well.

`DemandTable` computes once what does not depend on the members of partitions, as searches try many memberships.

A certificate has a lower bound on the completion time of all bodies of a preamble, and a witness that proves it. A
witness holds only what was chosen (sites, prices, weights). `proved_ms` computes from the preamble and the machine
what it proves, so that neither an error in a search nor the tolerance of an LP solver can make a bound unsound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Protocol

from einc.errors import ProgramError
from einc.exchange.language.exact_cover import CoverBudget, find_cheapest_partition
from einc.exchange.language.printer import format_aggregate
from einc.exchange.language.program import Aggregate, Partition, Program, collect_atom_sizes
from einc.exchange.network import Network, make_mask


@dataclass(frozen=True, slots=True)
class DemandClass:
    """Disjoint aggregates that are alike: the same sites have their atoms and the same sites need them.

    Either all of them are in overlap groups, or none. `size` is in bytes, of all together. `holders` are the distinct
    sets of sites (bit masks) that hold an atom; copies of aggregates count for each atom inside. `targets` need the
    aggregate and do not hold all atoms. `awaited` is the number of further targets that are not known yet, which open
    partitions will be. `complete` are the sites that hold all atoms. `largest` is the size of the largest copy.
    """

    aggregates: tuple[Aggregate, ...]
    size: int
    holders: tuple[int, ...]
    targets: int
    awaited: int = 0
    partitions: tuple[str, ...] = ()
    complete: int = 0
    largest: int = 0

    def must_enter(self, sites: int) -> bool:
        """Whether a part has to enter a set of sites: a target is there, and some atom has no holder there."""
        return bool(self.targets & sites) and any(not holder & sites for holder in self.holders)


@dataclass(frozen=True, slots=True)
class OverlapGroup:
    """Required aggregates that share atoms, directly or through each other; all of one size in bytes.

    `required` are (aggregate, targets); `copies` the (aggregate, sites) of IN that can become parts of them.
    """

    size: int
    required: tuple[tuple[Aggregate, int], ...]
    copies: tuple[tuple[Aggregate, int], ...]


@dataclass(frozen=True, slots=True)
class FormingClass:
    """Aggregates of the family that have to be formed from several parts, and that are alike.

    `size` is in bytes, of all together, and `largest` is that of the largest copy. `holders` are as in DemandClass.
    `formed_at` are the sites that hold the aggregates whole; `targets` need them and do not. IN has each aggregate in
    at least `parts` copies. `partitions` are the open ones that will need them. `overlapping` says that they are in
    overlap groups.
    """

    size: int
    holders: tuple[int, ...]
    targets: int
    formed_at: int
    parts: int
    partitions: tuple[str, ...] = ()
    overlapping: bool = False
    largest: int = 0


@dataclass(frozen=True, slots=True)
class DemandSet:
    """A preamble's demands: a family of disjoint aggregates, and the groups of all those that overlap."""

    family: tuple[DemandClass, ...]
    overlapping: tuple[OverlapGroup, ...]
    forming: tuple[FormingClass, ...]


_DemandKey = tuple[bool, tuple[tuple[int, ...], int, int, tuple[str, ...], int]]
"""What aggregates of one class have in common: whether they overlap others, and fields of DemandClass."""

_FormingKey = tuple[tuple[int, ...], int, int, int, tuple[str, ...], bool]
"""The same for what has to be formed: fields of FormingClass."""

_Copies = tuple[tuple[Aggregate, int], ...]
"""Aggregates of IN with the sites that hold them, as bit masks."""


@lru_cache(maxsize=16)
def collect_demands(program: Program) -> DemandSet:
    """The demands of a program's preamble. Raises ProgramError where a requirement can never be met.

    Partitions without members are sites that are not known yet.
    """
    return DemandTable(program).list_demands(program.partitions)


@dataclass(frozen=True, slots=True)
class RequiredClass:
    """Disjoint aggregates that are alike under every membership.

    `sites` and `partitions` need them; the other fields are as in DemandClass and FormingClass.
    """

    names: tuple[Aggregate, ...]
    size: int
    largest: int
    overlapping: bool
    sites: int
    partitions: tuple[str, ...]
    holders: tuple[int, ...]
    complete: int
    formed_at: int
    parts: int


class DemandTable:
    """A preamble without the members of its partitions. Raises ProgramError where a requirement can never be met."""

    def __init__(self, program: Program) -> None:
        sizes = collect_atom_sizes(program)
        needed: dict[Aggregate, tuple[int, tuple[str, ...]]] = {}
        for requirement in program.requirements:
            sites, partitions = needed.get(requirement.aggregate, (0, ()))
            sites |= make_mask(target for target in requirement.targets if not isinstance(target, str))
            named = {target for target in requirement.targets if isinstance(target, str)}
            needed[requirement.aggregate] = sites, tuple(sorted(named.union(partitions)))
        by_atom: dict[str, list[tuple[Aggregate, int]]] = {}
        for holding in program.holdings:
            for atom in holding.aggregate:
                by_atom.setdefault(atom, []).append((holding.aggregate, make_mask(holding.sites)))
        groups = _group_overlapping(needed)
        overlap_groups = [sorted(group) for group in groups if len(group) > 1]
        self._overlapping = [
            (sizes[group[0][0]], [(name, *needed[name]) for name in group], _collect_copies(group, by_atom))
            for group in overlap_groups
        ]
        overlapping = {name for group in overlap_groups for name in group}
        names_by_key: dict[tuple[Any, ...], list[Aggregate]] = {}
        for name in _choose_disjoint(groups):
            key = name in overlapping, *needed[name], *_find_holders(name, by_atom), _count_fewest_parts(name, by_atom)
            names_by_key.setdefault(key, []).append(name)
        self.family = []
        for key, names in names_by_key.items():
            each = [sizes[name[0]] for name in names]
            self.family.append(RequiredClass(tuple(names), sum(each), max(each), *key))
        self._asking = list(dict.fromkeys(demand.partitions for demand in self.family))

    def list_demands(self, partitions: Sequence[Partition]) -> DemandSet:
        """The demands under these partitions, of which some may have no members yet."""
        known = {partition.name: make_mask(partition.members or ()) for partition in partitions}
        counts = {partition.name: partition.size for partition in partitions if partition.members is None}
        placed = make_mask(site for partition in partitions for site in partition.members or ())
        family: dict[_DemandKey, list[RequiredClass]] = {}
        forming: dict[_FormingKey, list[RequiredClass]] = {}
        asking = {}  # for every set of partitions its members, those that are not known yet, and how many they have
        for names in self._asking:
            unknown = tuple([name for name in names if name in counts])
            asking[names] = _join_targets(0, names, known), unknown, sum([counts[name] for name in unknown])
        for demand in self.family:
            members, unknown, count = asking[demand.partitions]
            targets = demand.sites | members
            # Partitions are disjoint, but open ones may take sites that are targets already.
            awaited = max(0, count - (targets & ~placed).bit_count() - demand.complete.bit_count()) if unknown else 0
            if targets & ~demand.complete or awaited:
                demand_key = (
                    demand.overlapping,
                    (demand.holders, targets & ~demand.complete, awaited, unknown, demand.complete),
                )
                family.setdefault(demand_key, []).append(demand)
            if demand.holders != (demand.formed_at,):  # else it is only held whole, and nothing forms it
                forming_key = (
                    demand.holders,
                    targets & ~demand.formed_at,
                    demand.formed_at,
                    demand.parts,
                    unknown,
                    demand.overlapping,
                )
                forming.setdefault(forming_key, []).append(demand)
        groups = []
        for size, group, copies in self._overlapping:
            required = tuple((name, _join_targets(sites, named, known)) for name, sites, named in group)
            groups.append(OverlapGroup(size, required, copies))
        return DemandSet(
            tuple(
                DemandClass(
                    tuple([name for demand in members for name in demand.names]),
                    _sum_sizes(members),
                    *key,
                    _find_largest(members),
                )
                for (_, key), members in sorted(family.items(), key=itemgetter(0))
            ),
            tuple(groups),
            tuple(
                FormingClass(_sum_sizes(members), *key, _find_largest(members))
                for key, members in sorted(forming.items(), key=itemgetter(0))
            ),
        )


def _join_targets(sites: int, partitions: Sequence[str], known: Mapping[str, int]) -> int:
    """The sites together with the known members of these partitions."""
    for partition in partitions:
        sites |= known[partition]
    return sites


def _sum_sizes(demands: Sequence[RequiredClass]) -> int:
    return sum([demand.size for demand in demands])


def _find_largest(demands: Sequence[RequiredClass]) -> int:
    return max([demand.largest for demand in demands])


def _count_fewest_parts(name: Aggregate, by_atom: dict[str, list[tuple[Aggregate, int]]]) -> int:
    """The least number of copies of IN that make up the aggregate; IN has a copy of a subset for every atom."""
    atoms = frozenset(name)
    parts = {copy for atom in name for copy, _ in by_atom[atom] if atoms.issuperset(copy)}
    if all(len(part) == 1 for part in parts):
        return len(name)
    parts_chosen = find_cheapest_partition(name, [(part, 1) for part in parts], CoverBudget())
    if parts_chosen is None:
        raise ProgramError(f"{format_aggregate(name)} can never be formed: what IN holds of it overlaps")
    return len(parts_chosen)


def _find_holders(name: Aggregate, by_atom: dict[str, list[tuple[Aggregate, int]]]) -> tuple[tuple[int, ...], int, int]:
    """The distinct sets of sites that hold an atom in some subset of the aggregate, their intersection, and the sites
    that hold it whole."""
    atoms = frozenset(name)
    holders = set()
    complete = -1
    complete_sites = 0
    for atom in name:
        holder = 0
        for copy, sites in by_atom.get(atom, ()):
            if atoms.issuperset(copy):
                holder |= sites
            if copy == name:
                complete_sites |= sites
        if not holder:
            raise ProgramError(
                f"{format_aggregate(name)} can never be formed: IN holds no {atom} that could become part"
            )
        holders.add(holder)
        complete &= holder
    return tuple(sorted(holders)), complete, complete_sites


def _group_overlapping(needed: Iterable[Aggregate]) -> list[list[Aggregate]]:
    """The required aggregates in groups that share atoms."""
    group_of: dict[str, list[Aggregate]] = {}
    for name in sorted(needed):
        joined = [name]
        for group in {id(group): group for atom in name if (group := group_of.get(atom)) is not None}.values():
            joined = group + joined
        for atom in {atom for aggregate in joined for atom in aggregate}:
            group_of[atom] = joined
    return list({id(group): group for group in group_of.values()}.values())


def _choose_disjoint(groups: list[list[Aggregate]]) -> list[Aggregate]:
    """Pairwise disjoint aggregates, the larger first in each group."""
    chosen = []
    for group in groups:
        taken: set[str] = set()
        for name in sorted(group, key=lambda name: (-len(name), name)):
            if taken.isdisjoint(name):
                taken.update(name)
                chosen.append(name)
    return sorted(chosen)


def _collect_copies(group: Sequence[Aggregate], by_atom: dict[str, list[tuple[Aggregate, int]]]) -> _Copies:
    """What IN has that can become part of aggregates of a group."""
    names = [frozenset(name) for name in group]
    copies = {
        (copy, sites)
        for atom in sorted({atom for name in group for atom in name})
        for copy, sites in by_atom.get(atom, ())
        if any(name.issuperset(copy) for name in names)
    }
    return tuple(sorted(copies))


class Witness(Protocol):
    """What proves a bound."""

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        """The milliseconds that it proves."""

    def explain(self, demands: DemandSet, network: Network) -> str:
        """The argument, in words."""


@dataclass(frozen=True, slots=True)
class ZeroWitness:
    """The bound zero: nothing has to be done."""

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        return 0.0

    def explain(self, demands: DemandSet, network: Network) -> str:
        return "everything is where it is needed"


@dataclass(frozen=True, slots=True)
class Certificate:
    """No body, with atoms split or not, completes before `bound_ms`. Only the latency of one transfer is counted.

    `whole_atoms` says that it holds only where no atom is split. `memberships` are those of open partitions under which
    the bound was found, the least over all of them; empty where none were open.
    """

    bound_ms: float
    bound_by: str
    witness: Witness
    whole_atoms: bool = False
    memberships: tuple[tuple[str, tuple[int, ...]], ...] = ()


def format_bytes(size: float) -> str:
    """An amount of bytes with three digits in the fitting unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.3g} B"


def format_rate(bytes_per_ms: float) -> str:
    """A capacity in GB/s."""
    return f"{bytes_per_ms / 1e6:.6g} GB/s"


def format_latency(milliseconds: float) -> str:
    """The latency that passes before any transfer is under way, as the end of a sentence."""
    return f", after {milliseconds * 1e3:g} us of latency" if milliseconds else ""
