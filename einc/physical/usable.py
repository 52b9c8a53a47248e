"""Exchange programs that others wrote, made usable in a plan: a person's own, and proposals.

A text speaks of atoms and sizes. A plan has blocks behind them: an atom can be cut into so many pieces only, and parts
of different blocks cannot be combined, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc.errors import ProgramError
from einc.exchange.language.printer import format_aggregate
from einc.exchange.language.program import Action
from einc.physical.atoms import Inflow
from einc.physical.pieces import count_max_pieces, split_atoms
from einc.physical.preamble import Preamble


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
