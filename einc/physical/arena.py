"""One site's memory while its buffers are placed: free spans, and which buffer had each byte last."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

ALIGNMENT = 64
"""Offsets are multiples of this, so that no two buffers share a cache line."""


def aligned(size: int) -> int:
    """The least multiple of ALIGNMENT that is not below `size`, and not 0."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT


class Arena:
    """Best-fit allocation above `base`; ties take the lowest offset. `top` is the first byte never used."""

    def __init__(self, base: int) -> None:
        self.top = base
        self._free: list[tuple[int, int]] = []  # (start, end), ascending, apart from each other, below top
        self._starts: list[int] = []  # of the spans below: disjoint, ascending
        self._spans: list[tuple[int, int, int]] = []  # (start, end, the buffer that had these bytes last)

    def allocate(self, size: int, buffer: int) -> tuple[int, tuple[int, ...]]:
        """An offset for `size` bytes (aligned), and the earlier buffers whose bytes these were."""
        best: tuple[int, int] | None = None
        for start, end in self._free:
            if end - start >= size and (best is None or (end - start, start) < best):
                best = (end - start, start)
        if best is not None:
            start = best[1]
            self._take(start, start + size)
        else:
            start = self.top
            if self._free and self._free[-1][1] == self.top:
                start = self._free.pop()[0]
            self.top = start + size
        return start, self._claim(start, start + size, buffer)

    def release(self, start: int, size: int) -> None:
        """Gives bytes back."""
        at = bisect_left(self._free, (start, start))
        end = start + size
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at > 0 and self._free[at - 1][1] == start:
            start = self._free.pop(at - 1)[0]
        insort(self._free, (start, end))

    def _take(self, start: int, end: int) -> None:
        at = bisect_right(self._free, (start, self.top)) - 1
        first, last = self._free.pop(at)
        if end < last:
            self._free.insert(at, (end, last))
        if first < start:
            self._free.insert(at, (first, start))

    def _claim(self, start: int, end: int, buffer: int) -> tuple[int, ...]:
        """Records the new owner of some bytes and returns the distinct last ones before it."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._spans[first][1] <= start:
            first += 1
        last = bisect_left(self._starts, end)
        covered = self._spans[first:last]
        new = [(start, end, buffer)]
        if covered and covered[0][0] < start:
            new.insert(0, (covered[0][0], start, covered[0][2]))
        if covered and covered[-1][1] > end:
            new.append((end, covered[-1][1], covered[-1][2]))
        self._spans[first:last] = new
        self._starts[first:last] = [span[0] for span in new]
        return tuple(dict.fromkeys(owner for _, _, owner in covered))
