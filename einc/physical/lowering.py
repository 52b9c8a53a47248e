"""From an exchange program to tasks: any valid ground program, relays and partial aggregates included.

Every (aggregate, site) that the program materializes gets a location. A complete aggregate that a consumer needs at
that site lands straight in the consumer's input block, anything else in a buffer of its own; partial copies and
earlier aggregates are read where they are. So the decompose and recompose kernels of the paper's Section 5.3 are not
needed: the other tasks read and write with strides. Only what a site has already is copied into the consumer's block,
and not even that if one whole block contains all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from einc.errors import InternalError
from einc.exchange.language.closure import Firing, strip_waits
from einc.exchange.language.program import Action, Aggregate
from einc.machines.model import Machine
from einc.physical.atoms import Inflow, Read
from einc.physical.preamble import Atom
from einc.physical.program import DeviceProgramBuilder
from einc.physical.residency import CompleteBlock, Residency
from einc.physical.schedule import make_route_error
from einc_runtime.plan.schema import Block, Region

Located = tuple[tuple[Region, ...], tuple[int, ...]]
"""Where the parts of an aggregate are, one per tensor that it carries, and the tasks after which they are there."""


@dataclass(slots=True)
class Slot:
    """A block that a consumer at a site reads: a part of a whole block, or a new buffer and the tasks that fill it.

    `direct` are the cells of the tensor's grid that land in it straight away, of which `awaited` elements are still to
    come.
    """

    read: Read
    site: int
    region: Region
    complete: CompleteBlock | None
    writers: set[int] = field(default_factory=set)
    direct: set[int] = field(default_factory=set)
    awaited: int = 0


Landing = tuple[int, int, int, int]
"""The part of a tensor (inflow, number among those carried) that a cell brings to a site, in one piece or several."""


@dataclass(slots=True)
class Arrival:
    """The pieces of a landing that are there: their buffer where all share one, and the task that brought each."""

    block: Block
    buffer: int | None
    pieces: list[tuple[Region, int]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return sum(region.block.size for region, _ in self.pieces) == self.block.size


class Lowering:
    """Lowers one exchange: the inputs of one operator, or one output, for consumers at the sites of `placement`."""

    def __init__(
        self, builder: DeviceProgramBuilder, reads: Sequence[Read], inflows: Sequence[Inflow], placement: Sequence[int]
    ) -> None:
        self._builder = builder
        self._inflows = inflows
        self._slots: dict[tuple[int, int], list[Slot]] = {}
        self._landings: dict[Landing, Slot] = {}
        self._located: dict[tuple[Aggregate, int], Located] = {}
        self._arrivals: dict[Landing, Arrival] = {}
        self._brought: dict[tuple[int, int], list[Arrival]] = {}
        self._gathered: set[tuple[int, int, int]] = set()
        for r, read in enumerate(reads):
            for f, (site, blocks) in enumerate(zip(placement, read.blocks, strict=True)):
                slots = self._slots[r, site] = [
                    self._slot(read, site, block) for block in _drop_contained_blocks(blocks)
                ]
                filled = [slot for slot in slots if slot.complete is None]
                if filled:
                    self._expect(read, f, site, filled)

    def run(self, firings: Sequence[Firing], atoms: Mapping[str, Atom], machine: Machine) -> None:
        """Appends the transfers and aggregations of a program, whose actions fire in the order given.

        Raises MachineError where it sends something between sites that cannot talk.
        """
        self._gathered = _find_gathered_cells(firings, atoms)
        ends: dict[Action, tuple[int, ...]] = {}
        for firing in firings:
            action = firing.action
            waits = tuple(task for awaited in action.after for task in ends[strip_waits(awaited)])
            tasks: list[int] = []
            atom = atoms[action.aggregate[0]]
            held = self._find(atom, action.aggregate, action.source)
            if held is None:
                tasks.append(self._aggregate(firing, atoms, waits))
                held = self._located[action.aggregate, action.source]
            regions, ready = held
            for site in action.destinations:
                if self._find(atom, action.aggregate, site) is not None:
                    continue  # it is there already, and sending it again would change nothing
                if (action.source, site) not in machine.routes:
                    raise make_route_error(self._builder.serves, machine, action.source, site)
                targets = self._location(atom, action.aggregate, site)
                sent = tuple(
                    self._builder.add_transfer(action.source, region, target, (*ready, *waits))
                    for region, target in zip(regions, targets, strict=True)
                )
                self._arrived(atom, action.aggregate, site, targets, sent)
                tasks.extend(sent)
            ends[strip_waits(action)] = (*ends.get(strip_waits(action), ()), *(tasks or ready))

    def finish(self) -> None:
        """Copies what sites have already into the blocks that need it, and records what is whole now."""
        for slots in self._slots.values():
            for slot in slots:
                if slot.complete is None:
                    self._copy(slot)
            for slot in slots:
                if slot.complete is None:
                    slot.read.residency.add(CompleteBlock(slot.site, slot.region, tuple(sorted(slot.writers))))
        for landing, arrival in self._arrivals.items():
            if landing not in self._landings and arrival.complete and arrival.buffer is not None:
                ready = tuple(sorted({task for _, task in arrival.pieces}))
                complete = CompleteBlock(landing[2], Region(arrival.buffer, arrival.block), ready)
                self._inflows[landing[0]].carried[landing[1]].add(complete)

    def operand(self, read: int, site: int, block: Block) -> tuple[Region, tuple[int, ...]]:
        """The region where a consumer at `site` reads `block` of a tensor, and the tasks that it waits for."""
        for slot in self._slots[read, site]:
            if slot.region.block.contains(block):
                if slot.complete is not None:
                    return Region(slot.region.buffer, block), self._ready(slot.complete)
                return Region(slot.region.buffer, block), tuple(sorted(slot.writers))
        raise InternalError(f"{self._builder.serves}: block {block} was not brought to site {site}")

    def _slot(self, read: Read, site: int, block: Block) -> Slot:
        residency = read.residency
        complete = residency.find(block, site)
        if complete is not None:
            return Slot(read, site, Region(complete.region.buffer, block), complete)
        return Slot(read, site, self._builder.add_buffer(site, residency.number, block), None)

    def _expect(self, read: Read, f: int, site: int, slots: Sequence[Slot]) -> None:
        """Decides which atoms land in the slots of function specification `f`; none of it is there already.

        Several tuples may bring one part of a member that lacks a dimension: the first of them lands.
        """
        for i, inflow in enumerate(self._inflows):
            if read.residency not in inflow.carried:
                continue
            c = inflow.carried.index(read.residency)
            present = inflow.settled.get(site, ())
            for cell in inflow.needs[f]:
                if cell in present:
                    continue
                part = inflow.parts(inflow.grid.block(cell))[c]
                cells = [cell] if inflow.grid is read.grid else read.grid.cells(part)
                first, last = read.grid.block(cells[0]), read.grid.block(cells[-1])
                slot = next(
                    (s for s in slots if s.region.block.contains(first) and s.region.block.contains(last)), None
                )
                if slot is not None and cells[0] not in slot.direct:
                    self._landings[i, c, site, cell] = slot
                    slot.direct.update(cells)
                    slot.awaited += part.size

    def _ready(self, complete: CompleteBlock) -> tuple[int, ...]:
        """The tasks that a reader of an earlier whole block waits for: one fence, however many filled the block."""
        return self._builder.join(complete.site, complete.region, complete.ready)

    def _find(self, atom: Atom, aggregate: Aggregate, site: int) -> Located | None:
        """Where the site already has this aggregate, or None."""
        known = self._located.get((aggregate, site))
        if known is not None:
            return known
        inflow = self._inflows[atom.inflow]
        if aggregate == atom.aggregate:
            if atom.cell in inflow.settled.get(site, ()):
                complete = inflow.carried[0].find(inflow.grid.block(atom.cell), site)
                assert complete is not None
                known = ((Region(complete.region.buffer, atom.block),), self._ready(complete))
        elif len(aggregate) == 1:
            number = atom.copies.index(aggregate[0])
            copy = inflow.owners[atom.cell][number]
            if copy.site == site:
                known = (inflow.copy(atom.cell, number, atom.block), (copy.task,))
        if known is not None:
            self._located[aggregate, site] = known
        return known

    def _location(self, atom: Atom, aggregate: Aggregate, site: int) -> tuple[Region, ...]:
        """The regions for the parts of an aggregate that the site does not have yet.

        What is complete lands in the consumer's block, or beside the other pieces of its cell if all of them come.
        """
        inflow = self._inflows[atom.inflow]
        parts = inflow.parts(atom.block)
        regions = []
        for c, (residency, part) in enumerate(zip(inflow.carried, parts, strict=True)):
            buffer = self._arrival(atom, c, site).buffer if aggregate == atom.aggregate else None
            if buffer is None:
                regions.append(self._builder.add_buffer(site, residency.number, part))
            else:
                regions.append(Region(buffer, part))
        return tuple(regions)

    def _arrival(self, atom: Atom, c: int, site: int) -> Arrival:
        """What a site receives of a cell, with the buffer that takes all of it if there is one."""
        landing = (atom.inflow, c, site, atom.cell)
        if landing not in self._arrivals:
            inflow = self._inflows[atom.inflow]
            part = inflow.parts(inflow.grid.block(atom.cell))[c]
            buffer = None
            if landing in self._landings:
                buffer = self._landings[landing].region.buffer
            elif (atom.inflow, atom.cell, site) in self._gathered:
                residency = inflow.carried[c]
                buffer = self._builder.add_buffer(site, residency.number, part).buffer
            self._arrivals[landing] = Arrival(part, buffer)
            self._brought.setdefault((inflow.carried[c].number, site), []).append(self._arrivals[landing])
        return self._arrivals[landing]

    def _arrived(
        self, atom: Atom, aggregate: Aggregate, site: int, regions: tuple[Region, ...], tasks: Sequence[int]
    ) -> None:
        """Records where an aggregate is now, and which task brought each of its parts."""
        self._located[aggregate, site] = (regions, tuple(dict.fromkeys(tasks)))
        if aggregate != atom.aggregate:
            return
        for c, (region, task) in enumerate(zip(regions, tasks, strict=True)):
            self._arrival(atom, c, site).pieces.append((region, task))
            slot = self._landings.get((atom.inflow, c, site, atom.cell))
            if slot is not None:
                slot.writers.add(task)
                slot.awaited -= region.block.size

    def _aggregate(self, firing: Firing, atoms: Mapping[str, Atom], waits: tuple[int, ...]) -> int:
        """Adds the task that combines the parts of a firing at its source."""
        action = firing.action
        atom = atoms[action.aggregate[0]]
        reads: list[Region] = []
        after = list(waits)
        for part in firing.parts:
            if atoms[part[0]] is not atom:
                raise InternalError(f"{self._builder.serves}: {'+'.join(action.aggregate)} combines different atoms")
            held = self._find(atom, part, action.source)
            if held is None:
                raise InternalError(f"{self._builder.serves}: {'+'.join(part)} is not at site {action.source} yet")
            reads.extend(held[0])
            after.extend(held[1])
        targets = self._location(atom, action.aggregate, action.source)
        aggregation = self._inflows[atom.inflow].carried[0].group.aggregation
        task = self._builder.add_aggregation(action.source, aggregation, tuple(reads), targets, after)
        self._arrived(atom, action.aggregate, action.source, targets, (task,) * len(targets))
        return task

    def _copy(self, slot: Slot) -> None:
        """Adds one task that copies all pieces of a slot that did not land in it."""
        if slot.awaited:
            raise InternalError(f"{self._builder.serves}: the exchange program leaves out a block for site {slot.site}")
        residency, grid, block = slot.read.residency, slot.read.grid, slot.region.block
        left = set(grid.cells(block)) - slot.direct
        if not left:
            return
        reads: list[Region] = []
        writes: list[Region] = []
        after: list[int] = []
        for held, regions, ready in self._present(residency, slot.site):
            common = held.intersect(block) if left else None
            cells = [] if common is None else grid.cells(common)
            covered = left.intersection(cells)
            if common is None or not covered:
                continue
            after.extend(ready())
            for part in [common] if len(covered) == len(cells) else [grid.block(cell) for cell in sorted(covered)]:
                for region in regions:
                    shared = region.block.intersect(part)
                    if shared is not None:
                        reads.append(Region(region.buffer, shared))
                        writes.append(Region(slot.region.buffer, shared))
            left -= covered
        if left:
            raise InternalError(f"{self._builder.serves}: the exchange program leaves out a block for site {slot.site}")
        slot.writers.add(self._builder.add_copy(slot.site, tuple(reads), tuple(writes), after))

    def _present(
        self, residency: Residency, site: int
    ) -> Iterator[tuple[Block, Sequence[Region], Callable[[], Iterable[int]]]]:
        """The whole blocks at a site, earlier ones first, with their regions and the tasks that readers wait for."""
        for complete in residency.complete_at.get(site, ()):
            yield complete.block, (complete.region,), partial(self._ready, complete)
        for arrival in self._brought.get((residency.number, site), ()):
            if arrival.complete:
                tasks = [task for _, task in arrival.pieces]
                yield arrival.block, [region for region, _ in arrival.pieces], partial(iter, tasks)


def _find_gathered_cells(firings: Sequence[Firing], atoms: Mapping[str, Atom]) -> set[tuple[int, int, int]]:
    """The cells (of an inflow) of which a program brings all pieces, aggregated, to a site."""
    brought: dict[tuple[int, int, int], set[Aggregate]] = {}
    pieces: dict[tuple[int, int], set[Aggregate]] = {}
    for atom in atoms.values():
        pieces.setdefault((atom.inflow, atom.cell), set()).add(atom.aggregate)
    for firing in firings:
        action = firing.action
        atom = atoms[action.aggregate[0]]
        if action.aggregate == atom.aggregate:
            for site in (action.source, *action.destinations):
                brought.setdefault((atom.inflow, atom.cell, site), set()).add(action.aggregate)
    return {key for key, aggregates in brought.items() if len(aggregates) == len(pieces[key[:2]])}


def _drop_contained_blocks(blocks: Sequence[Block]) -> Sequence[Block]:
    return blocks if len(blocks) == 1 else [
        block for i, block in enumerate(blocks)
        if not any(larger.contains(block) and larger != block for larger in blocks) and block not in blocks[:i]
    ]  # fmt: skip
