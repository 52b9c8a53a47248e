"""Atom splitting: an atom becomes k atoms that may take several ways at once and follow each other (beyond the paper).

`A` split in k becomes `A.1` ... `A.k`, whole bytes, larger pieces first. All atoms that share an aggregate are split
alike, and IN and OUT follow piece by piece. In a whole plan, cutting and joining the finer blocks takes time too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from einc.errors import ProgramError
from einc.exchange.language.exact_cover import find_root
from einc.exchange.language.program import Aggregate, Holding, Program, Requirement


def find_atom_families(program: Program) -> dict[str, str]:
    """For every atom of the preamble the first atom of its family: those that aggregates tie together."""
    named: list[Aggregate] = [
        *(holding.aggregate for holding in program.holdings),
        *(requirement.aggregate for requirement in program.requirements),
    ]
    parent = {atom: atom for aggregate in named for atom in aggregate}
    for aggregate in named:
        for atom in aggregate:
            kept_root, merged_root = sorted((find_root(parent, aggregate[0]), find_root(parent, atom)))
            parent[merged_root] = kept_root
    return {atom: find_root(parent, atom) for atom in sorted(parent)}


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


def find_splits(program: Program, preamble: Program) -> dict[str, int]:
    """The number of pieces of every atom of the preamble that the program cuts, judged by the names of its atoms.

    Raises ProgramError if it cuts atoms of one aggregate differently.
    """
    atoms = {atom for holding in program.holdings for atom in holding.aggregate}
    pieces: dict[str, int] = {}
    for atom in atoms:
        unsplit, dot, number = atom.rpartition(".")
        if dot and number.isdigit():
            pieces[unsplit] = pieces.get(unsplit, 0) + 1
    held_atoms = {atom for holding in preamble.holdings for atom in holding.aggregate}
    splits = {atom: pieces[atom] for atom in sorted(held_atoms - atoms) if atom in pieces}
    named = [entry.aggregate for entry in preamble.holdings] + [entry.aggregate for entry in preamble.requirements]
    for aggregate in named:
        counts = {atom: splits.get(atom, 1) for atom in aggregate}
        if len(set(counts.values())) > 1:
            described = ", ".join(f"{atom} in {count}" for atom, count in counts.items())
            raise ProgramError(f"atoms of one aggregate must be split into as many pieces each: {described[:200]}")
    return splits


def join_pieces(program: Program, splits: Mapping[str, int]) -> Program:
    """The preamble whose atoms a program has in pieces; the inverse of `split_atoms`. Actions are left out.

    Raises ProgramError where the program lacks pieces.
    """
    holdings: list[Holding] = []
    requirements: list[Requirement] = []
    of_first: dict[tuple[Aggregate, tuple[int, ...]], int] = {}
    for holding in program.holdings:
        unsplit, number = _find_whole(holding.aggregate, splits)
        if number == 1:
            of_first[unsplit, holding.sites] = len(holdings)
            holdings.append(Holding(unsplit, holding.sites, holding.size))
        else:
            at = of_first.get((unsplit, holding.sites))
            if at is None:
                raise ProgramError(f"the program has a piece of {unsplit[0][:80]}, and not its first piece")
            holdings[at] = dataclasses.replace(holdings[at], size=holdings[at].size + holding.size)
    for requirement in program.requirements:
        unsplit, number = _find_whole(requirement.aggregate, splits)
        if number == 1:
            requirements.append(Requirement(unsplit, requirement.targets))
    return dataclasses.replace(program, holdings=tuple(holdings), requirements=tuple(requirements), actions=())


def _find_whole(aggregate: Aggregate, splits: Mapping[str, int]) -> tuple[Aggregate, int]:
    """The aggregate that this one is a piece of, or is itself, and the number of the piece from 1."""
    unsplit, dot, number = aggregate[0].rpartition(".")
    if not dot or unsplit not in splits:
        return aggregate, 1
    return tuple(sorted(atom.rpartition(".")[0] for atom in aggregate)), int(number)


def can_split(program: Program) -> bool:
    """Whether the pieces' names would be new: `A.1` beside `A` is some other atom."""
    atoms = find_atom_families(program)
    return not any("." in atom and atom.rpartition(".")[0] in atoms for atom in atoms)
