"""Starts the ranks of a command on this machine by MPI's launcher, passes on what they print, and says who failed.

It also removes what processes of MPI leave behind where they are killed: segments of shared memory. Ranks that are
connected have removed the names of their segments themselves (`execution/ranks/mpi.py`), so only those that are killed
before leave some. Files are no problem: the processes get a folder of their own for them (`launching.start_ranks`).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from einc_runtime import environment
from einc_runtime.cli import output
from einc_runtime.cli.ranks import CONNECTING, ENTRY, end_with_parent
from einc_runtime.errors import MissingFault
from einc_runtime.installing import suggest_extra

BANNER = b"\n" + b"=" * 83 + b"\n=   BAD TERMINATION"
"""How the launcher of MPICH begins to say that a rank was killed; it says so on standard output."""

CONNECT_SECONDS = 60.0
"""So long may ranks that are started here take until the next of them says that it connects, or is connected."""

CONNECT_POLL_SECONDS = 0.2
"""Seconds between two looks at what ranks that connect say."""


def start_ranks(count: int, arguments: Sequence[str], module: str, describe: Callable[[int], str]) -> None:
    """Runs a command on so many ranks of this machine, through MPI's launcher, and ends as it does.

    `describe` says what a task is. Raises MissingFault where there is no launcher, or where a rank was killed.
    """
    launcher = _find_launcher()
    if launcher is None:
        hint = f"install an MPI, or MPICH beside einc: {suggest_extra('mpi')}"
        raise MissingFault("there is no mpiexec on the path", hint=hint)
    output.flush()
    temporary = tempfile.TemporaryDirectory(prefix="einc-ranks-", ignore_cleanup_errors=True)
    with temporary as folder, removed(lambda: _list_processes(Path(folder, "board"))):
        board = Path(folder, "board")
        board.write_bytes(bytes(ENTRY.size * count))
        command = [launcher, "-n", str(count), sys.executable, "-m", module, *arguments]
        variables = UCX_ENVIRONMENT | environment.copy_all() | {environment.RANKS: str(board), "TMPDIR": folder}
        ended = threading.Event()
        own_faults: list[str] = []
        silent: list[MissingFault] = []
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_prepare_launcher
        )
        try:
            notes = threading.Thread(target=_pass_notes, args=(process.stderr, ended, own_faults), daemon=True)
            notes.start()
            threading.Thread(target=_watch_connecting, args=(process, board, ended, silent), daemon=True).start()
            banner = _pass_results(process.stdout)
            code = process.wait()
            notes.join()
            ended.set()
        except BaseException:
            ended.set()  # this process says what there is to say
            _end(process)
            raise
        if silent:
            raise silent[0]
        if banner:
            raise _describe_killed(banner, board.read_bytes(), describe)
    if code < 0 or own_faults:
        why = f"was ended by signal {-code}" if code < 0 else f"failed: {own_faults[0]}"
        raise MissingFault(f"the launcher {launcher} {why}", hint="all ranks were ended, too")
    if code:
        raise click.exceptions.Exit(code)


def _list_processes(board: Path) -> set[int]:
    """MPI's own processes and the ranks, by the name of the file in their environment. Ranks that are about to be gone
    have none any more; they have said their numbers in the file, if they have begun to connect."""
    said: set[int] = set()
    with contextlib.suppress(OSError):  # the file could not be made
        said = {number for number, _ in ENTRY.iter_unpack(board.read_bytes()) if number}
    return said | find_marked(str(board)).keys()


def _prepare_launcher() -> None:
    """Runs in the launcher's process before it begins. Interrupts are left to this process, which ends the launcher:
    ranks whose interpreter still starts would print where they are."""
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _watch_connecting(
    process: subprocess.Popen[bytes], board: Path, ended: threading.Event, silent: list[MissingFault]
) -> None:
    """Until all ranks are connected: ends them where one does not go on, and adds the error to `silent`. MPI itself
    waits forever for a process that is stopped while it connects."""
    last, since = b"", time.monotonic()
    while not ended.wait(CONNECT_POLL_SECONDS):
        with contextlib.suppress(OSError):
            said = board.read_bytes()
            entries = list(ENTRY.iter_unpack(said))
            if all(number and task != CONNECTING for number, task in entries):
                return
            if said != last:
                last, since = said, time.monotonic()
            elif time.monotonic() - since > CONNECT_SECONDS:
                processes = find_marked(str(board))
                silent.append(_describe_silent(entries, processes))
                ended.set()
                for number in processes:  # a process that is stopped takes no other signal
                    with contextlib.suppress(OSError):
                        os.kill(number, signal.SIGKILL)
                process.kill()
                return


def _describe_silent(entries: Sequence[tuple[int, int]], processes: Mapping[int, Mapping[str, str]]) -> MissingFault:
    """The rank for which the others wait: one that is stopped, else one that has said nothing, else the first one."""
    from einc_runtime.execution.ranks import mpi

    stopped = {mpi.read_rank(variables) for number, variables in processes.items() if is_stopped(number)}
    waiting = [rank for rank, (number, task) in enumerate(entries) if not number or task == CONNECTING]
    rank = min(waiting, key=lambda rank: (rank not in stopped, entries[rank][0] != 0, rank))
    why = "its process is stopped" if rank in stopped else "it has not begun to" if not entries[rank][0] else "it tries"
    message = f"is not connected to the others, after {CONNECT_SECONDS:g} seconds in which no other was, either; {why}"
    return MissingFault(message, where=f"rank {rank}", hint="all ranks were ended")


def _pass_notes(stream: IO[bytes] | None, ended: threading.Event, own_faults: list[str]) -> None:
    """Passes on what ranks write to standard error, without what the launcher says of ranks that ended all others.
    What it says of itself is added to `own_faults`."""
    for line in stream or ():
        if line.startswith((b"[mpiexec@", b"[proxy:")):
            own_faults.append(line.decode(errors="replace").strip())
        elif not line.startswith(b"Abort(") and not ended.is_set():
            output.note(line.decode(errors="replace"))


def _pass_results(stream: IO[bytes] | None) -> str:
    """Passes on what ranks write to standard output. Returns the launcher's banner, which comes last where one was
    killed, or nothing."""
    assert stream is not None
    held = b""
    while chunk := stream.read1():  # type: ignore[attr-defined]
        held += chunk
        if (start := held.find(BANNER)) >= 0:
            output.pass_on(held[:start])
            banner: bytes = held[start:] + stream.read()
            return banner.decode(errors="replace")
        keep = max(length for length in range(len(BANNER)) if held.endswith(BANNER[:length]))
        output.pass_on(held[: len(held) - keep])
        held = held[len(held) - keep :]
    output.pass_on(held)
    return ""


def _describe_killed(banner: str, board: bytes, describe: Callable[[int], str]) -> MissingFault:
    """Which rank was killed, and when. The launcher's banner names its process and the signal."""
    match = re.search(r"PID (\d+)", banner)
    number = re.search(r"EXIT CODE: (\d+)", banner)
    why = f"was ended by signal {number[1]}" if number else "was ended"
    for rank, (process, task) in enumerate(ENTRY.iter_unpack(board)):
        if match and process == int(match[1]):
            doing = "before its first task" if task < 0 else f"in or after {describe(task)}"
            return MissingFault(f"{why}, {doing}", where=f"rank {rank}", hint="all other ranks were ended, too")
    return MissingFault(f"a rank {why} before it had joined the others", hint="all other ranks were ended, too")


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends the launcher, which ends the ranks."""
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find_launcher() -> str | None:
    """MPI's launcher: beside the interpreter, where a wheel installs it, or on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


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
