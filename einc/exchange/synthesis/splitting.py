"""Atom splitting: an atom becomes k atoms that may take several ways at once and follow each other (beyond the paper).

`A` split in k becomes `A.1` ... `A.k`, whole bytes, larger pieces first. All atoms that share an aggregate are split
alike, and IN and OUT follow piece by piece. In a whole plan, cutting and joining the finer blocks takes time too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from einc.exchange.language.program import Aggregate, Holding, Program, Requirement


def find_atom_families(program: Program) -> dict[str, str]:
    """For every atom of the preamble the first atom of its family: those that aggregates tie together."""
    parent: dict[str, str] = {}

    def root(atom: str) -> str:
        parent.setdefault(atom, atom)
        while parent[atom] != atom:
            parent[atom] = atom = parent[parent[atom]]
        return atom

    named: Iterable[Aggregate] = [
        *(holding.aggregate for holding in program.holdings),
        *(requirement.aggregate for requirement in program.requirements),
    ]
    for aggregate in named:
        for atom in aggregate:
            one, other = sorted((root(aggregate[0]), root(atom)))
            parent[other] = one
    return {atom: root(atom) for atom in sorted(parent)}


def split_size(size: int, pieces: int) -> tuple[int, ...]:
    """Whole bytes that add up to `size`, larger first; `pieces` is at most `size`."""
    least, larger = divmod(size, pieces)
    return (least + 1,) * larger + (least,) * (pieces - larger)


def name_piece(aggregate: Aggregate, number: int, pieces: int) -> Aggregate:
    """The name of a piece, numbered from 0; an aggregate in one piece keeps its own."""
    return aggregate if pieces == 1 else tuple(sorted(f"{atom}.{number + 1}" for atom in aggregate))


def split_atoms(preamble: Program, splits: Mapping[str, int]) -> Program:
    """The preamble with its atoms split, and no actions. `splits` has the pieces of every atom that is cut.

    Atoms that share an aggregate must have the same number of pieces.
    """
    holdings: list[Holding] = []
    for holding in preamble.holdings:
        pieces = splits.get(holding.aggregate[0], 1)
        for number, size in enumerate(split_size(holding.size, pieces)):
            holdings.append(Holding(name_piece(holding.aggregate, number, pieces), holding.sites, size))
    requirements: list[Requirement] = []
    for requirement in preamble.requirements:
        pieces = splits.get(requirement.aggregate[0], 1)
        for number in range(pieces):
            requirements.append(Requirement(name_piece(requirement.aggregate, number, pieces), requirement.targets))
    return dataclasses.replace(preamble, holdings=tuple(holdings), requirements=tuple(requirements), actions=())


def can_split(program: Program) -> bool:
    """Whether the pieces' names would be new: `A.1` beside `A` is some other atom."""
    atoms = find_atom_families(program)
    return not any("." in atom and atom.rpartition(".")[0] in atoms for atom in atoms)
