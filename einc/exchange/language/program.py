"""Exchange programs in ground form, as the checker and the simulator take them.

The text allows lists of sites, partitions and chains; here every action has one source site, and identical actions
are one (paper, Section 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass

Aggregate = tuple[str, ...]
"""The distinct atoms of an aggregate in ascending order: `A+B` and `B+A` are both ("A", "B")."""

GIGABYTE = 10**9
"""The default size of an atom in bytes; all units of the language are powers of ten."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A named group of sites: explicit members, or a size alone where the membership is open."""

    name: str
    size: int
    members: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """An IN entry: an aggregate that is present at these sites, in bytes per copy."""

    aggregate: Aggregate
    sites: tuple[int, ...]
    size: int = GIGABYTE


@dataclass(frozen=True, slots=True)
class Requirement:
    """An OUT entry: an aggregate that must exist at these targets, each a site or a partition's name."""

    aggregate: Aggregate
    targets: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """Form `aggregate` at `source`, then send it to every site of `destinations` (ascending, source excluded).

    `after` names the actions that must have ended first; each is given without waits of its own. With `multicast` a
    switch copies what is sent once. With `reads`, in ascending order of sites, a switch adds these copies for `source`,
    which holds the aggregate then, and there are no destinations.
    """

    aggregate: Aggregate
    source: int
    destinations: tuple[int, ...] = ()
    after: tuple[Action, ...] = ()
    multicast: bool = False
    reads: tuple[tuple[Aggregate, int], ...] = ()

    @property
    def uses_switch(self) -> bool:
        """Whether a switch has to copy or to add."""
        return self.multicast or bool(self.reads)

    @property
    def sites(self) -> tuple[int, ...]:
        """All sites that the action names, its source first."""
        return (self.source, *self.destinations, *(site for _, site in self.reads))


@dataclass(frozen=True, slots=True)
class Program:
    """A preamble and a body, every partition with explicit members. `gpus` None stands for every site."""

    gpus: tuple[int, ...] | None
    partitions: tuple[Partition, ...]
    holdings: tuple[Holding, ...]
    requirements: tuple[Requirement, ...]
    actions: tuple[Action, ...]


def explain_reads(aggregate: Aggregate, reads: tuple[tuple[Aggregate, int], ...]) -> str | None:
    """Why a switch cannot make the aggregate of what it reads; None where it can, or reads nothing."""
    if len({site for _, site in reads}) != len(reads):
        return "a switch reads one copy of each site, and a site stands twice here"
    if reads and sorted(atom for part, _ in reads for atom in part) != list(aggregate):
        return "what a switch reads has to be the aggregate, each atom once"
    return None


def list_targets(program: Program, requirement: Requirement) -> tuple[int, ...]:
    """The sites that a requirement names, its partitions' members in place of their names, each once."""
    members = {partition.name: partition.members or () for partition in program.partitions}
    sites: dict[int, None] = {}
    for target in requirement.targets:
        for site in members[target] if isinstance(target, str) else (target,):
            sites[site] = None
    return tuple(sites)


def collect_atom_sizes(program: Program) -> dict[str, int]:
    """The size of every atom that IN names; where IN contradicts itself, the first size."""
    sizes: dict[str, int] = {}
    for holding in program.holdings:
        for atom in holding.aggregate:
            sizes.setdefault(atom, holding.size)
    return sizes
