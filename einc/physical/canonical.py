"""Preambles without their names: layers ask for the same exchange under other names, and it is planned once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from einc.exchange.language.program import Action, Aggregate, Holding, Partition, Program, Requirement


@dataclass(frozen=True, slots=True)
class Canonical:
    """A preamble with atoms `a1`, `a2`, ... in the order of IN, and partitions `P1`, ...

    `most_pieces` has every atom with the number of pieces that it can be cut into; `names` those of the atoms before.
    """

    program: Program
    most_pieces: tuple[tuple[str, int], ...]
    names: tuple[tuple[str, str], ...]


def canonical(preamble: Program, most_pieces: Mapping[str, int]) -> Canonical:
    """The canonical form of a preamble, partitions open or not."""
    names: dict[str, str] = {}
    for holding in preamble.holdings:
        for atom in holding.aggregate:
            names.setdefault(atom, f"a{len(names) + 1}")
    partitions = {partition.name: f"P{k}" for k, partition in enumerate(preamble.partitions, start=1)}

    def renamed(aggregate: Aggregate) -> Aggregate:
        return tuple(sorted(names[atom] for atom in aggregate))

    def target(entry: int | str) -> int | str:
        return partitions[entry] if isinstance(entry, str) else entry

    program = Program(
        preamble.gpus,
        tuple(Partition(partitions[one.name], one.size, one.members) for one in preamble.partitions),
        tuple(Holding(renamed(one.aggregate), one.sites, one.size) for one in preamble.holdings),
        tuple(Requirement(renamed(one.aggregate), tuple(map(target, one.targets))) for one in preamble.requirements),
        (),
    )
    most = tuple((new, most_pieces[old]) for old, new in names.items())
    return Canonical(program, most, tuple((new, old) for old, new in names.items()))


def renamed_actions(actions: tuple[Action, ...], name: Callable[[str], str]) -> tuple[Action, ...]:
    """Actions under other names; `name` is asked for whole atoms, and pieces keep their numbers."""
    known: dict[Aggregate, Aggregate] = {}

    def aggregate(old: Aggregate) -> Aggregate:
        if old not in known:
            parts = (atom.partition(".") for atom in old)
            known[old] = tuple(sorted(f"{name(whole)}{dot}{number}" for whole, dot, number in parts))
        return known[old]

    def action(old: Action) -> Action:
        return replace(old, aggregate=aggregate(old.aggregate), after=tuple(sorted(map(action, old.after))))

    return tuple(map(action, actions))
