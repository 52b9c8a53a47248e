"""Runs a task graph on a pool of threads: a task starts when its predecessors have ended, the most urgent first.

A worker takes the lock once per task, when it reports the end of one and picks the next. Others are woken only for
work that is worth it: waking a thread takes longer than a tiny task.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from time import perf_counter

from runtime.executors.base import Record
from runtime.executors.schedule import TaskGraph

TINY_NS = 20_000.0
"""Tasks below this time stay with the worker that made them ready."""

POLL = 0.2
"""Seconds after which the waiting thread looks for an interrupt that did not wake it."""

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

    `start_worker(w)` is called in worker w's thread and gives what runs a task there. The first error of a task stops
    all workers once their present tasks are done, and is raised as TaskError; so is an interrupt of the calling thread.
    """
    state = _State(graph)
    lanes: list[list[Record]] = [[] for _ in range(workers)]
    origin = perf_counter()
    state.begin()
    threads = [
        threading.Thread(
            target=state.work,
            args=(w, start_worker, None if records is None else lanes[w], origin),
            name=f"einc worker {w}",
            daemon=True,
        )
        for w in range(workers)
    ]
    try:
        for thread in threads:
            thread.start()
        while not state.over.wait(POLL):
            pass
    finally:
        state.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    seconds = perf_counter() - origin
    if state.error is not None:
        raise state.error from state.error.cause
    if records is not None:
        records.extend(record for lane in lanes for record in lane)
    return seconds


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
        self.changed = threading.Condition(threading.Lock())
        self.over = threading.Event()

    def begin(self) -> None:
        with self.changed:
            for number, count in enumerate(self.graph.predecessors):
                if count == 0:
                    self._release(number)
            if self.left == 0:
                self._finish()

    def stop(self) -> None:
        with self.changed:
            self._finish()

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
                self._finish()

    def _next(self, ended: int | None) -> int | None:
        """Reports the end of a task and takes the most urgent one that is ready; None when there is no more to do."""
        with self.changed:
            if ended is not None:
                self._end(ended)
            while not self.ready and not self.stopped:
                self.sleeping += 1
                self.changed.wait()
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
        self.over.set()
        self.changed.notify_all()
