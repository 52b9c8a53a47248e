"""The address space that a limit leaves to this process (`ulimit -v`). Without a limit, nothing here does anything.

Libraries of products and of threads reserve address space, far more than they use, when they are first called. Where
they get none, some of them end the process. So it is asked for before.
"""

from __future__ import annotations

import mmap

LIBRARY_BYTES = 192 << 20
"""Bytes that the libraries of every command take."""

OF_RUNS, OF_WORKERS = 192 << 20, 160 << 20
"""Bytes that a run takes beside its plan, and for each of its threads: stacks, buffers, heaps."""


def require_address_space(size: int) -> None:
    """Raises MemoryError where a limit leaves less than `size` bytes."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        mmap.mmap(-1, size, flags).close()  # no page of it is ever touched
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size:,} bytes of address space are not available") from error
