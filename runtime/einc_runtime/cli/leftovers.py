"""Removes what processes of MPI leave behind where they are killed: segments of shared memory.

Ranks that are connected have removed the names of their segments themselves (`execution/ranks/mpi.py`), so only those
that are killed before leave some. Files are no problem: the processes get a folder of their own for them
(`launching.start_ranks`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

SHARED_MEMORY_FOLDER = Path("/dev/shm")
PREFIXES = ("mpich_shm_", "mpich_vci_", "ucx_shm_")
"""How the names of segments begin."""

UCX_ENVIRONMENT = {"UCX_TLS": "^sysv"}
"""UCX, below MPICH, is to share memory by names in this folder alone: segments of System V have no names that say whose
they are."""

LAST_SECONDS = 10.0
"""What processes that were killed may take to be gone."""


@contextlib.contextmanager
def removed(list_processes: Callable[[], Iterable[int]]) -> Iterator[None]:
    """Waits after this block until the processes are gone, and removes the segments of this user that no process has.

    A segment belongs to an MPI program, of whomever, as long as one of its processes has it. Without one, nobody can
    use it any more, since MPI does not look for segments of programs that have ended.
    """
    try:
        yield
    finally:
        limit = time.monotonic() + LAST_SECONDS
        while any(map(_is_alive, list_processes())) and time.monotonic() < limit:
            time.sleep(0.02)
        for segment in _list_segments():
            if _is_unused(segment):
                with contextlib.suppress(OSError):
                    segment.unlink()


def find_marked(mark: str) -> dict[int, dict[str, str]]:
    """The processes that have `mark` in their environment, and this environment; none where there is no /proc."""
    environments = {}
    with contextlib.suppress(OSError):
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and os.fsencode(mark) in (text := (process / "environ").read_bytes()):
                    entries = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0"))
                    environments[int(process.name)] = {name: value for name, _, value in entries}
    return environments


def is_stopped(process: int) -> bool:
    """Whether a process is stopped by a signal, or by a debugger."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _is_alive(process: int) -> bool:
    """Whether a process has not ended. One that was killed may have its memory for a moment longer than its variables,
    and its other threads longer than its first one: Linux shows the end of all of them."""
    if sys.platform != "linux":
        return False
    try:
        handle = os.pidfd_open(process)
    except OSError:
        return False
    try:
        ends = select.poll()
        ends.register(handle, select.POLLIN)
        return not ends.poll(0)
    finally:
        os.close(handle)


def _list_segments() -> list[Path]:
    """The segments of this user, whether they are in use or not."""
    segments = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHARED_MEMORY_FOLDER):
            with contextlib.suppress(OSError):
                if entry.name.startswith(PREFIXES) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    segments.append(Path(entry.path))
    return segments


def _is_unused(segment: Path) -> bool:
    """Whether no process has a segment open or in its memory to write to, as every process of MPI has.

    Linux knows it of all processes, also of those that cannot be seen from here, as in other containers: it gives a
    lease to read a file only where nobody can write to it. Raises nothing; what is not known counts as used.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        file = os.open(segment, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # who wants to write now waits; this signal does nothing
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(file)
