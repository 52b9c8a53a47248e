"""Arrays in a source of weights, known by name before their data is read.

The bytes of a file of tensors stay on disk until they are needed. The file is not mapped: where another program cuts a
mapped file short, reading what is gone ends the process by SIGBUS.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import ArrayFault, MissingFault
from einc_runtime.plan.schema import Tensor


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A stored array's type, its shape, and how to read it for a weight.

    `read_into` reads it into dense memory of its type and size; None where it can only be read as a whole. `narrow` is
    the same array as it is stored, where that is floats of 8 bits and `read` widens them.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[Tensor], Array]
    read_into: Callable[[Array], None] | None = None
    narrow: StoredArray | None = None


@dataclass(frozen=True, slots=True)
class StoredArrays:
    """The names of all stored arrays, and a function that finds the array of a name. Unused arrays are not checked."""

    names: Collection[str]
    find: Callable[[str], StoredArray]


MAX_READ_BYTES = 1 << 28
"""As much is read in one call, which some systems limit, and between two of which an interrupt is noticed."""


class StoredBytes:
    """A file, which stays open until nobody refers to this object."""

    def __init__(self, path: str, stream: BinaryIO) -> None:
        self._path = path
        self._file = os.dup(stream.fileno())
        weakref.finalize(self, os.close, self._file)

    def read(self, begin: int, count: int) -> Array:
        """Bytes from a place on. Raises ArrayFault where the file has become shorter, and MissingFault where there is
        no memory for them."""
        try:
            data: Array = np.empty(count, np.uint8)
        except MemoryError:
            raise MissingFault(f"{count:,} bytes of memory are not available", where=self._path) from None
        self.fill(begin, data)
        return data

    def fill(self, begin: int, data: Array) -> None:
        """Reads as many bytes as `data` has into it. Raises ArrayFault as `read` does."""
        memory, done = memoryview(data), 0  # type: ignore[arg-type]
        while done < len(memory):
            piece = memory[done : done + MAX_READ_BYTES]
            count = _read_at(self._file, piece, begin + done)
            if count == 0:
                raise ArrayFault("it has become shorter while it was read", where=self._path)
            done += count


def _read_at(file: int, piece: memoryview, begin: int) -> int:
    """Reads into `piece` from a place of a file, and returns how many bytes it read."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [piece], begin)
    chunk = os.pread(file, len(piece), begin)  # before macOS 11; with a copy
    piece[: len(chunk)] = chunk
    return len(chunk)
