"""Atoms cut into pieces: the blocks behind the splits of an exchange program (in the paper, atoms are whole).

An atom is a box, and its pieces are boxes as well, of about equal size; larger ones come first. Those of a tuple have a
part of every member, so that only dimensions are cut that all members have and that no aggregation needs whole.

Programs that others wrote, a person or a proposer, speak of atoms and sizes. A plan has blocks behind them: an atom can
be cut into so many pieces only, and parts of different blocks cannot be combined, whatever their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc.errors import ProgramError
from einc.exchange.language.printer import format_aggregate
from einc.exchange.language.program import Action, Aggregate, Holding, Requirement
from einc.physical.atoms import Inflow
from einc.physical.preamble import Atom, Preamble
from einc_runtime.plan.schema import Block


def count_max_pieces(inflows: Sequence[Inflow], preamble: Preamble) -> dict[str, int]:
    """The largest number of pieces that each atom can be cut into."""
    counts: dict[str, int] = {}
    for name, atom in preamble.atoms.items():
        inflow = inflows[atom.inflow]
        shape = atom.block.shape
        counts[name] = max(1, math.prod(shape[d] for d in _list_cuttable_dims(inflow)))
    return counts


def split_atoms(inflows: Sequence[Inflow], preamble: Preamble, splits: Mapping[str, int]) -> Preamble:
    """The preamble with atoms cut into pieces, with the sizes of their blocks. `splits` has the number for each.

    Piece k of atom `A`, from 1, is `A.k`.
    """
    if not splits:
        return preamble
    atoms: dict[str, Atom] = {}
    pieces: dict[tuple[int, int], list[Atom]] = {}  # one object for all copies of a piece
    for name, atom in preamble.atoms.items():
        if (atom.inflow, atom.cell) not in pieces:
            pieces[atom.inflow, atom.cell] = _cut_atom(atom, splits.get(name, 1), inflows[atom.inflow])
        atom_pieces = pieces[atom.inflow, atom.cell]
        atoms.update(
            {name: atom}
            if atom_pieces == [atom]
            else {f"{name}.{k}": piece for k, piece in enumerate(atom_pieces, start=1)}
        )
    holdings = [
        Holding(
            _name_pieces(holding.aggregate, k, piece, atoms), holding.sites, inflows[piece.inflow].bytes_of(piece.block)
        )
        for holding in preamble.program.holdings
        for k, piece in enumerate(_get_pieces(holding, preamble, pieces), start=1)
    ]
    requirements = [
        Requirement(piece.aggregate, requirement.targets)
        for requirement in preamble.program.requirements
        for piece in _get_pieces(requirement, preamble, pieces)
    ]
    program = replace(preamble.program, holdings=tuple(holdings), requirements=tuple(requirements))
    return Preamble(program, atoms, preamble.groups)


def _cut_atom(atom: Atom, count: int, inflow: Inflow) -> list[Atom]:
    if count == 1:
        return [atom]
    boxes = cut_block(atom.block, count, _list_cuttable_dims(inflow))
    cut_atoms = []
    for k, box in enumerate(boxes, start=1):
        names = tuple(f"{copy}.{k}" for copy in atom.copies)
        cut_atoms.append(Atom(atom.inflow, atom.cell, box, names, tuple(sorted(names))))
    return cut_atoms


def _get_pieces(
    entry: Holding | Requirement, preamble: Preamble, pieces: Mapping[tuple[int, int], Sequence[Atom]]
) -> Sequence[Atom]:
    atom = preamble.atoms[entry.aggregate[0]]
    return pieces[atom.inflow, atom.cell]


def _name_pieces(aggregate: Aggregate, k: int, piece: Atom, atoms: Mapping[str, Atom]) -> Aggregate:
    """The names of the k-th pieces of an aggregate; an atom in one piece keeps its name."""
    if atoms.get(aggregate[0]) is piece:
        return aggregate
    return tuple(sorted(f"{name}.{k}" for name in aggregate))


def cut_block(block: Block, pieces: int, dims: Sequence[int]) -> list[Block]:
    """`pieces` boxes of about equal size that make up `block`, cut in `dims` alone; larger first, else ascending.

    There must be as many elements in these dimensions. Halves are cut again, each where it comes out evenest.
    """
    boxes: list[Block] = []
    _halve(block, pieces, dims, boxes)
    return sorted(boxes, key=lambda box: (-box.size, box))


def _halve(block: Block, pieces: int, dims: Sequence[int], boxes: list[Block]) -> None:
    if pieces == 1:
        boxes.append(block)
        return
    share = (pieces + 1) // 2 / pieces
    shape = block.shape
    best: tuple[float, int, int] | None = None  # distance from the share, dimension, place
    for d in dims:
        if shape[d] > 1:
            at = min(max(1, round(shape[d] * share)), shape[d] - 1)
            distance = round(abs(at / shape[d] - share), 9)
            if best is None or distance < best[0]:
                best = distance, d, at
    assert best is not None, "there are at least as many elements as pieces"
    _, d, at = best
    across = math.prod(shape[o] for o in dims if o != d)
    first = (pieces + 1) // 2
    first = min(max(first, pieces - (shape[d] - at) * across), at * across)
    middle = block.lower[d] + at
    _halve(Block(block.lower, (*block.upper[:d], middle, *block.upper[d + 1 :])), first, dims, boxes)
    _halve(Block((*block.lower[:d], middle, *block.lower[d + 1 :]), block.upper), pieces - first, dims, boxes)


def _list_cuttable_dims(inflow: Inflow) -> list[int]:
    """The dimensions of an inflow's grid that its atoms may be cut in."""
    group = inflow.carried[0].group
    tuples = len(inflow.carried) > 1
    return [
        d
        for d in range(len(inflow.grid.counts))
        if all(d in dims for dims in inflow.dims) and not (tuples and d in group.uncut)
    ]


def cut_as_asked(inflows: Sequence[Inflow], preamble: Preamble, splits: Mapping[str, int]) -> Preamble:
    """The preamble with its atoms cut into so many pieces. Raises ProgramError where a block has too few parts."""
    most = count_max_pieces(inflows, preamble)
    for atom, pieces in sorted(splits.items()):
        if pieces > most[atom]:
            block = preamble.atoms[atom].block
            raise ProgramError(
                f"it cuts {atom} into {pieces} pieces, and its block {block} can be cut into {most[atom]}"
            )
    return split_atoms(inflows, preamble, splits)


def use_actions(preamble: Preamble, actions: tuple[Action, ...]) -> Preamble:
    """The preamble with this body. Raises ProgramError where an action combines atoms of different blocks."""
    seen: set[tuple[str, ...]] = set()
    for action in actions:
        for used in (action, *action.after):
            if used.aggregate in seen:
                continue
            seen.add(used.aggregate)
            atom = preamble.atoms.get(used.aggregate[0])  # an action with an unknown atom is never enabled
            if atom is not None and not set(used.aggregate) <= set(atom.aggregate):
                raise ProgramError(
                    f"it combines {format_aggregate(used.aggregate)}, which are parts of different blocks"
                )
    return replace(preamble, program=replace(preamble.program, actions=actions))
