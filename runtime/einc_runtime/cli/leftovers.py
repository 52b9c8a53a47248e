"""Removes what processes of MPI leave behind where they are killed: segments of shared memory.

MPICH removes the names of its segments when its processes end by themselves. Files are no problem: the processes get a
folder of their own for them (`ranks.start_ranks`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

SHARED = Path("/dev/shm")
PREFIXES = ("mpich_shm_", "ucx_shm_")
"""How the names of segments begin."""

ENVIRONMENT = {"UCX_TLS": "^sysv"}
"""UCX, below MPICH, is to share memory by names in this folder alone: segments of System V have no names that say whose
they are."""


@contextlib.contextmanager
def removed() -> Iterator[None]:
    """Removes the segments that are new after this block, belong to this user, and are used by no process any more."""
    before = _list_segments()
    try:
        yield
    finally:
        new = _list_segments() - before
        for path in new - _list_used() if new else ():
            with contextlib.suppress(OSError):
                path.unlink()


def _list_segments() -> set[Path]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHARED):
            with contextlib.suppress(OSError):
                if entry.name.startswith(PREFIXES) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    found.add(Path(entry.path))
    return found


def _list_used() -> set[Path]:
    """The segments that any process of this user has open or in its memory."""
    used = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if (start := line.find(f"{SHARED}/")) >= 0:
                    used.add(Path(line[start:]))
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    used.add(Path(os.readlink(file)))
    return used
