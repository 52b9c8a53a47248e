"""Sizes of atoms in bytes, and the rule that all atoms of an aggregate have the same size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from einc.exchange.language.program import Aggregate, Program
from einc.exchange.language.words import aggregate_text, size_text


def atom_sizes(program: Program) -> dict[str, int]:
    """The size of every atom that IN names; where IN contradicts itself, what it says first."""
    sizes: dict[str, int] = {}
    for holding in program.holdings:
        for atom in holding.aggregate:
            sizes.setdefault(atom, holding.size)
    return sizes


def aggregate_size(aggregate: Aggregate, sizes: Mapping[str, int]) -> int:
    """Bytes of one copy of an aggregate whose atoms are known and of one size."""
    return sizes[aggregate[0]]


def size_faults(program: Program) -> Iterator[tuple[Aggregate, str]]:
    """Aggregates whose sizes do not agree, each with the reason in words."""
    sizes = atom_sizes(program)
    for holding in program.holdings:
        for atom in holding.aggregate:
            if sizes[atom] != holding.size:
                here, there = size_text(holding.size), size_text(sizes[atom])
                yield holding.aggregate, f"IN gives atom {atom} the size {here} here and {there} elsewhere"
                break
    named = [requirement.aggregate for requirement in program.requirements]
    named += [action.aggregate for action in program.actions]
    for aggregate in dict.fromkeys(named):
        known = [atom for atom in aggregate if atom in sizes]
        other = next((atom for atom in known if sizes[atom] != sizes[known[0]]), None)
        if other is not None:
            yield (
                aggregate,
                f"{aggregate_text(aggregate)} combines atoms of different sizes: {known[0]} has "
                f"{size_text(sizes[known[0]])}, {other} has {size_text(sizes[other])}",
            )
