"""Memory that this process keeps no longer, given back to the system: what nobody reads again, or seldom.

Only Linux is asked. Elsewhere nothing here does anything, and where it is refused, nothing is lost but memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache
from typing import IO

import numpy as np

_DONTNEED = 4  # MADV_DONTNEED
_PAGE_ENTRY = 8  # bytes in /proc/self/pagemap
_OF_FILE, _SWAPPED, _PRESENT = (np.uint64(1 << bit) for bit in (61, 62, 63))  # what they say


def release_pages(start: int, size: int) -> None:
    """Gives back the whole pages among these bytes. What they hold is lost: zeros are there when they are next read."""
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    advise = _find_madvise()
    if advise is not None and first < end:
        advise(first, end - first, _DONTNEED)


def release_program(library: str) -> int:
    """Gives back the pages of the instructions and constants of a loaded library, whose file's name contains `library`.

    Pages that are still those of the file are given back, and read again when they are next needed; what was written
    into, as by the loader, stays. Returns how many bytes the released parts span.
    """
    advise = _find_madvise()
    if advise is None:
        return 0
    released = 0
    try:
        with (
            open("/proc/self/maps", encoding="utf-8", errors="replace") as lines,
            open("/proc/self/pagemap", "rb", buffering=0) as pages,
        ):
            for line in lines:
                addresses, access, _, _, _, *path = line.split(maxsplit=5)
                if access in ("r-xp", "r--p") and path and library in path[0].rpartition("/")[2]:
                    start, end = (int(address, 16) for address in addresses.split("-"))
                    if _is_as_in_file(pages, start, end):
                        advise(start, end - start, _DONTNEED)
                        released += end - start
    except (OSError, ValueError):
        pass
    return released


def _is_as_in_file(pages: IO[bytes], start: int, end: int) -> bool:
    """Whether no page of a private mapping of a file has been written: none is memory of this process alone."""
    size = (end - start) // mmap.PAGESIZE * _PAGE_ENTRY
    pages.seek(start // mmap.PAGESIZE * _PAGE_ENTRY)
    content = pages.read(size)
    entries = np.frombuffer(content, np.uint64)
    written = (entries & _SWAPPED != 0) | (entries & (_PRESENT | _OF_FILE) == _PRESENT)
    return len(content) == size and not written.any()


@cache
def _find_madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes, advise.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    madvise: Callable[[int, int, int], int] = advise
    return madvise
