"""What a buffer holds while it has its bytes: pieces of one content each, and which tasks touched them last.

A buffer that many tasks fill is mostly cut along one dimension. Its pieces are kept in the order in which they begin
there, so that those that meet a block are found among its neighbours, not among all.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from einc_runtime.plan import boxes
from einc_runtime.plan.schema import Block


class Piece:
    """A block of one content, its writer, and its readers since, each with the part of the block that it reads."""

    __slots__ = ("block", "mask", "number", "readers", "writer")

    def __init__(self, block: Block, mask: int, writer: int) -> None:
        self.block = block
        self.mask = mask
        self.writer = writer
        self.readers: list[tuple[int, Block]] = []
        self.number = 0  # of all pieces that its buffer had

    def accesses(self, part: Block) -> list[int]:
        """The tasks that touch a part of it."""
        if part == self.block:
            return [self.writer, *(task for task, _ in self.readers)]
        return [self.writer, *(task for task, read in self.readers if read.overlaps(part))]

    def without(self, part: Block) -> list[Piece]:
        """What is left of it around a part that is overwritten."""
        pieces = []
        for rest in boxes.subtract(self.block, part):
            piece = Piece(rest, self.mask, self.writer)
            for task, read in self.readers:
                common = read.intersect(rest)
                if common is not None:
                    piece.readers.append((task, common))
            pieces.append(piece)
        return pieces


class Tenure:
    """The time during which a buffer has its bytes. Whoever writes it first must come after all of `before`.

    `gates` are tasks that come after all of `before`: whoever waits for one of them does, too. `first` is the first
    block that is written into `whole`, the buffer's; pieces are in order along the dimension that it cuts most.
    """

    __slots__ = ("_along", "_longest", "_order", "_pieces", "_put", "accesses", "before", "gates", "usurper")

    def __init__(self, whole: Block, first: Block) -> None:
        self.before: frozenset[int] = frozenset()
        self.gates: frozenset[int] = frozenset()
        self.usurper: int | None = None
        self.accesses: frozenset[int] = frozenset()
        bounds = zip(first.lower, first.upper, whole.lower, whole.upper, strict=True)
        shares = [(up - lo) / (end - start) for lo, up, start, end in bounds]
        self._along = min(range(len(shares)), key=shares.__getitem__, default=0)
        self._pieces: dict[Block, Piece] = {}
        self._order: list[tuple[int, int, Piece]] = []  # where each begins, its number, and itself
        self._longest = 0  # the most that any has spanned
        self._put = 0  # how many there were

    def end(self, usurper: int) -> None:
        """Leaves of it the last `accesses`; all others, those of earlier tenures included, come before these."""
        self.usurper = usurper
        if self._pieces:
            pieces = self._pieces.values()
            self.accesses = frozenset(task for piece in pieces for task in piece.accesses(piece.block))
            self._pieces, self._order = {}, []

    def put(self, piece: Piece) -> None:
        """Adds a piece that meets no other."""
        start, end = self._span(piece.block)
        self._longest = max(self._longest, end - start)
        self._put += 1
        piece.number = self._put
        self._pieces[piece.block] = piece
        insort(self._order, (start, piece.number, piece))

    @property
    def effort(self) -> int:
        """What putting a piece in its place costs, in steps of looking at one."""
        return 1 + len(self._order) // 256

    def drop(self, piece: Piece) -> None:
        del self._pieces[piece.block]
        del self._order[bisect_left(self._order, (self._span(piece.block)[0], piece.number))]

    def near(self, block: Block) -> list[Piece]:
        """All pieces that may meet a block, in the order in which they were put; only the one that is equal, if any."""
        equal = self._pieces.get(block)
        if equal is not None:
            return [equal]
        start, end = self._span(block)
        first = bisect_left(self._order, (start - self._longest + 1,))
        last = bisect_left(self._order, (end,))
        return sorted((piece for _, _, piece in self._order[first:last]), key=lambda piece: piece.number)

    def _span(self, block: Block) -> tuple[int, int]:
        """Where a block begins and ends in the order of the pieces; a number has one place."""
        return (block.lower[self._along], block.upper[self._along]) if block.lower else (0, 1)
