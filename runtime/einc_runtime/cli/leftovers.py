"""Removes what processes of MPI leave behind where they are killed: segments of shared memory.

MPICH removes the names of its segments when its processes end by themselves. Files are no problem: the processes get a
folder of their own for them (`launching.start_ranks`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

SHARED = Path("/dev/shm")
PREFIXES = ("mpich_shm_", "ucx_shm_")
"""How the names of segments begin."""

ENVIRONMENT = {"UCX_TLS": "^sysv"}
"""UCX, below MPICH, is to share memory by names in this folder alone: segments of System V have no names that say whose
they are."""


LAST_SECONDS = 2.0
"""What processes that were killed may take to be gone."""


@contextlib.contextmanager
def removed(mark: str) -> Iterator[None]:
    """Removes the segments that are new after this block, belong to this user, and are used by no process any more.

    It waits for processes that have `mark` in their environment and use new segments: they were killed, or end.
    """
    before = _list_segments()
    try:
        yield
    finally:
        limit = time.monotonic() + LAST_SECONDS
        while new := _list_segments() - before:
            users = {process: used for process, used in _list_users().items() if used & new}
            own = {process for process in users if _is_marked(process, mark)}
            if not own or time.monotonic() > limit:
                for path in new.difference(*(used for process, used in users.items() if process not in own)):
                    with contextlib.suppress(OSError):
                        path.unlink()
                break
            time.sleep(0.02)


def find_marked(mark: str) -> dict[int, dict[str, str]]:
    """The processes that have `mark` in their environment, and this environment; none where there is no /proc."""
    found = {}
    with contextlib.suppress(OSError):
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and os.fsencode(mark) in (text := (process / "environ").read_bytes()):
                    entries = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0"))
                    found[int(process.name)] = {name: value for name, _, value in entries}
    return found


def is_stopped(process: int) -> bool:
    """Whether a process is stopped by a signal, or by a debugger."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _is_marked(process: Path, mark: str) -> bool:
    """Whether a process has the mark, or is about to be gone: then it has no environment, but still open files."""
    with contextlib.suppress(OSError):
        environment = (process / "environ").read_bytes()
        return not environment or os.fsencode(mark) in environment
    return True


def _list_segments() -> set[Path]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHARED):
            with contextlib.suppress(OSError):
                if entry.name.startswith(PREFIXES) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    found.add(Path(entry.path))
    return found


def _list_users() -> dict[Path, set[Path]]:
    """The folders in /proc of this user's processes, with the segments that each has open or in its memory."""
    users: dict[Path, set[Path]] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        used = users[process] = set()
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if (start := line.find(f"{SHARED}/")) >= 0:
                    used.add(Path(line[start:]))
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    used.add(Path(os.readlink(file)))
    return users
