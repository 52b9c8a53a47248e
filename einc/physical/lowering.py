"""From an exchange program to tasks: any valid ground program, relays and partial aggregates included.

Every (aggregate, site) that the program materializes gets a location. A complete aggregate that a consumer needs at
that site lands straight in the consumer's input block, anything else in a buffer of its own; partial copies and
earlier aggregates are read where they are. So the decompose and recompose kernels of the paper's Section 5.3 vanish
into the strides of the other tasks, except that what a site has already is copied into the consumer's block - and not
even that where one whole block contains all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from einc.core.tensor import TensorType
from einc.errors import InternalError, MachineError
from einc.exprog.checker import Firing, plain
from einc.exprog.program import Action, Aggregate
from einc.machines.model import Machine, Pair
from einc.physical.atoms import Inflow
from einc.physical.draft import Draft
from einc.physical.preamble import Atom
from einc.physical.program import Region, TaskKind
from einc.physical.residency import Whole

Located = tuple[Region, tuple[int, ...]]
"""Where something is, and the tasks after which it is there."""


@dataclass(slots=True)
class Slot:
    """A block that a consumer at a site reads: part of a whole block, or a new buffer with the tasks that fill it."""

    inflow: int
    site: int
    region: Region
    whole: Whole | None
    writers: set[int] = field(default_factory=set)


class Lowering:
    """One exchange: the inputs of one operator, or one saved output, for consumers at the sites of `placement`."""

    def __init__(self, draft: Draft, inflows: Sequence[Inflow], placement: Sequence[int]) -> None:
        self._draft = draft
        self._inflows = inflows
        self._slots: dict[tuple[int, int], list[Slot]] = {}
        self._landings: dict[tuple[int, int, int], Slot] = {}
        self._landed: dict[tuple[int, int, int], Located] = {}
        self._located: dict[tuple[Aggregate, int], Located] = {}
        self._relayed: list[tuple[int, Whole]] = []
        for i, inflow in enumerate(inflows):
            for site, blocks in zip(placement, inflow.blocks, strict=True):
                self._slots[i, site] = [self._slot(i, site, block) for block in _maximal(blocks)]

    def run(
        self,
        firings: Sequence[Firing],
        atoms: Mapping[str, Atom],
        machine: Machine,
        routes: Mapping[Pair, tuple[int, ...]],
    ) -> None:
        """Appends the transfers and aggregations of a program, whose actions fire in the order given.

        Raises MachineError where it sends something between sites that cannot talk.
        """
        ends: dict[Action, tuple[int, ...]] = {}
        for firing in firings:
            action = firing.action
            waits = tuple(task for awaited in action.after for task in ends[plain(awaited)])
            tasks: list[int] = []
            atom = atoms[action.aggregate[0]]
            held = self._find(atom, action.aggregate, action.source)
            if held is None:
                task = self._aggregate(firing, atoms, waits)
                held = self._located[action.aggregate, action.source]
                tasks.append(task)
            region, ready = held
            for site in action.destinations:
                if self._find(atom, action.aggregate, site) is not None:
                    continue  # it is there already: sending it again would only overwrite it with itself
                if (action.source, site) not in routes:
                    raise unreachable(self._draft.node, machine, action.source, site)
                target = self._location(atom, action.aggregate, site)
                task = self._draft.task(TaskKind.TRANSFER, action.source, (region,), (target,), (*ready, *waits))
                self._arrived(atom, action.aggregate, site, target, task)
                tasks.append(task)
            ends[plain(action)] = (*ends.get(plain(action), ()), *(tasks or ready))

    def finish(self) -> None:
        """Copies what sites have already into the blocks that need it, and records what is whole now."""
        for (i, site), slots in self._slots.items():
            for slot in slots:
                if slot.whole is None:
                    self._copy(slot)
            for slot in slots:
                if slot.whole is None:
                    self._inflows[i].residency.add(Whole(site, slot.region, tuple(sorted(slot.writers))))
        for i, whole in self._relayed:
            self._inflows[i].residency.add(whole)

    def operand(self, inflow: int, site: int, block: TensorType) -> Located:
        """Where a consumer at `site` reads `block`."""
        for slot in self._slots[inflow, site]:
            if slot.region.block.contains(block):
                if slot.whole is not None:
                    return Region(slot.region.buffer, block), self._ready(slot.whole)
                return Region(slot.region.buffer, block), tuple(sorted(slot.writers))
        raise InternalError(f"{self._draft.node}: block {block} was not brought to site {site}")

    def _slot(self, i: int, site: int, block: TensorType) -> Slot:
        inflow = self._inflows[i]
        residency = inflow.residency
        whole = residency.find(block, site)
        if whole is not None:
            return Slot(i, site, Region(whole.region.buffer, block), whole)
        slot = Slot(i, site, self._draft.buffer(site, residency.name, residency.desc, block), None)
        present = inflow.whole.get(site, set())
        for cell in inflow.grid.cells(block):
            if cell not in present:
                self._landings.setdefault((i, site, cell), slot)
        return slot

    def _ready(self, whole: Whole) -> tuple[int, ...]:
        """The tasks that a reader of an earlier whole block waits for: one fence, however many filled the block."""
        if len(whole.ready) > 1:
            whole.ready = (self._draft.task(TaskKind.FENCE, whole.site, after=whole.ready),)
        return whole.ready

    def _find(self, atom: Atom, aggregate: Aggregate, site: int) -> Located | None:
        """Where the site has this aggregate already, if it has."""
        known = self._located.get((aggregate, site))
        if known is not None:
            return known
        inflow = self._inflows[atom.inflow]
        if aggregate == atom.aggregate:
            if atom.cell in inflow.whole.get(site, ()):
                whole = inflow.residency.find(atom.block, site)
                assert whole is not None
                known = (Region(whole.region.buffer, atom.block), self._ready(whole))
        elif len(aggregate) == 1:
            copy = inflow.owners[atom.cell][atom.copies.index(aggregate[0])]
            if copy.site == site:
                known = (Region(copy.region.buffer, atom.block), (copy.task,))
        if known is not None:
            self._located[aggregate, site] = known
        return known

    def _location(self, atom: Atom, aggregate: Aggregate, site: int) -> Region:
        """Where an aggregate that the site does not have yet is to be put."""
        if aggregate == atom.aggregate:
            slot = self._landings.get((atom.inflow, site, atom.cell))
            if slot is not None:
                return Region(slot.region.buffer, atom.block)
        residency = self._inflows[atom.inflow].residency
        return self._draft.buffer(site, residency.name, residency.desc, atom.block)

    def _arrived(self, atom: Atom, aggregate: Aggregate, site: int, region: Region, task: int) -> None:
        self._located[aggregate, site] = (region, (task,))
        if aggregate == atom.aggregate:
            landing = (atom.inflow, site, atom.cell)
            if landing in self._landings:
                self._landed[landing] = (region, (task,))
                self._landings[landing].writers.add(task)
            else:
                self._relayed.append((atom.inflow, Whole(site, region, (task,))))

    def _aggregate(self, firing: Firing, atoms: Mapping[str, Atom], waits: tuple[int, ...]) -> int:
        """Combines the parts of a firing at its source."""
        action = firing.action
        atom = atoms[action.aggregate[0]]
        reads, after = [], list(waits)
        for part in firing.parts:
            if atoms[part[0]] is not atom:
                raise InternalError(f"{self._draft.node}: {'+'.join(action.aggregate)} combines different atoms")
            held = self._find(atom, part, action.source)
            if held is None:
                raise InternalError(f"{self._draft.node}: {'+'.join(part)} is not at site {action.source} yet")
            reads.append(held[0])
            after.extend(held[1])
        target = self._location(atom, action.aggregate, action.source)
        aggregation = self._inflows[atom.inflow].residency.aggregation
        task = self._draft.task(
            TaskKind.AGGREGATE, action.source, tuple(reads), (target,), after, aggregation=aggregation
        )
        self._arrived(atom, action.aggregate, action.source, target, task)
        return task

    def _check_landed(self, slot: Slot) -> None:
        for cell in self._inflows[slot.inflow].grid.cells(slot.region.block):
            landing = (slot.inflow, slot.site, cell)
            if landing in self._landings and landing not in self._landed:
                raise InternalError(f"{self._draft.node}: the exchange program leaves out a block for site {slot.site}")

    def _copy(self, slot: Slot) -> None:
        """One task for all pieces of a slot that did not land in it."""
        inflow = self._inflows[slot.inflow]
        grid, block = inflow.grid, slot.region.block
        self._check_landed(slot)
        left = {cell for cell in grid.cells(block) if self._landings.get((slot.inflow, slot.site, cell)) is not slot}
        if not left:
            return
        reads: list[Region] = []
        writes: list[Region] = []
        after: list[int] = []

        def piece(part: TensorType, buffer: int, ready: tuple[int, ...]) -> None:
            reads.append(Region(buffer, part))
            writes.append(Region(slot.region.buffer, part))
            after.extend(ready)

        for whole in inflow.residency.there.get(slot.site, ()):
            common = whole.block.intersect(block)
            cells = [] if common is None else grid.cells(common)
            found = left.intersection(cells)
            if common is None or not found:
                continue
            for part in [common] if len(found) == len(cells) else [grid.block(cell) for cell in sorted(found)]:
                piece(part, whole.region.buffer, self._ready(whole))
            left -= found
        for cell in sorted(left):  # they landed in another block that this consumer needs
            region, ready = self._landed[slot.inflow, slot.site, cell]
            piece(region.block, region.buffer, ready)
        slot.writers.add(self._draft.task(TaskKind.COPY, slot.site, tuple(reads), tuple(writes), after))


def unreachable(node: str, machine: Machine, source: int, destination: int) -> MachineError:
    """The error for data that would have to go where no path leads."""
    return MachineError(
        f"{node} needs data of site {source} at site {destination}, and no resource of {machine.name} connects the two",
        hint="add the pair to the machine file, or leave one of the sites out with --devices",
    )


def _maximal(blocks: Sequence[TensorType]) -> list[TensorType]:
    """The blocks that no other one contains."""
    return [
        block for i, block in enumerate(blocks)
        if not any(other.contains(block) and other != block for other in blocks) and block not in blocks[:i]
    ]  # fmt: skip
