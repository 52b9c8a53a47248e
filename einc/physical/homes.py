"""Where inputs and weights lie when the clock starts, if every element lies on one site alone: its *home*.

A tensor lies in the blocks that the first operator that reads it wants, cut where they overlap. What only later
operators read joins them when it is wanted. A block that one site wants is at home there. A block that several sites
want is cut into a piece for each of them, so that all of them send at the same time, and none holds more than its part.

States that are read before they are written over, such as the weights of a training step, have homes in every plan: the
sites of what writes over them, where they stay from run to run.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from einc.core.spec import Overlay
from einc.physical.pieces import cut_block
from einc_runtime.plan.boxes import are_disjoint
from einc_runtime.plan.schema import ITEMSIZE, Block, Operation, Tensor
from einc_runtime.plan.states import find_updates

MIN_PIECE = 1 << 16
"""Bytes of a piece at least: smaller ones would take no less time, because of latencies."""

MAX_HOME_PIECES = 16
"""Pieces of a block at most: each is sent to all other readers of the block, so transfers grow with their number."""

Home = tuple[int, Block, int]
"""A tensor (a position), one of its blocks, and the site where the block lies."""


class Homes:
    """The homes of all blocks so far. `blocks[t]` has those of tensor t, which is a position among `tensors`."""

    def __init__(self, tensors: Sequence[Tensor], sites: int) -> None:
        self._tensors = tensors
        self._bytes = [0] * sites
        self._settled: set[tuple[int, Block]] = set()
        self.blocks: dict[int, list[Block]] = {}

    def fork(self) -> Homes:
        """The same homes; neither changes the other."""
        forked = copy.copy(self)
        forked._bytes, forked._settled = self._bytes.copy(), self._settled.copy()
        forked.blocks = {tensor: blocks.copy() for tensor, blocks in self.blocks.items()}
        return forked

    def settle(self, reads: Mapping[int, Sequence[tuple[Block, ...]]], placement: Sequence[int]) -> list[Home]:
        """Gives a home to everything that function specifications at the sites of `placement` read for the first time.

        `reads` has, for every tensor, the distinct blocks that each of them reads. Returns the new homes.
        """
        new: list[Home] = []
        for tensor, blocks in reads.items():
            first = {
                block for function_blocks in blocks for block in function_blocks if (tensor, block) not in self._settled
            }
            if not first:
                continue
            self._settled.update((tensor, block) for block in first)
            record, held = self._tensors[tensor], self.blocks.setdefault(tensor, [])
            for block, functions in find_new_blocks(record.shape, held, blocks).items():
                sites = [placement[f] for f in functions]
                for piece, site in self._cut(block, sites, ITEMSIZE[record.dtype]):
                    held.append(piece)
                    new.append((tensor, piece, site))
        return new

    def _cut(self, block: Block, readers: Sequence[int], itemsize: int) -> Iterator[tuple[Block, int]]:
        """The pieces of a block, with their homes: the readers that hold least, if not every one gets a piece."""
        pieces = cut_home(block, len(readers), itemsize)
        emptiest = sorted(range(len(readers)), key=lambda r: self._bytes[readers[r]] // MIN_PIECE)[: len(pieces)]
        for piece, r in zip(pieces, sorted(emptiest), strict=True):
            self._bytes[readers[r]] += piece.size * itemsize
            yield piece, readers[r]


class StateHomes:
    """The homes of states that several operations read, and the sites of the operations that write over states.

    Function specification f is at site f. So all states whose updates are cut alike lie at the same sites.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        updates = find_updates(operations)
        reads = Counter(tensor for operation in operations for tensor in set(operation.inputs))
        updaters = {operation.inputs[0]: operation for operation in operations if operation.outputs[0] in updates}
        self._updaters = {tensor: updater for tensor, updater in updaters.items() if reads[tensor] > 1}

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        """What decides where these states are, by the identity of operations: equal for plans that have them alike."""
        return tuple(sorted((tensor, id(updater)) for tensor, updater in self._updaters.items()))

    def list_homes(self, tensor: int) -> list[Home]:
        """The blocks of a state with their sites; none where nothing but what writes over it reads it."""
        functions = self._updaters[tensor].functions if tensor in self._updaters else ()
        return [(tensor, function.inputs[0], site) for site, function in enumerate(functions)]

    def find_sites(self, updater: Operation) -> tuple[int, ...] | None:
        """The sites of an operation that writes over a state, in plans with such states; else None."""
        return tuple(range(len(updater.functions))) if self._updaters else None


def cut_home(block: Block, readers: int, itemsize: int) -> list[Block]:
    """The pieces that a block that so many sites read is cut into."""
    count = min(readers, MAX_HOME_PIECES, max(1, block.size * itemsize // MIN_PIECE))
    return cut_block(block, count, range(block.rank))


def find_new_blocks(
    shape: Sequence[int], held: Collection[Block], reads: Sequence[tuple[Block, ...]]
) -> dict[Block, list[int]]:
    """The parts of a tensor that are wanted and lie in no block of `held`, with the readers of each, ascending.

    `reads[f]` are the blocks that reader f wants. The blocks of `held` are disjoint, and so are the parts: whole blocks
    where these overlap with nothing, else cells of the overlay.
    """
    functions_of_block: dict[Block, list[int]] = {}
    for f, function_blocks in enumerate(reads):
        for block in function_blocks:
            functions_of_block.setdefault(block, []).append(f)
    known = set(held)
    new = [
        block
        for block in functions_of_block
        if block not in known and not any(held_block.contains(block) for held_block in held)
    ]
    if not any(block.overlaps(held_block) for block in new for held_block in held) and are_disjoint(new):
        return {block: functions_of_block[block] for block in new}
    overlay = Overlay(Block.whole(shape), held, new)
    covered = {cell for block in held for cell in overlay.cells(block)}
    readers: dict[Block, set[int]] = {}
    for block in new:
        for cell in overlay.cells(block):
            if cell not in covered:
                readers.setdefault(cell, set()).update(functions_of_block[block])
    return {cell: sorted(functions) for cell, functions in sorted(readers.items())}
