"""When buffers are read and written, and when they lose their bytes, with tasks in their order in the plan."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.plan.regions import reads_of, span, writes_of
from einc_runtime.plan.schema import AnyTask, Bundle


class Lifetimes:
    """The tasks that read and write every buffer, ascending, and those that take bytes from it."""

    def __init__(self, bundle: Bundle, tasks: Sequence[AnyTask]) -> None:
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.writers: dict[int, list[int]] = defaultdict(list)
        self._losses: dict[int, list[int]] = defaultdict(list)
        ownership = [ByteOwnership() for _ in bundle.memory]
        for number, task in enumerate(tasks):
            for buffer in {region.buffer for region in reads_of(task)}:
                self.readers[buffer].append(number)
            for buffer in {region.buffer for region in writes_of(task)}:
                self.writers[buffer].append(number)
                owned = ownership[bundle.buffers[buffer].site]
                for other in owned.take(buffer, *span(bundle, buffer)) - {buffer}:
                    self._losses[other].append(number)

    def loses_bytes(self, buffer: int, after: int, until: int) -> bool:
        """Whether a task later than `after`, up to and including `until`, gives bytes of the buffer to another one."""
        losses = self._losses.get(buffer, [])
        place = bisect_right(losses, after)
        return place < len(losses) and losses[place] <= until


class ByteOwnership:
    """Which buffer owns which bytes of a site: intervals that do not overlap, sorted by their start."""

    def __init__(self) -> None:
        self.whole: set[int] = set()
        """The buffers that own all of their bytes."""
        self._starts: list[int] = []
        self._pieces: list[tuple[int, int]] = []  # end, buffer

    def take(self, buffer: int, start: int, end: int) -> set[int]:
        """Gives [start, end) to a buffer unless it owns that, and returns the buffers that owned some of it."""
        if buffer in self.whole:
            return set()
        first = max(0, bisect_right(self._starts, start) - 1)
        last, displaced = first, set()
        kept: list[tuple[int, int, int]] = [(start, end, buffer)]
        while last < len(self._starts) and self._starts[last] < end:
            piece_start, (piece_end, owner) = self._starts[last], self._pieces[last]
            if piece_end <= start:
                kept.append((piece_start, piece_end, owner))
            else:
                displaced.add(owner)
                kept += [(piece_start, start, owner)] * (piece_start < start)
                kept += [(end, piece_end, owner)] * (piece_end > end)
            last += 1
        pieces = sorted(kept)
        self._starts[first:last] = [piece[0] for piece in pieces]
        self._pieces[first:last] = [(piece[1], piece[2]) for piece in pieces]
        self.whole -= displaced
        self.whole.add(buffer)
        return displaced
