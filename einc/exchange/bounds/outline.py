"""From a preamble to its demands: what memberships have no part in is worked out once, as searches try many of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from einc.errors import ProgramError
from einc.exchange.bounds.demand import Demand, Demands, Forming, Tangle
from einc.exchange.language.exact_cover import CoverBudget, find_cheapest_partition
from einc.exchange.language.printer import format_aggregate
from einc.exchange.language.program import Aggregate, Partition, Program, collect_atom_sizes
from einc.exchange.network import make_mask

_Alike = tuple[bool, tuple[tuple[int, ...], int, int, tuple[str, ...], int]]
"""What demands that become one have in common: whether they are in tangles, and fields of Demand."""

_Same = tuple[tuple[int, ...], int, int, int, tuple[str, ...], bool]
"""The same for what has to be formed: fields of Forming."""

_Copies = tuple[tuple[Aggregate, int], ...]
"""Aggregates of IN with the sites that hold them, as bit masks."""


@lru_cache(maxsize=16)
def demands_of(program: Program) -> Demands:
    """The demands of a program's preamble. Raises ProgramError where a requirement can never be met.

    Partitions without members are sites that are not known yet.
    """
    return Outline(program).demands(program.partitions)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Disjoint aggregates that no membership tells apart: `sites` and `partitions` need them; the rest as in Demand and
    Forming."""

    names: tuple[Aggregate, ...]
    size: int
    largest: int
    tangled: bool
    sites: int
    partitions: tuple[str, ...]
    holders: tuple[int, ...]
    complete: int
    whole: int
    parts: int


class Outline:
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
        groups = _tangled(needed)
        tangles = [sorted(group) for group in groups if len(group) > 1]
        self._tangles = [
            (sizes[group[0][0]], [(name, *needed[name]) for name in group], _copies(group, by_atom))
            for group in tangles
        ]
        tangled = {name for group in tangles for name in group}
        alike: dict[tuple[Any, ...], list[Aggregate]] = {}
        for name in _disjoint(groups):
            own = name in tangled, *needed[name], *_holders(name, by_atom), _fewest(name, by_atom)
            alike.setdefault(own, []).append(name)
        self.family = []
        for own, names in alike.items():
            each = [sizes[name[0]] for name in names]
            self.family.append(Wanted(tuple(names), sum(each), max(each), *own))
        self._asking = list(dict.fromkeys(one.partitions for one in self.family))

    def demands(self, partitions: Sequence[Partition]) -> Demands:
        """The demands under these partitions, of which some may have no members yet."""
        known = {one.name: make_mask(one.members or ()) for one in partitions}
        counts = {one.name: one.size for one in partitions if one.members is None}
        placed = make_mask(site for one in partitions for site in one.members or ())
        family: dict[_Alike, list[Wanted]] = {}
        forming: dict[_Same, list[Wanted]] = {}
        asking = {}  # for every set of partitions its members, those that are not known yet, and how many they have
        for names in self._asking:
            unknown = tuple([name for name in names if name in counts])
            asking[names] = _targets(0, names, known), unknown, sum([counts[name] for name in unknown])
        for one in self.family:
            members, unknown, count = asking[one.partitions]
            targets = one.sites | members
            # Partitions are disjoint, but open ones may take sites that are targets already.
            awaited = max(0, count - (targets & ~placed).bit_count() - one.complete.bit_count()) if unknown else 0
            if targets & ~one.complete or awaited:
                alike = one.tangled, (one.holders, targets & ~one.complete, awaited, unknown, one.complete)
                family.setdefault(alike, []).append(one)
            if one.holders != (one.whole,):  # else it is only held whole, and nothing forms it
                same = one.holders, targets & ~one.whole, one.whole, one.parts, unknown, one.tangled
                forming.setdefault(same, []).append(one)
        return Demands(
            tuple(
                Demand(tuple([name for one in own for name in one.names]), _size(own), *key, _largest(own))
                for (_, key), own in sorted(family.items(), key=itemgetter(0))
            ),
            tuple(
                Tangle(size, tuple((name, _targets(sites, named, known)) for name, sites, named in group), copies)
                for size, group, copies in self._tangles
            ),
            tuple(Forming(_size(own), *key, _largest(own)) for key, own in sorted(forming.items(), key=itemgetter(0))),
        )


def _targets(sites: int, partitions: Sequence[str], known: Mapping[str, int]) -> int:
    """The targets that are known, if the members of some partitions are."""
    for partition in partitions:
        sites |= known[partition]
    return sites


def _size(alike: Sequence[Wanted]) -> int:
    return sum([one.size for one in alike])


def _largest(alike: Sequence[Wanted]) -> int:
    return max([one.largest for one in alike])


def _fewest(name: Aggregate, by_atom: dict[str, list[tuple[Aggregate, int]]]) -> int:
    """How many copies of IN make up the aggregate at least; it has copies of subsets for every atom."""
    atoms = frozenset(name)
    parts = {copy for atom in name for copy, _ in by_atom[atom] if atoms.issuperset(copy)}
    if all(len(part) == 1 for part in parts):
        return len(name)
    found = find_cheapest_partition(name, [(part, 1) for part in parts], CoverBudget())
    if found is None:
        raise ProgramError(f"{format_aggregate(name)} can never be formed: what IN holds of it overlaps")
    return len(found)


def _holders(name: Aggregate, by_atom: dict[str, list[tuple[Aggregate, int]]]) -> tuple[tuple[int, ...], int, int]:
    """The sets of sites that hold each atom in some subset of the aggregate, what they share, and who has it whole."""
    atoms = frozenset(name)
    holders = set()
    complete = -1
    whole = 0
    for atom in name:
        holder = 0
        for copy, sites in by_atom.get(atom, ()):
            if atoms.issuperset(copy):
                holder |= sites
            if copy == name:
                whole |= sites
        if not holder:
            raise ProgramError(
                f"{format_aggregate(name)} can never be formed: IN holds no {atom} that could become part"
            )
        holders.add(holder)
        complete &= holder
    return tuple(sorted(holders)), complete, whole


def _tangled(needed: Iterable[Aggregate]) -> list[list[Aggregate]]:
    """The required aggregates in groups that share atoms."""
    group_of: dict[str, list[Aggregate]] = {}
    for name in sorted(needed):
        joined = [name]
        for group in {id(group): group for atom in name if (group := group_of.get(atom)) is not None}.values():
            joined = group + joined
        for atom in {atom for other in joined for atom in other}:
            group_of[atom] = joined
    return list({id(group): group for group in group_of.values()}.values())


def _disjoint(groups: list[list[Aggregate]]) -> list[Aggregate]:
    """Pairwise disjoint aggregates, the larger first in each group."""
    chosen = []
    for group in groups:
        taken: set[str] = set()
        for name in sorted(group, key=lambda name: (-len(name), name)):
            if taken.isdisjoint(name):
                taken.update(name)
                chosen.append(name)
    return sorted(chosen)


def _copies(group: Sequence[Aggregate], by_atom: dict[str, list[tuple[Aggregate, int]]]) -> _Copies:
    """What IN has that can become part of aggregates of a group."""
    names = [frozenset(name) for name in group]
    copies = {
        (copy, sites)
        for atom in sorted({atom for name in group for atom in name})
        for copy, sites in by_atom.get(atom, ())
        if any(name.issuperset(copy) for name in names)
    }
    return tuple(sorted(copies))
