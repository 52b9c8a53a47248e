"""Runs a task graph on a few threads: a task starts when its predecessors have ended, the most urgent task first.

The calling thread is one of the workers, so that a single worker needs no other thread, and work begins before any
thread has started. A worker takes the lock once per task, when it reports the end of one task and picks the next.
It wakes other workers only for larger tasks, since waking a thread takes longer than a tiny task.

Tasks that are messages to other processes take no worker. A thread of their own starts them and sees when they end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.cpu.messages import Carrier
from einc_runtime.execution.cpu.scheduler import THREADS, ThreadScheduler
from einc_runtime.execution.naps import BRIEF_NAP
from einc_runtime.execution.rewrites.kernel_splitting import MIN_PART_NS
from einc_runtime.kernels.llvm.schedules import ThreadProgress

START_NS = 2000.0
"""The time that it takes to start any task."""

POLL_SECONDS = 0.2
"""A waiting worker looks this often for an interrupt that did not wake it."""

RunTask = Callable[[int], ThreadProgress | None]
"""Runs a task, or a part of it: where it says that more is left, it is called again."""


@dataclass(frozen=True, slots=True)
class RankedTaskGraph:
    """For every task its successors, the number of its predecessors, estimated nanoseconds, and its rank.

    Of the tasks that are ready, the one with the highest rank starts first.
    """

    successors: tuple[tuple[int, ...], ...]
    predecessors: tuple[int, ...]
    nanoseconds: tuple[float, ...]
    ranks: tuple[float, ...]

    @staticmethod
    def of(
        after: Sequence[Sequence[int]],
        nanoseconds: Sequence[float],
        ranks: Sequence[float] | None = None,
    ) -> RankedTaskGraph:
        """From what every task waits for. Unless ranks are given, a task's rank is the longest chain after it."""
        successors: list[list[int]] = [[] for _ in after]
        for number, earlier_tasks in enumerate(after):
            for earlier in earlier_tasks:
                successors[earlier].append(number)
        if ranks is None:
            lengths = [0.0] * len(after)
            for number in range(len(after) - 1, -1, -1):
                longest = max((lengths[later] for later in successors[number]), default=0.0)
                lengths[number] = START_NS + nanoseconds[number] + longest
            ranks = lengths
        waits = tuple(map(len, after))
        return RankedTaskGraph(tuple(map(tuple, successors)), waits, tuple(nanoseconds), tuple(ranks))


class TaskError(Exception):
    """A task raised `cause`."""

    def __init__(self, task: int, cause: BaseException) -> None:
        super().__init__(f"task {task}: {cause}")
        self.task, self.cause = task, cause


def run_tasks(
    graph: RankedTaskGraph,
    workers: int,
    start_worker: Callable[[int], RunTask],
    records: list[TaskRecord] | None = None,
    scheduler: ThreadScheduler = THREADS,
    carrier: Carrier | None = None,
    halt: Callable[[], None] | None = None,
) -> float:
    """Runs every task once and returns seconds; the tasks of `carrier` are carried by it.

    `start_worker(w)` is called in worker w's thread and returns the function that runs a task there; worker 0 is the
    calling thread. There are no more workers than tasks. Where the system has no thread for a worker, those that
    there are do its work. The first error of a task stops all workers once their present tasks have ended, or have
    paused, and is raised as TaskError; one that is a TaskError stays the same. An interrupt of the calling thread
    stops them, too, and is raised as it is. `halt` is called when they stop: parts of a task that know of each other
    end then. When this function ends, no worker runs a task any more.
    """
    state = _PoolState(graph, scheduler, frozenset() if carrier is None else carrier.tasks, halt)
    logs: list[list[TaskRecord] | None] = [None if records is None else [] for _ in range(workers)]
    origin = scheduler.now()
    try:
        state.begin()
        if carrier is not None:
            try:
                scheduler.start(state.carry_beside, carrier)
            except RuntimeError as error:  # without this thread nothing would go on
                raise TaskError(-1, error) from error
        with suppress(RuntimeError):
            for worker in range(1, min(workers, len(graph.predecessors))):
                scheduler.start(state.work_beside, worker, start_worker, logs[worker], origin)
        state.work(0, start_worker, logs[0], origin)
    finally:
        try:
            state.end()
        except BaseException:  # an interrupt
            state.end()
            raise
    seconds = scheduler.now() - origin
    if state.error is not None:
        cause = state.error.cause
        raise (state.error if isinstance(cause, Exception) else cause) from cause
    if records is not None:
        records.extend(record for log in logs for record in log or ())
    return seconds


class _PoolState:
    """The state that the workers share, under one lock."""

    def __init__(
        self,
        graph: RankedTaskGraph,
        scheduler: ThreadScheduler,
        messages: frozenset[int],
        halt: Callable[[], None] | None,
    ) -> None:
        self.graph, self.now, self.sleep, self.halt = graph, scheduler.now, scheduler.sleep, halt
        self.messages = messages
        self.waiting = list(graph.predecessors)
        self.ready: list[tuple[float, int]] = []
        self.large = 0  # of the ready tasks
        self.left = len(graph.predecessors)
        self.sleeping = 0
        self.beside = 0  # threads that may run a task, the calling one not counted
        self.stopped = False
        self.error: TaskError | None = None
        self.changed = scheduler.make_monitor()
        self.posted: list[int] = []  # messages that are ready
        self.mail = scheduler.make_monitor()

    def begin(self) -> None:
        with self.changed:
            for number, count in enumerate(self.graph.predecessors):
                if count == 0:
                    self._release(number)
            if self.left == 0:
                self._finish()

    def stop(self) -> None:
        """Starts no more tasks; a worker that waits for one ends.

        An interrupt can come when this thread has just taken the lock and has not recorded that yet. Only this thread
        can release it then, and it can also take it again. So the lock is released as often as it was taken.
        """
        with self.changed:
            self._finish()
        self._let_go()

    def end(self) -> None:
        """Stops, and waits until no other thread runs a task. A thread that has not begun by then does nothing."""
        with self.changed:
            self._finish()
            while self.beside:
                self.changed.wait(POLL_SECONDS)
        self._let_go()

    def _let_go(self) -> None:
        with suppress(RuntimeError):  # not held any more
            while True:
                self.changed.release()

    def work_beside(
        self,
        worker: int,
        start_worker: Callable[[int], RunTask],
        log: list[TaskRecord] | None,
        origin: float,
    ) -> None:
        """Works in a thread of its own."""
        with self.changed:
            if self.stopped:
                return
            self.beside += 1
        try:
            self.work(worker, start_worker, log, origin)
        finally:
            with self.changed:
                self.beside -= 1
                self.changed.notify_all()

    def carry_beside(self, carrier: Carrier) -> None:
        """Carries messages in a thread of its own."""
        with self.changed:
            if self.stopped:
                return
            self.beside += 1
        try:
            self._carry(carrier)
        except BaseException as error:
            with self.changed:
                if self.error is None:
                    self.error = TaskError(-1, error)
            self.stop()
        finally:
            with self.changed:
                self.beside -= 1
                self.changed.notify_all()

    def _carry(self, carrier: Carrier) -> None:
        while not self.stopped:
            with self.mail:
                if not self.posted and not carrier.is_waiting:
                    self.mail.wait(POLL_SECONDS)
                posted, self.posted = self.posted, []
            for task in posted:
                carrier.start(task)
            ended = carrier.end_some()
            if ended:
                with self.changed:
                    for task in ended:
                        self._end(task)
                    if self.sleeping and self.ready:
                        self.changed.notify(len(self.ready))
            if carrier.is_waiting:
                carrier.nap(reset=bool(posted or ended))

    def work(
        self,
        worker: int,
        start_worker: Callable[[int], RunTask],
        log: list[TaskRecord] | None,
        origin: float,
    ) -> None:
        task: int | None = None
        try:
            run_task, now = start_worker(worker), self.now
            task = self._next(None)
            while task is not None:
                start = now()
                while progress := run_task(task):
                    if not self._goes_on(progress):
                        return
                if log is not None:
                    log.append((task, worker, start - origin, now() - origin))
                ended, task = task, None
                task = self._next(ended)
        except BaseException as error:
            with self.changed:
                if self.error is None and isinstance(error, TaskError):
                    self.error = error
                elif self.error is None:
                    self.error = TaskError(-1 if task is None else task, error)
            self.stop()

    def _goes_on(self, progress: ThreadProgress) -> bool:
        """Whether a worker goes on with its task, after a nap if that waits for others."""
        if progress is ThreadProgress.WAITING:
            self.sleep(BRIEF_NAP)
        with self.changed:
            return not self.stopped

    def _next(self, ended: int | None) -> int | None:
        """Reports the end of a task and takes the most urgent task that is ready; None when nothing is left to do."""
        with self.changed:
            if ended is not None:
                self._end(ended)
            while not self.ready and not self.stopped:
                self.sleeping += 1
                self.changed.wait(POLL_SECONDS)
                self.sleeping -= 1
            if self.stopped:
                return None
            _, task = heapq.heappop(self.ready)
            tiny = self.graph.nanoseconds[task] < MIN_PART_NS
            self.large -= not tiny
            if self.sleeping and self.ready and (self.large or not tiny):
                self.changed.notify(max(1, self.large))
            return task

    def _end(self, task: int) -> None:
        self.left -= 1
        for later in self.graph.successors[task]:
            self.waiting[later] -= 1
            if self.waiting[later] == 0:
                self._release(later)
        if self.left == 0:
            self._finish()

    def _release(self, task: int) -> None:
        """Makes a task ready: all its predecessors have ended."""
        if task in self.messages:
            with self.mail:
                self.posted.append(task)
                self.mail.notify()
            return
        heapq.heappush(self.ready, (-self.graph.ranks[task], task))
        self.large += self.graph.nanoseconds[task] >= MIN_PART_NS

    def _finish(self) -> None:
        self.stopped = True
        if self.halt is not None:
            self.halt()
        self.changed.notify_all()
        if self.messages:
            with self.mail:
                self.mail.notify()
