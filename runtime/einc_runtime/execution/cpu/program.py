"""The tasks of a plan as threads run them where none is recorded alone: machine code from task to task.

A thread comes back to the interpreter for tasks that are calls of numpy, or of libraries other than oneDNN.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from einc_runtime.execution.cpu.thread_pool import START_NS, RankedTaskGraph, RunTask, TaskError
from einc_runtime.kernels.base import Run
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.compiler import CompiledCall
from einc_runtime.kernels.llvm.schedules import (
    NAPS,
    SPINS,
    CallError,
    CompiledSchedule,
    LibraryCall,
    MachineCall,
    ThreadProgress,
)
from einc_runtime.kernels.numpy.onednn import OnednnCall
from einc_runtime.kernels.numpy.pieces import CallSequence
from einc_runtime.kernels.numpy.prepacking import PrepackedProduct

PAUSE_NS = 5e6
"""The first thread returns to the interpreter about as often as this, which looks for interrupts then."""

MIN_SHARE_NS = 100_000.0
"""What each worker should have to do: until another thread of a virtual machine has woken, 0.1 ms pass (on an Intel
Xeon, family 6, model 167, two threads are as fast as one where this takes 0.2 ms)."""

BindTask = Callable[[int, int], Run]
"""Worker, task -> what runs the task in this worker."""


class CpuProgram:
    """All tasks of a graph, for workers of which each takes a share of them. Nodes of its own graph are these shares.

    `after` are the earlier tasks that each one waits for. Tasks are bound by the workers that run them, when they first
    do. `calls` are those of worker 0, as `find_machine_calls` gives them. A worker sleeps when it has looked `spins`
    times for a task, and comes back to the interpreter when it has slept `naps` times.
    """

    def __init__(
        self,
        graph: RankedTaskGraph,
        after: Sequence[Sequence[int]],
        calls: Sequence[list[MachineCall] | None],
        workers: int,
        bind: BindTask,
        spins: int = SPINS,
        naps: int = NAPS,
    ) -> None:
        total = sum(graph.nanoseconds) + START_NS * len(after)
        shares = max(1, min(workers, int(total / MIN_SHARE_NS)))
        self._tasks = order_tasks(graph, shares)
        places = {task: position for position, task in enumerate(self._tasks)}
        waits = [[places[earlier] for earlier in after[task]] for task in self._tasks]
        self._called = [calls[task] is None for task in self._tasks]
        self.needs_interpreter = any(self._called)
        """Whether a task is not machine code."""
        self.calls_onednn = any(
            isinstance(call, LibraryCall) for calls_of_task in calls for call in calls_of_task or ()
        )
        """Whether machine code calls oneDNN, for which each thread has a setting."""
        passed, pauses = 0.0, []
        for task in self._tasks:
            passed += graph.nanoseconds[task]
            pauses.append(passed >= PAUSE_NS)
            passed = 0.0 if pauses[-1] else passed
        self._schedule = CompiledSchedule(waits, self._called, pauses, workers, spins, naps)
        self._schedule.set_calls(0, [calls[task] or [] for task in self._tasks])
        self._graph, self._bind = RankedTaskGraph.of([()] * shares, [total / shares] * shares), bind

    def begin(self) -> RankedTaskGraph:
        """Begins a run of all tasks, by what `make_runner` makes."""
        self._schedule.begin()
        return self._graph

    def stop(self) -> None:
        """Ends a run early: workers end with the tasks that they run."""
        self._schedule.stop()

    def make_runner(self, worker: int) -> RunTask:
        """What runs a share of the tasks in a worker; it raises TaskError."""
        schedule, tasks = self._schedule, self._tasks
        if not schedule.has_calls(worker):
            calls_of_tasks = [
                None if called else find_machine_calls(self._bind, worker, task)
                for called, task in zip(self._called, tasks, strict=True)
            ]
            if any(calls is None and not called for calls, called in zip(calls_of_tasks, self._called, strict=True)):
                raise RuntimeError("a task is machine code for the first worker alone")
            schedule.set_calls(worker, [calls or [] for calls in calls_of_tasks])

        def run_share(_: int) -> ThreadProgress:
            try:
                progress = schedule.run(worker)
            except CallError as error:
                raise TaskError(tasks[error.task], error.cause) from error.cause
            if progress is ThreadProgress.CALLING:
                task = tasks[schedule.called_task(worker)]
                try:
                    self._bind(worker, task)()
                except BaseException as error:
                    raise TaskError(task, error) from error
            return progress

        return run_share


def find_machine_calls(bind: BindTask, worker: int, task: int) -> list[MachineCall] | None:
    """The calls that make a task in a worker, in their order; None where one of them needs the interpreter. Raises
    TaskError where it cannot be bound."""
    try:
        return _list_machine_calls(bind(worker, task))
    except Exception as error:
        raise TaskError(task, error) from error


def _list_machine_calls(run: Any) -> list[MachineCall] | None:
    if isinstance(run, PrepackedProduct):
        return _list_machine_calls(run.choose())
    if isinstance(run, CompiledCall):
        return [run]
    if isinstance(run, OnednnCall) and compiler.is_available():
        return [LibraryCall(run)]
    if not isinstance(run, CallSequence):
        return None
    machine_calls: list[MachineCall] = []
    for function, arguments in run.calls:
        calls = None if arguments else _list_machine_calls(function)
        if calls is None:
            return None
        machine_calls += calls
    return machine_calls


def order_tasks(graph: RankedTaskGraph, workers: int) -> list[int]:
    """The tasks in the order in which so many workers would start them: of those that are ready, always the one with
    the highest rank."""
    waiting = list(graph.predecessors)
    ready = [(-graph.ranks[task], task) for task, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    order, now = [], 0.0
    while ready or running:
        while ready and len(running) < workers:
            task = heapq.heappop(ready)[1]
            order.append(task)
            heapq.heappush(running, (now + graph.nanoseconds[task], task))
        now, ended = heapq.heappop(running)
        for later in graph.successors[ended]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, (-graph.ranks[later], later))
    return order
