"""Commands that run in several processes: joining the others, one report for all, and starting them here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from einc_runtime.cli import failures, leftovers, output, signals
from einc_runtime.errors import MissingFault, PlanFault, ReportedError

if TYPE_CHECKING:
    from einc_runtime.execution.ranks.cuda_executor import CudaRankExecutor
    from einc_runtime.execution.ranks.executor import RankExecutor
    from einc_runtime.execution.ranks.links import RankLinks
    from einc_runtime.execution.ranks.watch import Watch
    from einc_runtime.execution.shared_buffers import SharedBuffers
    from einc_runtime.kernels.cuda.tuning import Tuning
    from einc_runtime.plan.ranks import Shares
    from einc_runtime.plan.schema import Bundle


BANNER = b"\n" + b"=" * 83 + b"\n=   BAD TERMINATION"
"""How the launcher of MPICH begins to say that a rank was killed; it says so on standard output."""

PR_SET_PDEATHSIG = 1
"""The number of an operation of Linux."""

MAX_TASKS = 1 << 32
"""Tasks of a plan, where ranks run several plans and a number names a task of any of them."""

BOARD_VARIABLE = "EINC_RANKS"
"""Names the file in which ranks say what they do, for whoever started them."""

ENTRY = struct.Struct("=qq")
"""What the file has for every rank: its process, or 0 before it says anything; and the task that it has begun last."""

CONNECTING, CONNECTED = -2, -1
"""In the place of a task: what a rank does before it has begun one."""

CONNECT_SECONDS = 60.0
"""So long may ranks that are started here take until the next of them says that it connects, or is connected."""

LOOK = 0.2
"""Seconds between two looks at what ranks that connect say."""


@dataclass(slots=True)
class World:
    """The ranks that run one command together."""

    links: RankLinks
    watch: Watch
    note_task: Callable[[int], None]
    shares: Shares | None = None

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

    def make_executor(self, bundle: Bundle, number: int = 0, common: SharedBuffers | None = None) -> RankExecutor:
        """An executor of the plan of this number; see `split_task`."""
        from einc_runtime.execution.ranks.executor import RankExecutor

        def note(position: int) -> None:
            self.note_task(number * MAX_TASKS + position)

        told = note if number else self.note_task
        executor = RankExecutor(bundle, self.links, note_task=told, common=common, shares=self.shares)
        self.watch.look_at(executor.arrivals)
        return executor

    def uses_gpus(self, bundle: Bundle, backend: str) -> bool:
        """Whether a plan runs on GPUs with this backend: with auto, if it would on every rank alone."""
        from einc_runtime.execution.backends import uses_gpus

        return all(text == b"1" for text in self.links.share(b"%d" % uses_gpus(bundle, backend)))

    def make_gpu_executor(
        self, bundle: Bundle, devices: Sequence[int] | None, no_peer: str, tunings: Sequence[Tuning]
    ) -> CudaRankExecutor:
        """An executor of the plan on GPUs; see `execution.session.Session` for the arguments."""
        from einc_runtime.execution.backends import require_device_count
        from einc_runtime.execution.ranks.cuda_executor import CudaRankExecutor

        require_device_count(bundle, devices)
        executor = CudaRankExecutor(
            bundle,
            self.links,
            devices,
            no_peer=no_peer,
            tunings=tunings,
            shares=self.shares,
            note_task=self.note_task,
        )
        self.watch.look_at(executor.arrivals)
        return executor

    def share_plans(self, make: Callable[[], Sequence[Bundle]]) -> list[Bundle]:
        """The plans that rank 0 makes, on all ranks."""
        from einc_runtime.plan.codec import decode, encode

        if self.reports:
            made = list(make())
            self.links.share(b"%d" % len(made))
            for bundle in made:
                self.links.share(encode(bundle))
            return made
        return [decode(self.links.share(b"")[0]) for _ in range(int(self.links.share(b"")[0]))]


def split_task(number: int) -> tuple[int, int]:
    """The number of a plan, and the position of a task in it."""
    return divmod(number, MAX_TASKS)


def require_ranks(ranks: int | None, shares: Shares | None) -> None:
    """Raises UsageError where it is said which sites each rank has, and there is one process."""
    from einc_runtime.execution.ranks.mpi import is_started_by_mpi

    if shares is not None and ranks in (None, 1) and not is_started_by_mpi():
        raise click.UsageError("--sites-per-rank needs several processes: --ranks, or mpiexec")


@contextlib.contextmanager
def join_ranks(
    describe: Callable[[int], str], shares: Shares | None = None, *, as_json: bool
) -> Iterator[World | None]:
    """Connects to the other ranks if MPI started this process, and ends all of them where one fails.

    `describe` says what a task is, given its position in the plan, and `shares` which sites each rank has.
    """
    from einc_runtime.execution.ranks import mpi

    if not mpi.is_started_by_mpi():
        yield None
        return
    from einc_runtime.execution.ranks.watch import RankFailure, Watch

    if BOARD_VARIABLE in os.environ:  # MPI waits forever for its own process on this machine, once that was killed
        _end_with_parent(signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(failures.MISSING)
        _note_connecting(os.environ[BOARD_VARIABLE])
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
        yield World(links, watch, _make_note(links, watch), shares)
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
    board[links.rank] = os.getpid(), CONNECTED

    def note(position: int) -> None:
        watch.note_task(position)
        board[links.rank, 1] = position

    return note


def _note_connecting(path: str) -> None:
    """Says in the file of whoever started the ranks that this one is about to connect."""
    from einc_runtime.execution.ranks import mpi

    rank = mpi.read_rank(os.environ)
    if rank is not None and os.path.isfile(path) and (rank + 1) * ENTRY.size <= os.path.getsize(path):
        with open(path, "r+b") as board:
            board.seek(rank * ENTRY.size)
            board.write(ENTRY.pack(os.getpid(), CONNECTING))


def _open_board(links: RankLinks) -> Any:
    """For every rank its process and the task that it has begun last, in a file that `start_ranks` made; or None."""
    import numpy as np

    path = os.environ.get(BOARD_VARIABLE)
    if path is None or not os.path.isfile(path) or os.path.getsize(path) != ENTRY.size * links.size:
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
    temporary = tempfile.TemporaryDirectory(prefix="einc-ranks-", ignore_cleanup_errors=True)
    with temporary as folder, leftovers.removed(folder):
        board = Path(folder, "board")
        board.write_bytes(bytes(ENTRY.size * count))
        command = [launcher, "-n", str(count), sys.executable, "-m", module, *arguments]
        environment = leftovers.ENVIRONMENT | os.environ | {BOARD_VARIABLE: str(board), "TMPDIR": folder}
        ended = threading.Event()
        own: list[str] = []
        silent: list[MissingFault] = []
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_end_with_parent,
        )
        try:
            notes = threading.Thread(target=_pass_notes, args=(process.stderr, ended, own), daemon=True)
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
    if code < 0 or own:
        why = f"was ended by signal {-code}" if code < 0 else f"failed: {own[0]}"
        raise MissingFault(f"the launcher {launcher} {why}", hint="all ranks were ended, too")
    if code:
        raise click.exceptions.Exit(code)


def _watch_connecting(
    process: subprocess.Popen[bytes], board: Path, ended: threading.Event, silent: list[MissingFault]
) -> None:
    """Until all ranks are connected: ends them where one does not go on, and adds the error to `silent`. MPI itself
    waits forever for a process that is stopped while it connects."""
    last, since = b"", time.monotonic()
    while not ended.wait(LOOK):
        with contextlib.suppress(OSError):
            said = board.read_bytes()
            entries = list(ENTRY.iter_unpack(said))
            if all(number and task != CONNECTING for number, task in entries):
                return
            if said != last:
                last, since = said, time.monotonic()
            elif time.monotonic() - since > CONNECT_SECONDS:
                processes = leftovers.find_marked(str(board))
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

    stopped = {mpi.read_rank(environment) for number, environment in processes.items() if leftovers.is_stopped(number)}
    waiting = [rank for rank, (number, task) in enumerate(entries) if not number or task == CONNECTING]
    rank = min(waiting, key=lambda rank: (rank not in stopped, entries[rank][0] != 0, rank))
    why = "its process is stopped" if rank in stopped else "it has not begun to" if not entries[rank][0] else "it tries"
    message = f"is not connected to the others, after {CONNECT_SECONDS:g} seconds in which no other was, either; {why}"
    return MissingFault(message, where=f"rank {rank}", hint="all ranks were ended")


def _end_with_parent(number: int = signal.SIGTERM) -> None:
    """Lets this process get a signal when the process that started it has been killed."""
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))


def _pass_notes(stream: IO[bytes] | None, ended: threading.Event, own: list[str]) -> None:
    """Passes on what ranks write to standard error, without what the launcher says of ranks that ended all others.
    What it says of itself is added to `own`."""
    for line in stream or ():
        if line.startswith((b"[mpiexec@", b"[proxy:")):
            own.append(line.decode(errors="replace").strip())
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
    found = re.search(r"PID (\d+)", banner)
    number = re.search(r"EXIT CODE: (\d+)", banner)
    why = f"was ended by signal {number[1]}" if number else "was ended"
    for rank, (process, task) in enumerate(ENTRY.iter_unpack(board)):
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
