"""The buffers of a plan while it is executed symbolically: what each element holds, and which tasks touched it last.

The content of an element is a set of functions, as a bit mask: those of its producer whose partial outputs the element
combines. A buffer keeps its contents as pieces. A piece is a block of one content, with the task that wrote it and the
tasks that have read it since. A buffer has its bytes until another buffer that shares some of them is written; this
time is a live range, and its contents end with it.

Every access must come after all earlier accesses that it conflicts with. It is enough to compare it with the last of
them: every earlier one was found to come before the last one when that was checked. So no two tasks race, and every run
of the plan does what the symbolic execution does in the order of positions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Set

from einc_runtime.errors import PlanFault
from einc_runtime.plan import boxes
from einc_runtime.plan.reachability import TaskAncestors
from einc_runtime.plan.regions import ByteOwners, is_loaded
from einc_runtime.plan.schema import ITEMSIZE, LOADED_ROLES, Block, Bundle, Region
from einc_runtime.plan.states import STATE

LOADED = 1
"""The content of input and weight buffers, which are complete by definition, and of a state before it is updated.

A state's buffer has its bytes from the beginning, until what updates it is written to the same bytes
(`states.validate_states`): that has to come after all that reads it, as for any other buffer."""

LAST_RUN = -1
"""The writer of what a state has at the beginning: the run before."""

MAX_SCANNED_PIECES = 4
"""So many pieces of a buffer are looked at faster than they are sorted."""

Content = list[tuple[Block, int]]
"""Disjoint blocks, each with its mask."""


class Piece:
    """A block of one content, the task that wrote it, and its readers since, each with the part that it reads."""

    __slots__ = ("block", "mask", "number", "readers", "writer")

    def __init__(self, block: Block, mask: int, writer: int) -> None:
        self.block = block
        self.mask = mask
        self.writer = writer
        self.readers: list[tuple[int, Block]] = []
        self.number = 0  # counts the pieces of its live range

    def accesses(self, part: Block) -> list[int]:
        """The tasks that touched a part of it."""
        return [self.writer, *[task for task, read in self.readers if part == self.block or read.overlaps(part)]]

    def without(self, part: Block) -> list[Piece]:
        """The pieces that are left around a part that is overwritten."""
        pieces = []
        for remaining in boxes.subtract(self.block, part):
            piece = Piece(remaining, self.mask, self.writer)
            for task, read in self.readers:
                common = read.intersect(remaining)
                if common is not None:
                    piece.readers.append((task, common))
            pieces.append(piece)
        return pieces


class LiveRange:
    """The time during which a buffer has its bytes, and the pieces that it holds.

    Tasks that write to it must come after all tasks in `before`, the last users of these bytes. `gates` are tasks that
    come after all of `before`, so that it is enough to wait for one of them. `overwritten_by` is the buffer that has
    taken the bytes.

    Most buffers hold one piece, or a few. If many tasks fill a buffer, they mostly cut it along one dimension: its
    pieces are then sorted along that dimension, so that those that overlap with a block are found among few neighbours.
    It is the dimension of which `first`, the first block that is written, spans the smallest part of the buffer's
    `block`.
    """

    __slots__ = ("_count", "_pieces", "_sorted", "accesses", "before", "block", "first", "gates", "overwritten_by")

    def __init__(self, block: Block, first: Block) -> None:
        self.block = block
        self.first = first
        self.before: Set[int] = frozenset()
        self.gates: Set[int] = frozenset()
        self.overwritten_by: int | None = None
        self.accesses: Set[int] = frozenset()
        self._pieces: list[Piece] = []  # while they are few, in the order in which they were added
        self._sorted: _SortedPieces | None = None  # when there have been more
        self._count = 0  # of all pieces so far

    def end(self, overwritten_by: int) -> None:
        """Keeps only the last `accesses`. All others, and those of earlier live ranges, come before these."""
        if self.overwritten_by is None:
            pieces = self._pieces if self._sorted is None else self._sorted.equal.values()
            self.accesses = accesses = {piece.writer for piece in pieces}
            for piece in pieces:
                accesses.update([task for task, _ in piece.readers])
            accesses.discard(LAST_RUN)
            self._pieces, self._sorted = [], None
        self.overwritten_by = overwritten_by

    def put(self, piece: Piece) -> None:
        """Adds a piece that overlaps with no other."""
        self._count += 1
        piece.number = self._count
        if self._sorted is not None:
            self._sorted.put(piece)
            return
        self._pieces.append(piece)
        if len(self._pieces) > MAX_SCANNED_PIECES:
            self._sorted = _SortedPieces(self.block, self.first)
            for earlier in self._pieces:
                self._sorted.put(earlier)

    @property
    def insertion_steps(self) -> int:
        """The cost of inserting a piece, in steps of looking at one."""
        return 1 if self._sorted is None else 1 + len(self._sorted.equal) // 256

    def drop(self, piece: Piece) -> None:
        if self._sorted is None:
            self._pieces.remove(piece)
        else:
            self._sorted.drop(piece)

    def near(self, block: Block) -> list[Piece]:
        """The pieces that may overlap with a block, in the order in which they were added. The list stays as it is."""
        return self._pieces if self._sorted is None else self._sorted.near(block)


class _SortedPieces:
    """The pieces of a live range along one dimension."""

    def __init__(self, whole: Block, first: Block) -> None:
        bounds = zip(first.lower, first.upper, whole.lower, whole.upper, strict=True)
        shares = [(up - lo) / (end - start) for lo, up, start, end in bounds]
        self._along = shares.index(min(shares))
        self.equal: dict[Block, Piece] = {}
        self._order: list[tuple[int, int, Piece]] = []  # each with its start and number
        self._longest = 0  # the largest extent of any piece so far

    def put(self, piece: Piece) -> None:
        start, end = piece.block.lower[self._along], piece.block.upper[self._along]
        self._longest = max(self._longest, end - start)
        self.equal[piece.block] = piece
        insort(self._order, (start, piece.number, piece))

    def drop(self, piece: Piece) -> None:
        del self.equal[piece.block]
        del self._order[bisect_left(self._order, (piece.block.lower[self._along], piece.number))]

    def near(self, block: Block) -> list[Piece]:
        """As `LiveRange.near`; a piece that is equal alone."""
        equal = self.equal.get(block)
        if equal is not None:
            return [equal]
        first = bisect_left(self._order, (block.lower[self._along] - self._longest + 1,))
        last = bisect_left(self._order, (block.upper[self._along],))
        return sorted((piece for _, _, piece in self._order[first:last]), key=lambda piece: piece.number)


class SymbolicMemory:
    """The contents of all buffers of a valid plan. At first, only input, weight and state buffers have contents."""

    def __init__(self, bundle: Bundle, ancestors: TaskAncestors, budget: boxes.StepBudget) -> None:
        self._bundle = bundle
        self._ancestors = ancestors
        self._owners: list[ByteOwners[LiveRange]] = [ByteOwners() for _ in bundle.memory]
        self._widths = [ITEMSIZE[tensor.dtype] for tensor in bundle.tensors]
        self._live: dict[int, LiveRange] = {}
        self._budget = budget

    def read(self, region: Region, where: str, task: int | None = None) -> Content:
        """The content of a region, in pieces.

        `task` reads it while others run; None means that it is read after the last task. Raises PlanFault where a
        part was never written, has been overwritten, or may not have been written yet when `task` starts.
        """
        block = region.block
        buffer = self._bundle.buffers[region.buffer]
        if buffer.role in LOADED_ROLES:
            return [(block, LOADED)]
        live = self._live.get(region.buffer)
        if live is None and buffer.role == STATE and is_loaded(self._bundle, region.buffer):
            live = self._live[region.buffer] = self._begin(Region(region.buffer, buffer.block))
            live.put(Piece(buffer.block, LOADED, LAST_RUN))
        if live is None:
            raise PlanFault(f"buffer {region.buffer} is read before it is written", where=where)
        if live.overwritten_by is not None:
            message = f"buffer {region.buffer} is read after buffer {live.overwritten_by} has taken its bytes"
            raise PlanFault(message, where=where)
        content = []
        for piece, common in self._overlapping(live, block, where):
            if task is not None:
                if piece.writer != LAST_RUN and not self._ancestors.ended(piece.writer):
                    accessed = f"reads buffer {region.buffer} {common}, which tasks[{piece.writer}] writes"
                    raise PlanFault(f"it {accessed}, without waiting for it", where=where)
                piece.readers.append((task, common))
            content.append((common, piece.mask))
        if len(content) == 1 and content[0][0] == block:
            return content
        elements = sum([common.size for common, _ in content])
        if elements != block.size:
            message = f"{elements} of the {block.size} elements of {block} are written"
            raise PlanFault(f"only {message} in buffer {region.buffer}", where=where)
        return content

    def write(self, region: Region, content: Content, where: str, task: int, in_place: bool = False) -> None:
        """Puts `content`, which covers the region, into it; `in_place` lets the task have read that same region.

        Raises PlanFault where another task may touch these bytes at the same time.
        """
        live = self._live.get(region.buffer)
        steps = len(content)
        if live is None or live.overwritten_by is not None:
            live = self._live[region.buffer] = self._begin(region)
            overwritten = False
        else:
            overlapping = self._overlapping(live, region.block, where)
            overwritten = bool(overlapping)
            for piece, common in overlapping:
                steps += 1 + len(piece.readers)
                self._exclude(piece.accesses(common), region, where, task, in_place)
                live.drop(piece)
                for left_piece in piece.without(common):
                    live.put(left_piece)
        if not overwritten and live.before:  # where a part is overwritten, its writer came after these
            self._follow(live, region, where, task, in_place)
        self._budget.spend(steps * live.insertion_steps, where)
        for block, mask in content:
            live.put(Piece(block, mask, task))

    def _begin(self, region: Region) -> LiveRange:
        """A new live range of a buffer. It ends those whose bytes it takes, and comes after their last accesses."""
        buffer = self._bundle.buffers[region.buffer]
        live = LiveRange(buffer.block, region.block)
        start = buffer.offset
        end = start + buffer.block.size * self._widths[buffer.tensor]
        for displaced in self._owners[buffer.site].claim(start, end, live):
            displaced.end(region.buffer)
            live.before = live.before | displaced.accesses if live.before else displaced.accesses
        return live

    def _follow(self, live: LiveRange, region: Region, where: str, task: int, in_place: bool) -> None:
        """Raises PlanFault unless all of `live.before` have ended when `task` starts to write the region."""
        if region.block == live.block:  # nothing is left that a later task writes first: no gates are needed
            self._budget.spend(len(live.before), where)
            self._exclude(live.before, region, where, task, in_place)
            return
        fences = self._ancestors.find_fences()
        self._budget.spend(len(fences), where)
        if not live.gates.isdisjoint(fences):
            return
        self._budget.spend((1 + len(fences)) * (len(live.before) + task // 8192), where)
        self._exclude(live.before, region, where, task)
        live.gates = {fence for fence in fences if self._ancestors.comes_after(fence, live.before)}

    def _overlapping(self, live: LiveRange, block: Block, where: str) -> list[tuple[Piece, Block]]:
        """The pieces that overlap with `block`, each with the common part."""
        near = live.near(block)
        self._budget.spend(len(near), where)
        if len(near) == 1 and near[0].block == block:
            return [(near[0], block)]
        overlapping = []
        for piece in near:
            common = block if piece.block == block else piece.block.intersect(block)
            if common is not None:
                overlapping.append((piece, common))
        return overlapping

    def _exclude(self, users: Iterable[int], region: Region, where: str, task: int, in_place: bool = False) -> None:
        """Raises PlanFault unless all of `others` have ended when `task` starts to write the region."""
        for user in self._ancestors.unfinished(users):  # mostly none
            if in_place and user == task:
                continue
            written = f"writes bytes of buffer {region.buffer} {region.block}"
            if user == task:
                raise PlanFault(f"it {written} that it also uses in another way", where=where)
            raise PlanFault(f"it {written} that tasks[{user}] uses, without waiting for it", where=where)
