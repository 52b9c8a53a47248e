"""Runs a task graph on a few threads: a task starts when its predecessors have ended, the most urgent first.

The calling thread is one of them, so that a single worker needs no other, and nobody waits for a thread to start. A
worker takes the lock once per task, when it reports the end of one and picks the next. Others are woken only for
work that is worth it: waking a thread takes longer than a tiny task.
"""

from __future__ import annotations

import _thread
import heapq
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

from einc_runtime.execution.base import Record
from einc_runtime.execution.cpu.schedule import TaskGraph

TINY_NS = 20_000.0
"""Tasks below this time stay with the worker that made them ready."""

POLL = 0.2
"""Seconds after which a waiting worker looks for an interrupt that did not wake it."""

RunTask = Callable[[int], None]


class TaskError(Exception):
    """A task raised `cause`."""

    def __init__(self, task: int, cause: BaseException) -> None:
        super().__init__(f"task {task}: {cause}")
        self.task, self.cause = task, cause


def run(
    graph: TaskGraph,
    workers: int,
    start_worker: Callable[[int], RunTask],
    records: list[Record] | None = None,
) -> float:
    """Runs every task once and returns seconds.

    `start_worker(w)` is called in worker w's thread and gives what runs a task there; worker 0 is the calling thread.
    The first error of a task stops all workers once their present tasks are done, and is raised as TaskError. An
    interrupt of the calling thread stops them, too, and is raised as it is.
    """
    state = _State(graph)
    lanes: list[list[Record] | None] = [None if records is None else [] for _ in range(workers)]
    origin = perf_counter()
    state.begin()
    helpers: list[threading.Lock] = []
    try:
        for worker in range(1, workers):
            helpers.append(_started(state.work, worker, start_worker, lanes[worker], origin))
        state.work(0, start_worker, lanes[0], origin)
    finally:
        state.stop()
        for ended in helpers:
            ended.acquire()
    seconds = perf_counter() - origin
    if state.error is not None:
        cause = state.error.cause
        raise (state.error if isinstance(cause, Exception) else cause) from cause
    if records is not None:
        records.extend(record for lane in lanes for record in lane or ())
    return seconds


def _started(function: Callable[..., None], *arguments: object) -> threading.Lock:
    """Calls a function in a new thread, without waiting for it to start; the lock is free when it has ended."""
    ended = threading.Lock()
    ended.acquire()

    def work() -> None:
        try:
            function(*arguments)
        finally:
            ended.release()

    _thread.start_new_thread(work, ())
    return ended


class _State:
    """What the workers share, under one lock."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.waiting = list(graph.predecessors)
        self.ready: list[tuple[float, int]] = []
        self.large = 0  # of the ready tasks
        self.left = len(graph.predecessors)
        self.sleeping = 0
        self.stopped = False
        self.error: TaskError | None = None
        self.changed = threading.Condition(threading.RLock())

    def begin(self) -> None:
        with self.changed:
            for number, count in enumerate(self.graph.predecessors):
                if count == 0:
                    self._release(number)
            if self.left == 0:
                self._finish()

    def stop(self) -> None:
        """No more tasks are started; whoever waits for one ends.

        An interrupt can come when this thread has the lock and does not know it yet. The lock may be taken again by the
        thread that has it, and nobody but this thread can give it back: so it is given back as often as it was taken.
        """
        with self.changed:
            self._finish()
        with suppress(RuntimeError):  # not held any more
            while True:
                self.changed.release()

    def work(
        self, worker: int, start_worker: Callable[[int], RunTask], lane: list[Record] | None, origin: float
    ) -> None:
        task: int | None = None
        try:
            run_task = start_worker(worker)
            task = self._next(None)
            while task is not None:
                if lane is None:
                    run_task(task)
                else:
                    start = perf_counter()
                    run_task(task)
                    lane.append((task, worker, start - origin, perf_counter() - origin))
                task = self._next(task)
        except BaseException as error:
            with self.changed:
                if self.error is None:
                    self.error = TaskError(-1 if task is None else task, error)
            self.stop()

    def _next(self, ended: int | None) -> int | None:
        """Reports the end of a task and takes the most urgent one that is ready; None when there is no more to do."""
        with self.changed:
            if ended is not None:
                self._end(ended)
            while not self.ready and not self.stopped:
                self.sleeping += 1
                self.changed.wait(POLL)
                self.sleeping -= 1
            if self.stopped:
                return None
            _, task = heapq.heappop(self.ready)
            tiny = self.graph.nanoseconds[task] < TINY_NS
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
        """All predecessors have ended."""
        heapq.heappush(self.ready, (-self.graph.ranks[task], task))
        self.large += self.graph.nanoseconds[task] >= TINY_NS

    def _finish(self) -> None:
        self.stopped = True
        self.changed.notify_all()
