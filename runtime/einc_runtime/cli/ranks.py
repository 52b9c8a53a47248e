"""Commands that run in several processes: joining the others, one report for all, and starting them here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from einc_runtime.cli import failures, output, signals
from einc_runtime.errors import MissingFault, PlanFault, ReportedError

if TYPE_CHECKING:
    from einc_runtime.execution.base import Executor
    from einc_runtime.execution.ranks.links import RankLinks
    from einc_runtime.execution.ranks.watch import Watch
    from einc_runtime.plan.schema import Bundle


BANNER = b"\n" + b"=" * 83 + b"\n=   BAD TERMINATION"
"""How the launcher of MPICH begins to say that a rank was killed; it says so on standard output."""

BOARD_VARIABLE = "EINC_RANKS"
"""Names the file in which ranks say what they do, for whoever started them."""


@dataclass(slots=True)
class World:
    """The ranks that run one command together."""

    links: RankLinks
    watch: Watch
    note_task: Callable[[int], None]

    @property
    def reports(self) -> bool:
        """Whether this rank prints and writes; the others are silent."""
        return self.links.rank == 0

    def require_same_plan(self, bundle: Bundle) -> None:
        """Raises PlanFault, on rank 0, where ranks have read different plans."""
        from einc_runtime.plan.codec import hash_payload

        hashes = self.links.share(hashlib.sha256(hash_payload(bundle)).digest())
        others = [rank for rank, own in enumerate(hashes) if own != hashes[0]]
        if others and self.reports:
            raise PlanFault(f"rank {others[0]} has read another plan than rank 0", hint="give all ranks the same file")
        if others:
            _wait_for_the_end(failures.MISSING)

    def make_executor(self, bundle: Bundle) -> Executor:
        from einc_runtime.execution.ranks.executor import RankExecutor

        return RankExecutor(bundle, self.links, note_task=self.note_task)


@contextlib.contextmanager
def join_ranks(describe: Callable[[int], str], *, as_json: bool) -> Iterator[World | None]:
    """Connects to the other ranks if MPI started this process, and ends all of them where one fails.

    `describe` says what a task is, given its position in the plan.
    """
    from einc_runtime.execution.ranks import mpi

    if not mpi.is_started_by_mpi():
        yield None
        return
    from einc_runtime.execution.ranks.watch import RankFailure, Watch

    links = mpi.connect()
    program = click.get_current_context().find_root().info_name or "einc"
    lock = threading.Lock()

    def end(error: BaseException) -> None:
        with lock:  # the first one reports
            if errors is not None:
                os.dup2(errors, 2)
            code = failures.report(error, program=program, debug="--debug" in sys.argv, as_json=as_json)
            _let_launcher_read()
            links.abort(code)
            _wait_for_the_end(code)

    errors = None if links.rank == 0 else _silence()
    watch = Watch(links, end, describe)
    watch.start()
    try:
        yield World(links, watch, _make_note(links, watch))
        links.share(b"done")
        watch.stop()
        links.close()
    except BaseException as error:
        if links.rank == 0:
            end(error)
        failure = failures.describe(error, program)
        if not isinstance(error, KeyboardInterrupt | signals.Terminated):  # which all ranks receive
            hint = error.hint if isinstance(error, ReportedError) else None
            watch.report(RankFailure(failure.message, failure.code, failure.exit_code, failure.where, hint))
        _wait_for_the_end(failure.exit_code)


def _make_note(links: RankLinks, watch: Watch) -> Callable[[int], None]:
    """What is told the position of every task that begins: the watch, and a file of whoever started the ranks."""
    board = _open_board(links)
    if board is None:
        return watch.note_task
    board[links.rank] = os.getpid(), -1

    def note(position: int) -> None:
        watch.note_task(position)
        board[links.rank, 1] = position

    return note


def _open_board(links: RankLinks) -> Any:
    """For every rank its process and the task that it has begun last, in a file that `start_ranks` made; or None."""
    import numpy as np

    path = os.environ.get(BOARD_VARIABLE)
    if path is None or not os.path.isfile(path) or os.path.getsize(path) != 16 * links.size:
        return None
    return np.memmap(path, np.int64, "r+", shape=(links.size, 2))


def _silence() -> int:
    """Only rank 0 prints results and notes. Returns where errors went, for the case that rank 0 is lost."""
    output.flush()
    errors, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)
    return errors


def _let_launcher_read() -> None:
    """Launchers that hear of an abort may drop what they have not read or passed on by then."""
    output.wait_for_readers(1.0)
    time.sleep(0.1)


def _wait_for_the_end(code: int) -> None:
    """Waits until another rank has ended this one, or ends it."""
    from einc_runtime.execution.ranks.watch import LAST_RESORT

    time.sleep(LAST_RESORT)
    os._exit(code)


def start_ranks(count: int, arguments: Sequence[str], module: str, describe: Callable[[int], str]) -> None:
    """Runs a command on so many ranks of this machine, through MPI's launcher, and ends as it does.

    `describe` says what a task is. Raises MissingFault where there is no launcher, or where a rank was killed.
    """
    launcher = _find_launcher()
    if launcher is None:
        hint = "pip install 'einc[mpi]', or install an MPI; or start the ranks yourself: mpiexec -n 8 einc run ..."
        raise MissingFault("there is no mpiexec on the path", hint=hint)
    output.flush()
    with tempfile.NamedTemporaryFile(prefix="einc-ranks-") as board:
        board.write(bytes(16 * count))
        board.flush()
        command = [launcher, "-n", str(count), sys.executable, "-m", module, *arguments]
        environment = os.environ | {BOARD_VARIABLE: board.name}
        ended = threading.Event()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            notes = threading.Thread(target=_pass_notes, args=(process.stderr, ended), daemon=True)
            notes.start()
            banner = _pass_results(process.stdout)
            code = process.wait()
            notes.join()
        except BaseException:
            ended.set()  # this process says what there is to say
            _end(process)
            raise
        if banner:
            raise _describe_killed(banner, Path(board.name).read_bytes(), describe)
    if code:
        raise click.exceptions.Exit(code)


def _pass_notes(stream: IO[bytes] | None, ended: threading.Event) -> None:
    """Passes on what ranks write to standard error, without what the launcher says of ranks that ended all others."""
    for line in stream or ():
        if not line.startswith(b"Abort(") and not ended.is_set():
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
    found = re.search(r"PID (\d+)", banner)
    signal = re.search(r"EXIT CODE: (\d+)", banner)
    why = f"was ended by signal {signal[1]}" if signal else "was ended"
    for rank, (process, task) in enumerate(struct.iter_unpack("=qq", board)):
        if found and process == int(found[1]):
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
