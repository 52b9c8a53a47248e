"""The blocks in which sequences keep their tokens: who has which, and what they hold.

A prompt that begins as an earlier one shares its blocks, as long as these have not been given to others: blocks that
nobody uses keep what they hold until they are needed, and those that were left first are taken first.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

SPARE = 0
"""The block that nobody has: what no sequence computes is written there."""


class BlockPool:
    """So many blocks of `size` tokens each. A block may be held by several sequences, which then only read it."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._holders = [0] * count
        self._free = list(range(count - 1, SPARE, -1))
        self._idle: dict[int, None] = {}  # blocks that nobody holds and that have a name; the first to go first
        self._known: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    @property
    def count(self) -> int:
        """How many blocks sequences can have."""
        return len(self._holders) - 1

    @property
    def held(self) -> int:
        """How many they have now."""
        return self.count - len(self._free) - len(self._idle)

    def find(self, names: Sequence[bytes]) -> list[int]:
        """The blocks with the first of these names, as far as there are some."""
        blocks = []
        for name in names:
            if name not in self._known:
                break
            blocks.append(self._known[name])
        return blocks

    def fits(self, shared: Sequence[int], more: int) -> bool:
        """Whether a sequence can hold these blocks and so many more."""
        return more <= len(self._free) + len(self._idle) - sum(block in self._idle for block in shared)

    def hold(self, shared: Sequence[int], more: int) -> list[int]:
        """Gives a sequence blocks that `find` has found, and others, for which there must be room."""
        for block in shared:
            self._idle.pop(block, None)
            self._holders[block] += 1
        taken = [self._take() for _ in range(more)]
        return [*shared, *taken]

    def leave(self, blocks: Sequence[int]) -> None:
        """Ends what a sequence holds. Of its blocks, the last ones go first, without which the others are of use."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._names:
                self._idle[block] = None
            else:
                self._free.append(block)

    def name(self, block: int, name: bytes) -> None:
        """Says what a block holds, from now on until it is taken; of equal ones, the first is kept."""
        if name not in self._known:
            self._known[name] = block
            self._names[block] = name

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block = next(iter(self._idle))
            del self._idle[block]
            del self._known[self._names.pop(block)]
        self._holders[block] = 1
        return block


def name_blocks(tokens: Sequence[int], size: int, salt: str = "") -> list[bytes]:
    """A name for each full block of tokens, which says all tokens up to its end, and the salt."""
    rows, name = np.asarray(tokens, "<i8"), salt.encode()
    names = []
    for start in range(0, len(rows) - size + 1, size):
        name = sha256(sha256(name).digest() + rows[start : start + size].tobytes()).digest()
        names.append(name)
    return names
