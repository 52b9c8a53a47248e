"""Commands that run in several processes: joining the others, and one report for all. `launching.py` starts them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from einc_runtime import environment
from einc_runtime.cli import failures, output, signals
from einc_runtime.errors import PlanFault, ReportedError

if TYPE_CHECKING:
    from pathlib import Path

    from einc_runtime.execution.ranks.executor import RankExecutor
    from einc_runtime.execution.ranks.links import RankLinks
    from einc_runtime.execution.ranks.watch import Watch
    from einc_runtime.execution.shared_buffers import SharedBuffers
    from einc_runtime.kernels.cuda.tuning import Tuning
    from einc_runtime.plan.ranks import Shares
    from einc_runtime.plan.schema import Bundle


PR_SET_PDEATHSIG = 1
"""The number of an operation of Linux."""

TASKS_PER_PLAN = 1 << 32
"""Tasks of a plan, where ranks run several plans and a number names a task of any of them."""

ENTRY = struct.Struct("=qq")
"""What the file has for every rank: its process, or 0 before it says anything; and the task that it has begun last."""

CONNECTING, CONNECTED = -2, -1
"""In the place of a task: what a rank does before it has begun one."""


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
        differing = [rank for rank, plan_hash in enumerate(hashes) if plan_hash != hashes[0]]
        if differing and self.reports:
            raise PlanFault(
                f"rank {differing[0]} has read another plan than rank 0", hint="give all ranks the same file"
            )
        if differing:
            _wait_for_the_end(failures.MISSING)

    def make_executor(self, bundle: Bundle, number: int = 0, common: SharedBuffers | None = None) -> RankExecutor:
        """An executor of the plan of this number; see `split_task`."""
        from einc_runtime.execution.ranks.cpu_part import make_cpu_executor

        def note(position: int) -> None:
            self.note_task(number * TASKS_PER_PLAN + position)

        told = note if number else self.note_task
        executor = make_cpu_executor(bundle, self.links, note_task=told, common=common, shares=self.shares)
        self.watch.look_at(executor.arrivals)
        return executor

    def uses_gpus(self, bundle: Bundle, backend: str) -> bool:
        """Whether a plan runs on GPUs with this backend: with auto, if it would on every rank alone."""
        from einc_runtime.execution.backends import uses_gpus

        return all(text == b"1" for text in self.links.share(b"%d" % uses_gpus(bundle, backend)))

    def make_gpu_executor(
        self,
        bundle: Bundle,
        devices: Sequence[int] | None,
        no_peer: str,
        tunings: Sequence[Tuning],
        kernel_folders: Sequence[Path],
    ) -> RankExecutor:
        """An executor of the plan on GPUs; see `execution.session.Session` for the arguments."""
        from einc_runtime.execution.backends import require_device_count
        from einc_runtime.execution.ranks.cuda_part import make_cuda_executor

        require_device_count(bundle, devices)
        executor = make_cuda_executor(
            bundle,
            self.links,
            devices,
            no_peer=no_peer,
            tunings=tunings,
            kernel_folders=kernel_folders,
            shares=self.shares,
            note_task=self.note_task,
        )
        self.watch.look_at(executor.arrivals)
        return executor

    def share_plans(self, make: Callable[[], Sequence[Bundle]]) -> list[Bundle]:
        """The plans that rank 0 makes, on all ranks."""
        from einc_runtime.plan.codec import decode, encode

        if self.reports:
            bundles = list(make())
            self.links.share(b"%d" % len(bundles))
            for bundle in bundles:
                self.links.share(encode(bundle))
            return bundles
        return [decode(self.links.share(b"")[0]) for _ in range(int(self.links.share(b"")[0]))]


def split_task(number: int) -> tuple[int, int]:
    """The number of a plan, and the position of a task in it."""
    return divmod(number, TASKS_PER_PLAN)


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

    board = environment.read(environment.RANKS)
    if board is not None:  # MPI waits forever for its own process on this machine, once that was killed
        end_with_parent(signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(failures.MISSING)
        _note_connecting(board)
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

    rank = mpi.read_rank(environment.copy_all())
    if rank is not None and os.path.isfile(path) and (rank + 1) * ENTRY.size <= os.path.getsize(path):
        with open(path, "r+b") as board:
            board.seek(rank * ENTRY.size)
            board.write(ENTRY.pack(os.getpid(), CONNECTING))


def _open_board(links: RankLinks) -> Any:
    """For every rank its process and the task that it has begun last, in a file that `start_ranks` made; or None."""
    import numpy as np

    path = environment.read(environment.RANKS)
    if path is None or not os.path.isfile(path) or os.path.getsize(path) != ENTRY.size * links.size:
        return None
    return np.memmap(path, np.int64, "r+", shape=(links.size, 2))


def _silence() -> int:
    """Only rank 0 prints results and notes. Returns where errors went, for the case that rank 0 is lost."""
    output.flush()
    errors, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2, output.results().fileno()):
        os.dup2(null, number)
    os.close(null)
    return errors


def _let_launcher_read() -> None:
    """Launchers that hear of an abort may drop what they have not read or passed on by then."""
    output.wait_for_readers(1.0)
    time.sleep(0.1)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Lets this process get a signal when the process that started it has been killed."""
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))


def _wait_for_the_end(code: int) -> None:
    """Waits until another rank has ended this one, or ends it."""
    from einc_runtime.execution.ranks.watch import LAST_RESORT

    time.sleep(LAST_RESORT)
    os._exit(code)
