"""The overlay of what exists and what is required, as numbered cells: the atoms (paper, Section 5.3).

Blocks that earlier exchanges aggregated belong to what exists, beside the producer's output blocks, so that every
block that exists or is required is a disjoint union of atoms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from einc.core.tensor import TensorType
from einc.core.tiling import Overlay
from einc.physical.residency import Copy, Residency


class Grid:
    """The cells of an overlay, numbered in ascending order."""

    __slots__ = ("_blocks", "_positions", "counts", "cuts")

    def __init__(self, whole: TensorType, blocks: Iterable[TensorType]) -> None:
        self.cuts = Overlay(whole, set(blocks)).cuts
        self.counts = tuple(len(cuts) - 1 for cuts in self.cuts)
        self._positions = [{cut: i for i, cut in enumerate(cuts)} for cuts in self.cuts]
        self._blocks: dict[int, TensorType] = {}

    def __len__(self) -> int:
        return math.prod(self.counts)

    def cells(self, block: TensorType) -> list[int]:
        """The cells that make up `block`, in ascending order; its bounds must be among the cuts."""
        cells = [0]
        for count, positions, lo, up in zip(self.counts, self._positions, block.lower, block.upper, strict=True):
            inside = range(positions[lo], positions[up])
            cells = [cell * count + i for cell in cells for i in inside]
        return cells

    def block(self, cell: int) -> TensorType:
        """The block that a cell stands for."""
        known = self._blocks.get(cell)
        if known is None:
            lower, upper, rest = [], [], cell
            for count, cuts in zip(reversed(self.counts), reversed(self.cuts), strict=True):
                rest, i = divmod(rest, count)
                lower.append(cuts[i])
                upper.append(cuts[i + 1])
            known = self._blocks[cell] = TensorType(tuple(reversed(lower)), tuple(reversed(upper)))
        return known

    def volumes(self) -> list[int]:
        """The number of elements of every cell."""
        volumes = [1]
        for cuts in self.cuts:
            widths = [up - lo for lo, up in itertools.pairwise(cuts)]
            volumes = [volume * width for volume in volumes for width in widths]
        return volumes


class Inflow:
    """One tensor that an operator reads: what exists of it, what each function specification needs, and the atoms.

    `blocks[f]` are the distinct blocks of the tensor that function specification f reads, and `needs[f]` their cells;
    `owners[cell]` are the copies of the producer's block that the cell lies in; `whole[s]` are the cells that site s
    has already, fully aggregated.
    """

    __slots__ = ("blocks", "grid", "needs", "owners", "residency", "whole")

    def __init__(self, residency: Residency, blocks: Sequence[tuple[TensorType, ...]]) -> None:
        self.residency = residency
        self.blocks = tuple(blocks)
        existing = itertools.chain(residency.copies, (whole.block for whole in residency.wholes))
        self.grid = Grid(residency.desc.type, itertools.chain(existing, *self.blocks))
        self.needs = tuple(
            tuple(sorted({cell for block in own for cell in self.grid.cells(block)})) for own in self.blocks
        )
        self.owners: list[tuple[Copy, ...]] = [()] * len(self.grid)
        for block, copies in residency.copies.items():
            for cell in self.grid.cells(block):
                self.owners[cell] = copies
        self.whole: dict[int, set[int]] = {}
        for whole in residency.wholes:
            self.whole.setdefault(whole.site, set()).update(self.grid.cells(whole.block))
