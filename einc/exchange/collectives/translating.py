"""Exchange programs as collective algorithms, and the reverse.

As an algorithm, every copy gets a place, and every action becomes steps of thread blocks. A GPU has one thread block
for each peer that it sends to or receives from, and one for what it combines. Nothing is written twice, except what a
sum accumulates in, so that a step waits for those alone that make what it reads.

As a program, chunks become atoms, and what steps move becomes actions. Atom `c3_r1` is what rank 1 contributes to chunk
3. A program has no buffers and no thread blocks: what remains of an algorithm is what moves where and what is combined,
in the order in which data allows it. What a rank sends to several others is one action, so that a sum is formed once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Atom,
    ChunkSlot,
    Collective,
    CollectiveAlgorithm,
    Step,
)
from einc.exchange.collectives.verifying import Value, verify_algorithm
from einc.exchange.language.checker import check
from einc.exchange.language.closure import Copy, Firing, fire_actions
from einc.exchange.language.printer import format_action, format_aggregate
from einc.exchange.language.program import (
    Action,
    Aggregate,
    Holding,
    Program,
    Requirement,
    collect_atom_sizes,
    list_targets,
)

_KINDS_HINT = (
    "a collective is one of allreduce, allgather, reduce_scatter, alltoall and broadcast among all sites from 0 on"
)


def convert_program(program: Program, name: str = "einc", one_block: bool = False) -> CollectiveAlgorithm:
    """The algorithm of a valid program of a collective, out of place; with `one_block`, each GPU has one thread block.

    Raises ProgramError for a program that is not valid or has waits, and for one whose IN and OUT are no collective.
    """
    verdict = check(program)
    if not verdict.valid:
        raise ProgramError(f"the program is not valid: {verdict.faults[0].message}")
    waiting = next((action for action in program.actions if action.after), None)
    if waiting is not None:
        message = f"the action {format_action(waiting)[:200]} has waits (after)"
        raise ProgramError(
            message, hint="steps of an algorithm wait for steps of their own GPU alone; --drop-waits leaves waits out"
        )
    builder = _AlgorithmBuilder(_Layout(program), one_block)
    for firing in fire_actions(program, waits=False)[0]:
        builder.add(firing)
    return builder.finish(name)


class _Layout:
    """Which collective a program is, and where its inputs and outputs lie."""

    def __init__(self, program: Program) -> None:
        sizes = collect_atom_sizes(program)
        if len(set(sizes.values())) > 1:
            raise ProgramError("the atoms have several sizes; chunks have one", hint=_KINDS_HINT)
        self.holders: dict[str, list[int]] = {}
        for holding in program.holdings:
            if len(holding.aggregate) > 1:
                message = f"IN holds {format_aggregate(holding.aggregate)[:100]}, which is combined already"
                raise ProgramError(message, hint=_KINDS_HINT)
            self.holders.setdefault(holding.aggregate[0], []).extend(holding.sites)
        self.targets: dict[Aggregate, set[int]] = {}
        for requirement in program.requirements:
            self.targets.setdefault(requirement.aggregate, set()).update(list_targets(program, requirement))
        sites = {site for some in (*self.holders.values(), *self.targets.values()) for site in some}
        sites |= {site for action in program.actions for site in (action.source, *action.destinations)}
        self.ranks = max(sites) + 1
        self.inputs: dict[Copy, ChunkSlot] = {}
        self.outputs: dict[Copy, ChunkSlot] = {}
        self.collective = self._recognize()

    def _recognize(self) -> Collective:
        shared = next((atom for atom, sites in self.holders.items() if len(set(sites)) > 1), None)
        if shared is not None:
            raise ProgramError(f"IN holds {shared[:100]} at several sites, and chunks begin at one", hint=_KINDS_HINT)
        source = {atom: sites[0] for atom, sites in self.holders.items()}
        used = {atom for aggregate in self.targets for atom in aggregate}
        unused = next((atom for atom in source if atom not in used), None)
        if unused is not None:
            raise ProgramError(f"no OUT takes {unused[:100]}", hint=_KINDS_HINT)
        everywhere = all(len(sites) == self.ranks for sites in self.targets.values())
        single = all(len(aggregate) == 1 for aggregate in self.targets)
        complete = all(
            len(aggregate) == self.ranks == len({source[atom] for atom in aggregate}) for aggregate in self.targets
        )
        alone = all(len(sites) == 1 for sites in self.targets.values())
        if single and everywhere and len(set(source.values())) == 1:
            return self._lay_out("broadcast", source)
        if single and everywhere:
            return self._lay_out("allgather", source)
        if complete and everywhere:
            return self._lay_out("allreduce", source)
        if complete and alone:
            return self._lay_out("reduce_scatter", source)
        if single and alone:
            return self._lay_out("alltoall", source)
        raise ProgramError("IN and OUT are those of no known collective", hint=_KINDS_HINT)

    def _lay_out(self, kind: str, source: Mapping[str, int]) -> Collective:
        """Gives every chunk its number, in the order of OUT within each part."""
        parts: dict[tuple[int, int], list[Aggregate]] = defaultdict(list)
        for aggregate, sites in self.targets.items():
            owners = {"allgather": source[aggregate[0]], "reduce_scatter": min(sites), "alltoall": min(sites)}
            sender = source[aggregate[0]] if kind == "alltoall" else 0
            parts[owners.get(kind, 0), sender].append(aggregate)
        root = next(iter(source.values())) if kind == "broadcast" else 0
        divided = kind in ("allgather", "reduce_scatter", "alltoall")
        share = max(map(len, parts.values()))
        expected = (self.ranks if divided else 1) * (self.ranks if kind == "alltoall" else 1)
        if len(parts) != expected or any(len(some) != share for some in parts.values()):
            raise ProgramError(f"the parts of this {kind} have several sizes, and its chunks are divided evenly")
        collective = Collective(kind, self.ranks, share * (self.ranks if divided else 1), False, root)
        for (owner, _), aggregates in parts.items():
            for position, aggregate in enumerate(aggregates):
                self._place(collective, aggregate, owner * share + position, source)
        return collective

    def _place(self, collective: Collective, aggregate: Aggregate, chunk: int, source: Mapping[str, int]) -> None:
        share, kind = collective.share, collective.kind
        for atom in aggregate:
            index = chunk % share if kind == "allgather" else chunk
            self.inputs[(atom,), source[atom]] = ChunkSlot(source[atom], INPUT, index)
        for site in self.targets[aggregate]:
            index = chunk
            if kind == "reduce_scatter":
                index = chunk % share
            elif kind == "alltoall":
                index = source[aggregate[0]] * share + chunk % share
            self.outputs[aggregate, site] = ChunkSlot(site, OUTPUT, index)


class _AlgorithmBuilder:
    """Adds the steps of actions in an order in which they can run."""

    def __init__(self, layout: _Layout, one_block: bool) -> None:
        self._layout = layout
        self._one_block = one_block
        self._where = dict(layout.inputs)
        self._scratch = [0] * layout.ranks
        self._blocks: list[dict[tuple[str, int], int]] = [{} for _ in range(layout.ranks)]
        self._lengths: dict[tuple[int, int], int] = defaultdict(int)
        self._makers: dict[ChunkSlot, tuple[int, int]] = {}
        """The block and the number of the step that wrote a slot last."""
        self._steps: list[Step] = []

    def add(self, firing: Firing) -> None:
        action = firing.action
        aggregate, source = action.aggregate, action.source
        if (aggregate, source) not in self._where:
            self._form(aggregate, source, firing.parts)
        held = self._where[aggregate, source]
        for target in action.destinations:
            slot = self._choose(aggregate, target)
            channel = (source, target, "0")
            self._append(source, ("send", target), "s", (held,), (), sends=channel)
            self._append(target, ("receive", source), "r", (), (slot,), receives=channel)
            self._where.setdefault((aggregate, target), slot)

    def finish(self, name: str) -> CollectiveAlgorithm:
        for (aggregate, site), slot in self._layout.outputs.items():
            held = self._where[aggregate, site]
            if held != slot:
                self._append(site, ("combine", site), "cpy", (held,), (slot,))
        order = sorted(self._steps, key=lambda step: (step.rank, step.block, step.number))
        return CollectiveAlgorithm(name, self._layout.collective, tuple(self._scratch), tuple(order))

    def _form(self, aggregate: Aggregate, site: int, parts: Sequence[Aggregate]) -> None:
        """Adds up copies at a site that make an aggregate."""
        slot = self._choose(aggregate, site)
        for position, part in enumerate(parts):
            read = self._where[part, site]
            word, operands = ("re", (read, slot)) if position else ("cpy", (read,))
            self._append(site, ("combine", site), word, operands, (slot,))
        self._where[aggregate, site] = slot

    def _choose(self, aggregate: Aggregate, site: int) -> ChunkSlot:
        """A new place for a copy: in the output, if it is the first that is needed there, or in the scratch."""
        slot = self._layout.outputs.get((aggregate, site))
        if slot is not None and (aggregate, site) not in self._where:
            return slot
        self._scratch[site] += 1
        return ChunkSlot(site, SCRATCH, self._scratch[site] - 1)

    def _append(
        self,
        rank: int,
        purpose: tuple[str, int],
        word: str,
        operands: tuple[ChunkSlot, ...],
        results: tuple[ChunkSlot, ...],
        *,
        sends: tuple[int, int, str] | None = None,
        receives: tuple[int, int, str] | None = None,
    ) -> None:
        known = self._blocks[rank]
        block = 0 if self._one_block else known.setdefault(purpose, len(known))
        waits = _list_waits([self._makers[slot] for slot in operands if slot in self._makers], block)
        number = self._lengths[rank, block]
        self._lengths[rank, block] = number + 1
        step = Step(rank, block, number, word, 1, operands, results, receives, sends, waits=waits)
        self._steps.append(step)
        for slot in results:
            self._makers[slot] = (block, number)


def _list_waits(makers: Sequence[tuple[int, int]], block: int) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({maker for maker in makers if maker[0] != block}))


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
