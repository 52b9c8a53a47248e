"""What a preamble demands of the network, whatever the body: who has the atoms of each aggregate, and who needs it.

Only copies of subsets of X can become parts of X. So a transfer *for* X carries a subset of X, and transfers for
disjoint aggregates are different transfers. All bounds count bytes, so they hold for programs that split atoms as well.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from einc.errors import ProgramError
from einc.exprog.bounds.fabric import mask_of
from einc.exprog.cover import Budget, cheapest_partition
from einc.exprog.program import Aggregate, Program
from einc.exprog.sizes import atom_sizes
from einc.exprog.words import aggregate_text


@dataclass(frozen=True, slots=True)
class Demand:
    """Disjoint aggregates that are alike: the same sites have their atoms and the same sites need them. Either all of
    them are in tangles, or none.

    `size` is in bytes, of all together. `holders` are the distinct sets of sites (bit masks) that hold an atom; copies
    of aggregates count for each atom inside. `targets` need the aggregate and do not hold all atoms. `awaited` is the
    number of further targets that are not known yet, which open partitions will be. `complete` are the sites that hold
    all atoms. `largest` is the size of the largest copy.
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
class Tangle:
    """Required aggregates that share atoms, directly or through each other; all of one size in bytes.

    `wanted` are (aggregate, targets); `copies` the (aggregate, site) of IN that can become parts of them.
    """

    size: int
    wanted: tuple[tuple[Aggregate, int], ...]
    copies: tuple[tuple[Aggregate, int], ...]


@dataclass(frozen=True, slots=True)
class Forming:
    """An aggregate of several atoms in the family, `size` bytes a copy.

    `targets` need it and do not hold it whole, `whole` are the sites that do; `holders` as in Demand. IN has it in
    `parts` copies at least. `partitions` are the open ones that will need it.
    """

    aggregate: Aggregate
    size: int
    holders: tuple[int, ...]
    targets: int
    whole: int
    parts: int
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demands:
    """A preamble's demands: a family of disjoint aggregates, and apart all those that overlap."""

    family: tuple[Demand, ...]
    tangles: tuple[Tangle, ...]
    forming: tuple[Forming, ...]

    def signature(self) -> object:
        """What bounds see of it, now and when open partitions are chosen: names do not matter."""
        family = tuple(dataclasses.replace(demand, aggregates=()) for demand in self.family)
        forming = sorted(dataclasses.astuple(dataclasses.replace(entry, aggregate=())) for entry in self.forming)
        return family, self.tangles, tuple(forming)


def demands_of(program: Program) -> Demands:
    """The demands of a program's preamble. Raises ProgramError where a requirement can never be met.

    Partitions without members are sites that are not known yet.
    """
    sizes = atom_sizes(program)
    known = {partition.name: partition.members for partition in program.partitions}
    counts = {partition.name: partition.size for partition in program.partitions}
    placed = mask_of(site for sites in known.values() for site in sites or ())
    targets: dict[Aggregate, int] = {}
    unknown: dict[Aggregate, set[str]] = {}
    for requirement in program.requirements:
        name = requirement.aggregate
        for target in requirement.targets:
            sites = known[target] if isinstance(target, str) else (target,)
            targets[name] = targets.get(name, 0) | mask_of(sites or ())
            if isinstance(target, str) and sites is None:
                unknown.setdefault(name, set()).add(target)
    # Partitions are disjoint, but open ones may take sites that are targets already.
    awaited = {
        name: max(0, sum(counts[one] for one in names) - (targets[name] & ~placed).bit_count())
        for name, names in unknown.items()
    }
    by_atom: dict[str, list[tuple[Aggregate, int]]] = {}
    for holding in program.holdings:
        for atom in holding.aggregate:
            by_atom.setdefault(atom, []).append((holding.aggregate, mask_of(holding.sites)))
    groups = _tangled(targets)
    tangled = {name for group in groups if len(group) > 1 for name in group}
    family: dict[tuple[bool, tuple[tuple[int, ...], int, int, tuple[str, ...], int]], list[Aggregate]] = {}
    forming = []
    for name in _disjoint(groups):
        holders, complete, whole = _holders(name, by_atom)
        open_targets = 0 if not awaited.get(name) else max(0, awaited[name] - complete.bit_count())
        partitions = tuple(sorted(unknown.get(name, ())))
        key = (holders, targets[name] & ~complete, open_targets, partitions, complete)
        if key[1] or open_targets:
            family.setdefault((name in tangled, key), []).append(name)
        if len(name) > 1:
            lacking, parts = targets[name] & ~whole, _fewest(name, by_atom)
            forming.append(Forming(name, sizes[name[0]], holders, lacking, whole, parts, partitions))
    return Demands(
        tuple(
            Demand(tuple(names), sum(sizes[name[0]] for name in names), *key, max(sizes[name[0]] for name in names))
            for (_, key), names in sorted(family.items())
        ),
        tuple(_tangle(group, targets, by_atom, sizes) for group in groups if len(group) > 1),
        tuple(forming),
    )


def _fewest(name: Aggregate, by_atom: dict[str, list[tuple[Aggregate, int]]]) -> int:
    """How many copies of IN make up the aggregate at least."""
    atoms = frozenset(name)
    parts = {copy for atom in name for copy, _ in by_atom[atom] if atoms.issuperset(copy)}
    found = cheapest_partition(name, [(part, 1) for part in parts], Budget())
    if found is None:
        raise ProgramError(f"{aggregate_text(name)} can never be formed: what IN holds of it overlaps")
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
            raise ProgramError(f"{aggregate_text(name)} can never be formed: IN holds no {atom} that could become part")
        holders.add(holder)
        complete &= holder
    return tuple(sorted(holders)), complete, whole


def _tangled(targets: dict[Aggregate, int]) -> list[list[Aggregate]]:
    """The required aggregates in groups that share atoms."""
    group_of: dict[str, list[Aggregate]] = {}
    for name in sorted(targets):
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


def _tangle(
    group: list[Aggregate],
    targets: dict[Aggregate, int],
    by_atom: dict[str, list[tuple[Aggregate, int]]],
    sizes: dict[str, int],
) -> Tangle:
    wanted = tuple((name, targets[name]) for name in sorted(group))
    atoms = sorted({atom for name in group for atom in name})
    names = [frozenset(name) for name in group]
    copies = {
        (copy, sites)
        for atom in atoms
        for copy, sites in by_atom.get(atom, ())
        if any(name.issuperset(copy) for name in names)
    }
    return Tangle(sizes[group[0][0]], wanted, tuple(sorted(copies)))
