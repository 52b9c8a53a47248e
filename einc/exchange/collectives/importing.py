"""Collective algorithms as exchange programs: chunks become atoms, and what steps move becomes actions.

Atom `c3_r1` is what rank 1 contributes to chunk 3. A program has no buffers and no thread blocks: what remains of an
algorithm is what moves where and what is combined, in the order in which data allows it. What a rank sends to several
others is one action, so that a sum is formed once.
"""

from __future__ import annotations

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import Atom, CollectiveAlgorithm
from einc.exchange.collectives.verifying import Value, verify_algorithm
from einc.exchange.language.program import Action, Aggregate, Holding, Program, Requirement

DEFAULT_CHUNK = 10**6
"""The bytes of a chunk where nobody says how many: files of algorithms have no sizes."""


def convert_algorithm(algorithm: CollectiveAlgorithm, chunk_bytes: int = DEFAULT_CHUNK) -> Program:
    """The exchange program of a valid algorithm. Raises ProgramError, with its place, for one that is not valid.

    `chunk_bytes` are those of a chunk of its file, which `splits` may divide.
    """
    verdict = verify_algorithm(algorithm)
    if verdict.faults:
        fault, *further_faults = verdict.faults
        hint = f"{len(further_faults)} more: `einc exprog check` lists all faults" if further_faults else None
        raise ProgramError(fault.message, where=fault.where or None, hint=hint)
    holdings = {name_atom(atom): slot.rank for slot, atom in algorithm.collective.list_inputs()}
    targets: dict[Aggregate, dict[int, None]] = {}
    for slot, value in algorithm.collective.list_outputs():
        targets.setdefault(_name_value(value), {})[slot.rank] = None
    moved: dict[tuple[Aggregate, int], set[int]] = {}
    for move in verdict.transfers:
        moved.setdefault((_name_value(move.value), move.source), set()).add(move.target)
    present: set[tuple[Aggregate, int]] = {((name,), rank) for name, rank in holdings.items()}
    for (aggregate, source), receivers in moved.items():
        present |= {(aggregate, rank) for rank in (source, *receivers)}
    actions = {Action(aggregate, source, tuple(sorted(ranks))) for (aggregate, source), ranks in moved.items()}
    for aggregate, ranks in targets.items():
        actions |= {Action(aggregate, rank) for rank in ranks if (aggregate, rank) not in present}
    return Program(
        tuple(range(algorithm.collective.ranks)),
        (),
        tuple(Holding((name,), (rank,), -(-chunk_bytes // algorithm.splits)) for name, rank in holdings.items()),
        tuple(Requirement(aggregate, tuple(sorted(ranks))) for aggregate, ranks in targets.items()),
        tuple(sorted(actions)),
    )


def name_atom(atom: Atom) -> str:
    chunk, rank = atom
    return f"c{chunk}_r{rank}"


def _name_value(value: Value) -> Aggregate:
    return tuple(sorted(name_atom(atom) for atom in value))
