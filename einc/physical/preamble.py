"""The preamble of the exchange program that brings an operator its inputs (paper, Section 5.3).

Atoms are named as in the paper: a letter for the copy and a number for the atom, `X1+Y1`; where several tensors are
brought, the tensor's name stands in front: `act_X1`. Atoms that every consumer has at its site already, whole, are
left out. Function specification i of the operator is partition `S{i + 1}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from einc.exchange.language.program import Action, Aggregate, Holding, Partition, Program, Requirement
from einc.physical.atoms import Inflow
from einc_runtime.plan.schema import Block

LETTERS = "XYZABCDEFGHIJKLMNOPQRTUVW"
"""Copies are lettered in this order; S is for partitions."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A cell of inflow number `inflow` that takes part in the exchange, or a piece of one.

    `block` is the cell's, or that of the piece; `copies` names its copies by ascending function; `aggregate` is all of
    them together.
    """

    inflow: int
    cell: int
    block: Block
    copies: tuple[str, ...]
    aggregate: Aggregate


@dataclass(frozen=True, slots=True)
class Preamble:
    """A program without a body, and the atom behind each of its names.

    `groups` has for every partition the function specifications that it stands for.
    """

    program: Program
    atoms: dict[str, Atom]
    groups: tuple[tuple[int, ...], ...]


def build_preamble(inflows: Sequence[Inflow], placement: Sequence[int], sites: int) -> Preamble | None:
    """The preamble for function specifications at the sites of `placement`; None where nothing has to be done."""
    partitions = tuple(Partition(f"S{f + 1}", 1, (site,)) for f, site in enumerate(placement))
    groups = tuple((f,) for f in range(len(placement)))
    return _write_preamble(
        inflows, [_find_moving_cells(inflow, placement) for inflow in inflows], partitions, groups, sites
    )


def build_open_preamble(inflows: Sequence[Inflow], functions: int, sites: int) -> Preamble | None:
    """The preamble for `functions` function specifications that may run anywhere.

    Those that need the same atoms are one partition declared by its size, named after the first of them; what is whole
    at all sites is left out.
    """
    functions_by_needs: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for f in range(functions):
        functions_by_needs.setdefault(tuple(inflow.needs[f] for inflow in inflows), []).append(f)
    groups = tuple(map(tuple, functions_by_needs.values()))
    partitions = tuple(Partition(f"S{group[0] + 1}", len(group)) for group in groups)
    moving = [_find_movable_cells(inflow, sites) for inflow in inflows]
    return _write_preamble(inflows, moving, partitions, groups, sites)


def _write_preamble(
    inflows: Sequence[Inflow],
    moving: Sequence[Sequence[int]],
    partitions: tuple[Partition, ...],
    groups: tuple[tuple[int, ...], ...],
    sites: int,
) -> Preamble | None:
    """The preamble for the cells in `moving`, a list for every inflow."""
    holdings: list[Holding] = []
    requirements: list[Requirement] = []
    atoms: dict[str, Atom] = {}
    stems = iter(_make_prefixes([inflow.name for inflow, cells in zip(inflows, moving, strict=True) if cells]))
    targets = [(partition.name, group[0]) for partition, group in zip(partitions, groups, strict=True)]
    for i, (inflow, cells) in enumerate(zip(inflows, moving, strict=True)):
        if cells:
            _append_inflow(i, inflow, cells, next(stems), targets, holdings, requirements, atoms)
    if not atoms:
        return None
    program = Program(tuple(range(sites)), partitions, tuple(holdings), tuple(requirements), ())
    return Preamble(program, atoms, groups)


def _find_moving_cells(inflow: Inflow, placement: Sequence[int]) -> list[int]:
    """The cells that are needed at a site where they are not whole yet, in ascending order."""
    moving: set[int] = set()
    for site, cells in zip(placement, inflow.needs, strict=True):
        moving.update(set(cells) - inflow.settled.get(site, set()))
    return sorted(moving)


def _find_movable_cells(inflow: Inflow, sites: int) -> list[int]:
    """The cells that are needed and are not whole at every site, in ascending order."""
    everywhere = set.intersection(*(inflow.settled.get(site, set()) for site in range(sites)))
    return sorted(set().union(*inflow.needs) - everywhere)


def _append_inflow(
    position: int,
    inflow: Inflow,
    cells: Sequence[int],
    stem: str,
    partitions: Sequence[tuple[str, int]],
    holdings: list[Holding],
    requirements: list[Requirement],
    atoms: dict[str, Atom],
) -> None:
    """Appends the part of IN and OUT that belongs to one inflow, and its names.

    `partitions` are names, each with one of the function specifications that it stands for.
    """
    grid, numbers = inflow.grid, {cell: n for n, cell in enumerate(cells, start=1)}
    sizes = inflow.sizes()
    at: dict[int, list[int]] = {cell: [] for cell in cells}
    for site, cells_at_site in sorted(inflow.settled.items()):
        for cell in cells_at_site & numbers.keys():
            at[cell].append(site)
    aggregates: dict[int, Aggregate] = {}
    for cell in cells:
        names = tuple(f"{stem}{_make_letters(c)}{numbers[cell]}" for c in range(max(1, len(inflow.owners[cell]))))
        atom = Atom(position, cell, grid.block(cell), names, tuple(sorted(names)))
        aggregates[cell] = atom.aggregate
        atoms.update((name, atom) for name in names)
    by_function = sorted(
        (copy.function, c, block) for block, copies in inflow.copies.items() for c, copy in enumerate(copies)
    )
    for _, c, block in by_function:
        copies = inflow.copies[block]
        for cell in grid.cells(block):
            if cell in numbers:
                present = tuple(at[cell]) if len(copies) == 1 else (copies[c].site,)
                holdings.append(Holding((f"{stem}{_make_letters(c)}{numbers[cell]}",), present, sizes[cell]))
    for cell in cells:
        if at[cell] and len(inflow.owners[cell]) != 1:
            holdings.append(Holding(aggregates[cell], tuple(at[cell]), sizes[cell]))
    targets: dict[int, list[str]] = {cell: [] for cell in cells}
    for name, f in partitions:
        for cell in inflow.needs[f]:
            if cell in targets:
                targets[cell].append(name)
    requirements.extend(Requirement(aggregates[cell], tuple(targets[cell])) for cell in cells)


def _make_letters(copy: int) -> str:
    """X, Y, Z, A, ..., W, XX, XY, ..."""
    text = LETTERS[copy % len(LETTERS)]
    while copy >= len(LETTERS):
        copy = copy // len(LETTERS) - 1
        text = LETTERS[copy % len(LETTERS)] + text
    return text


def get_last_name(tensor: str) -> str:
    """What occurs in a program of a tensor's name: what stands behind the last dot but for numbers, such as those of
    layers."""
    parts = tensor.split(".")
    return next((part for part in reversed(parts) if not part.isdigit()), parts[-1])


def _make_prefixes(tensors: Sequence[str]) -> list[str]:
    """The prefixes of the copies' letters: a short name of each tensor, or nothing if there is only one."""
    if len(tensors) == 1:
        return [""]
    stems: list[str] = []
    for tensor in tensors:
        short = re.sub(r"[^A-Za-z0-9_]", "_", get_last_name(tensor)) or "_"
        short = f"_{short}" if short[0].isdigit() else short
        stem, n = f"{short}_", 2
        while stem in stems:
            stem, n = f"{short}_{n}_", n + 1
        stems.append(stem)
    return stems


@dataclass(frozen=True, slots=True)
class CanonicalPreamble:
    """A preamble with atoms `a1`, `a2`, ... in the order of IN, and partitions `P1`, ...

    For every atom, `max_pieces` has the number of pieces that it can be cut into, and `names` its former name.
    """

    program: Program
    max_pieces: tuple[tuple[str, int], ...]
    names: tuple[tuple[str, str], ...]


def canonicalize(preamble: Program, max_pieces: Mapping[str, int]) -> CanonicalPreamble:
    """The canonical form of a preamble with open or given partitions.

    Layers ask for the same exchange under other names; in this form it is planned once.
    """
    names: dict[str, str] = {}
    for holding in preamble.holdings:
        for atom in holding.aggregate:
            names.setdefault(atom, f"a{len(names) + 1}")
    partitions = {partition.name: f"P{k}" for k, partition in enumerate(preamble.partitions, start=1)}

    def rename(aggregate: Aggregate) -> Aggregate:
        return tuple(sorted(names[atom] for atom in aggregate))

    def rename_target(entry: int | str) -> int | str:
        return partitions[entry] if isinstance(entry, str) else entry

    program = Program(
        preamble.gpus,
        tuple(
            Partition(partitions[partition.name], partition.size, partition.members)
            for partition in preamble.partitions
        ),
        tuple(Holding(rename(holding.aggregate), holding.sites, holding.size) for holding in preamble.holdings),
        tuple(
            Requirement(rename(requirement.aggregate), tuple(map(rename_target, requirement.targets)))
            for requirement in preamble.requirements
        ),
        (),
    )
    pieces = tuple((new, max_pieces[old]) for old, new in names.items())
    return CanonicalPreamble(program, pieces, tuple((new, old) for old, new in names.items()))


def rename_actions(actions: tuple[Action, ...], name: Callable[[str], str]) -> tuple[Action, ...]:
    """The actions with other names of atoms; `name` gives that of a whole atom, and pieces keep their numbers."""
    known: dict[Aggregate, Aggregate] = {}

    def rename(old: Aggregate) -> Aggregate:
        if old not in known:
            parts = (atom.partition(".") for atom in old)
            known[old] = tuple(sorted(f"{name(unsplit)}{dot}{number}" for unsplit, dot, number in parts))
        return known[old]

    def rename_action(old: Action) -> Action:
        return replace(old, aggregate=rename(old.aggregate), after=tuple(sorted(map(rename_action, old.after))))

    return tuple(map(rename_action, actions))
