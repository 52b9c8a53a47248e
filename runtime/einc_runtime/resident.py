"""Memory that this process keeps no longer, given back to the system: what nobody reads again, or seldom.

Only Linux is asked. Elsewhere nothing here does anything, and where it is refused, nothing is lost but memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache

_DONTNEED = 4  # MADV_DONTNEED


def release_pages(start: int, size: int) -> None:
    """Gives back the whole pages among these bytes. What they hold is lost: zeros are there when they are next read."""
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    advise = _find_madvise()
    if advise is not None and first < end:
        advise(first, end - first, _DONTNEED)


def release_program(library: str) -> int:
    """Gives back the pages of the instructions of a loaded library, whose file's name contains `library`.

    They are those of the file, which nobody can have written, and are read again when they are next run. Returns how
    many bytes they span.
    """
    advise = _find_madvise()
    if advise is None:
        return 0
    released = 0
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                addresses, access, _, _, _, *path = line.split(maxsplit=5)
                if access == "r-xp" and path and library in path[0].rpartition("/")[2]:
                    start, end = (int(address, 16) for address in addresses.split("-"))
                    advise(start, end - start, _DONTNEED)
                    released += end - start
    except (OSError, ValueError):
        pass
    return released


@cache
def _find_madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes, advise.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    found: Callable[[int, int, int], int] = advise
    return found
