"""What an operator reads, which parts of it exist where, and the atoms that an exchange may move (Section 5.3).

The overlay of what exists and what is required is a grid whose cells are the atoms. Blocks that earlier exchanges
aggregated belong to what exists, beside the producer's output blocks, so that every block that exists or is required
is a disjoint union of atoms.

Tensors that aggregate together share one grid, in the dimensions of the primary. What of them is whole somewhere
moves tensor by tensor, as needed; what is still in partial copies moves as tuples: an atom carries its part of every
member until it is aggregated where it was needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

from einc.core.spec import Overlay
from einc.physical.residency import CompleteBlock, PartialCopy, Residency
from einc_runtime.plan.schema import ITEMSIZE, Block, Region

Cuts = tuple[tuple[int, ...], ...]
"""Per dimension, all bounds in ascending order."""


class Grid:
    """The cells between cuts, numbered in ascending order."""

    __slots__ = ("_blocks", "_cells", "_positions", "counts", "cuts")

    def __init__(self, cuts: Cuts) -> None:
        self.cuts = cuts
        self.counts = tuple(len(axis_cuts) - 1 for axis_cuts in cuts)
        self._positions = [{cut: i for i, cut in enumerate(axis_cuts)} for axis_cuts in cuts]
        self._blocks: dict[int, Block] = {}
        self._cells: dict[Block, list[int]] = {}

    def __len__(self) -> int:
        return math.prod(self.counts)

    def cells(self, block: Block) -> list[int]:
        """The cells that make up `block`, in ascending order; its bounds must be among the cuts."""
        known = self._cells.get(block)
        if known is None:
            known = [0]
            for count, positions, lo, up in zip(self.counts, self._positions, block.lower, block.upper, strict=True):
                inside = range(positions[lo], positions[up])
                known = [cell * count + i for cell in known for i in inside]
            self._cells[block] = known
        return known

    def block(self, cell: int) -> Block:
        known = self._blocks.get(cell)
        if known is None:
            lower, upper, remaining = [], [], cell
            for count, cuts in zip(reversed(self.counts), reversed(self.cuts), strict=True):
                remaining, i = divmod(remaining, count)
                lower.append(cuts[i])
                upper.append(cuts[i + 1])
            known = self._blocks[cell] = Block(tuple(reversed(lower)), tuple(reversed(upper)))
        return known

    def volumes(self, dims: Sequence[int] | None = None) -> list[int]:
        """The number of elements of every cell, or of its projection to `dims`."""
        volumes = [1]
        for d, cuts in enumerate(self.cuts):
            counted = dims is None or d in dims
            widths = [up - lo if counted else 1 for lo, up in itertools.pairwise(cuts)]
            volumes = [volume * width for volume in volumes for width in widths]
        return volumes


class Read:
    """One tensor that an operator reads.

    `blocks[f]` are the distinct blocks of it that function specification f reads; `whole[s]` are the cells of its
    grid that site s has already, fully aggregated.
    """

    __slots__ = ("blocks", "grid", "residency", "settled")

    def __init__(self, residency: Residency, blocks: Sequence[tuple[Block, ...]], grid: Grid) -> None:
        self.residency = residency
        self.blocks = tuple(blocks)
        self.grid = grid
        self.settled: dict[int, set[int]] = {}
        for complete in residency.wholes:
            self.settled.setdefault(complete.site, set()).update(grid.cells(complete.block))

    def needs(self) -> list[set[int]]:
        """The cells that every function specification reads."""
        return [
            {cell for block in function_blocks for cell in self.grid.cells(block)} for function_blocks in self.blocks
        ]


class Inflow:
    """Atoms that may have to move: the cells of a grid, each with a part of every tensor in `carried`.

    `dims` says for every tensor carried which dimension of the grid each of its dimensions is. `needs[f]` are the cells
    that function specification f reads, ascending. `copies` are the producer's blocks of the first tensor with the
    copies of each, and `owners[cell]` those of the block that the cell lies in; a cell without any is known by a single
    name and is whole somewhere. `wholes` are the blocks that sites have already, and `whole[s]` the cells.
    """

    __slots__ = ("_sizes", "carried", "copies", "dims", "grid", "needs", "owners", "settled", "wholes")

    def __init__(
        self,
        carried: Sequence[Residency],
        dims: Sequence[tuple[int, ...]],
        grid: Grid,
        needs: Iterable[Iterable[int]],
        copies: Mapping[Block, tuple[PartialCopy, ...]],
        wholes: Iterable[CompleteBlock] = (),
        settled: Mapping[int, set[int]] | None = None,
    ) -> None:
        self.carried = tuple(carried)
        self.dims = tuple(dims)
        self.grid = grid
        self.needs = tuple(tuple(sorted(cells)) for cells in needs)
        self.copies = copies
        self.wholes = tuple(wholes)
        self.settled: Mapping[int, set[int]] = settled or {}
        self._sizes: list[int] | None = None
        self.owners: list[tuple[PartialCopy, ...]] = [()] * len(grid)
        for block, block_copies in copies.items():
            for cell in grid.cells(block):
                self.owners[cell] = block_copies

    @property
    def name(self) -> str:
        """That of the first tensor."""
        return self.carried[0].name

    def describe(self) -> Hashable:
        """All that an exchange depends on, beside the name: equal for layers that repeat."""
        return (
            self.grid.cuts,
            tuple(residency.tensor.dtype for residency in self.carried),
            self.dims,
            self.carried[0].group.uncut,
            self.needs,
            tuple(
                [
                    (block, tuple([(copy.function, copy.site) for copy in block_copies]))
                    for block, block_copies in self.copies.items()
                ]
            ),
            tuple([(complete.site, complete.block) for complete in self.wholes]),
        )

    def sizes(self) -> list[int]:
        """Bytes of every cell, over all that is carried."""
        if self._sizes is None:
            sizes = [0] * len(self.grid)
            for residency, dims in zip(self.carried, self.dims, strict=True):
                itemsize = ITEMSIZE[residency.tensor.dtype]
                volumes = self.grid.volumes(dims)
                sizes = [total + volume * itemsize for total, volume in zip(sizes, volumes, strict=True)]
            self._sizes = sizes
        return self._sizes

    def parts(self, block: Block) -> list[Block]:
        """The part of every carried tensor that belongs to an atom, or to a piece of one."""
        return [block] if len(self.dims) == 1 else [block.projected(dims) for dims in self.dims]

    def bytes_of(self, block: Block) -> int:
        """The size of an atom, or of a piece of one, over all that is carried."""
        parts = zip(self.carried, self.parts(block), strict=True)
        return sum(part.size * ITEMSIZE[residency.tensor.dtype] for residency, part in parts)

    def copy(self, cell: int, number: int, block: Block) -> tuple[Region, ...]:
        """The regions of the parts of a cell's copy, or of the piece `block` of it."""
        first = self.owners[cell][number].region
        if len(self.carried) == 1:
            return (Region(first.buffer, block),)
        regions = []
        for residency, dims, part in zip(self.carried, self.dims, self.parts(block), strict=True):
            partial = residency.copies[first.block.projected(dims)][number]
            regions.append(Region(partial.region.buffer, part))
        return tuple(regions)


def find_inflows(
    reads: Mapping[int, Sequence[tuple[Block, ...]]], residencies: Mapping[int, Residency]
) -> tuple[list[Read], list[Inflow]]:
    """The tensors (by position) that an operator reads, with blocks per function specification, and their atoms."""
    finished: dict[int, Read] = {}
    inflows: list[Inflow] = []
    for number, blocks in reads.items():
        if number in finished:
            continue
        residency = residencies[number]
        if len(residency.group.tensors) == 1:
            existing = itertools.chain(residency.copies, (complete.block for complete in residency.wholes))
            grid = Grid(Overlay(Block.whole(residency.tensor.shape), set(itertools.chain(existing, *blocks))).cuts)
            finished[number] = Read(residency, blocks, grid)
            inflows.append(_build_single_inflow(finished[number], residency.copies, finished[number].needs()))
        else:
            member_reads = {member: reads[member] for member in residency.group.tensors if member in reads}
            joint_reads, flows = _build_joint_inflows(
                member_reads, [residencies[member] for member in residency.group.tensors]
            )
            finished.update(joint_reads)
            inflows += flows
    return [finished[number] for number in reads], inflows


def _build_single_inflow(
    read: Read, copies: Mapping[Block, tuple[PartialCopy, ...]], needs: Sequence[Iterable[int]]
) -> Inflow:
    residency = read.residency
    dims = (tuple(range(len(residency.tensor.shape))),)
    return Inflow((residency,), dims, read.grid, needs, copies, residency.wholes, read.settled)


def _build_joint_inflows(
    reads: Mapping[int, Sequence[tuple[Block, ...]]], members: Sequence[Residency]
) -> tuple[dict[int, Read], list[Inflow]]:
    """Members of one joint aggregation that are read.

    There is an inflow for each that is whole somewhere, and one of tuples for the rest.
    """
    primary, group = members[0], members[0].group
    extent = Block.whole(primary.tensor.shape)
    blocks = set(primary.copies)
    for residency, dims in zip(members, group.dims, strict=True):
        required = itertools.chain(*reads.get(residency.number, ()))
        for block in itertools.chain(required, (complete.block for complete in residency.wholes)):
            blocks.add(_lift_block(block, dims, extent))
    cuts = Overlay(extent, blocks).cuts
    tuples = Grid(
        tuple((axis_cuts[0], axis_cuts[-1]) if d in group.uncut else axis_cuts for d, axis_cuts in enumerate(cuts))
    )
    finished: dict[int, Read] = {}
    inflows: list[Inflow] = []
    open_needs: list[set[int]] = [set() for _ in next(iter(reads.values()))]
    for residency, dims in zip(members, group.dims, strict=True):
        if residency.number not in reads:
            continue
        grid = Grid(tuple(cuts[d] for d in dims))
        read = finished[residency.number] = Read(residency, reads[residency.number], grid)
        settled = set().union(*read.settled.values())
        needs = read.needs()
        if any(cells & settled for cells in needs):
            inflows.append(_build_single_inflow(read, {}, [cells & settled for cells in needs]))
        for cells, needed in zip(needs, open_needs, strict=True):
            needed_tuples = {tuples.block(cell).projected(dims) for cell in needed}
            for cell in sorted(cells - settled):
                if not any(part.contains(grid.block(cell)) for part in needed_tuples):
                    needed.add(_find_first_cell(tuples, grid.block(cell), dims))
    if any(open_needs):
        inflows.append(Inflow(members, group.dims, tuples, open_needs, primary.copies))
    return finished, inflows


def _find_first_cell(grid: Grid, block: Block, dims: Sequence[int]) -> int:
    """The first cell whose projection to `dims` contains `block`."""
    cell = 0
    for d, (count, cuts) in enumerate(zip(grid.counts, grid.cuts, strict=True)):
        at = 0
        if d in dims:
            lower = block.lower[dims.index(d)]
            at = next(i for i in range(count) if lower < cuts[i + 1])
        cell = cell * count + at
    return cell


def _lift_block(block: Block, dims: Sequence[int], full: Block) -> Block:
    """The block of the primary that projects to `block`, whole in the dimensions that `dims` lacks."""
    lower, upper = list(full.lower), list(full.upper)
    for d, lo, up in zip(dims, block.lower, block.upper, strict=True):
        lower[d], upper[d] = lo, up
    return Block(tuple(lower), tuple(upper))
