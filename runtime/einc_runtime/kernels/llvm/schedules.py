"""Tasks that several threads run without the interpreter between them.

A short kernel takes a few microseconds. To start it from Python, and to wake a thread that waits for it, takes longer.
So machine code of its own goes through the tasks of a schedule: each thread takes the first one in a fixed order that
is ready, and makes its calls. While none is ready, it reads numbers in memory again and again. A thread returns to the
interpreter for a task that needs it, after a long task, so that its caller can look for an interrupt, and when it has
waited for a while, so that its caller can sleep. It holds no task then: who ends a task can always take what waited for
it. The order names every task after all that it waits for. So threads never wait for each other in a circle.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address
from einc_runtime.kernels.llvm import compiler


class MachineCall(Protocol):
    """A call that needs no interpreter."""

    @property
    def places(self) -> tuple[int, int]:
        """The addresses of a function, which takes the address of its arguments and returns 0, and of these."""

    @property
    def fail(self) -> Any:
        """Raises what is wrong where the function returned something else."""


class ThreadProgress(IntEnum):
    """What a thread has come to. It is called again after all but the first and the last."""

    ENDED = 0
    """All tasks are taken; others may still run theirs."""
    PAUSED = 1
    """It has ended a task."""
    WAITING = 2
    """The next tasks wait for others, and have for some time."""
    CALLING = 3
    """It has taken a task that needs the interpreter; it is done when the thread is called again."""
    FAILED = 4
    """A call has failed."""


class CallError(Exception):
    """A call of the task that has this number raised `cause`."""

    def __init__(self, task: int, cause: BaseException) -> None:
        super().__init__(f"task {task}: {cause}")
        self.task, self.cause = task, cause


WINDOW = 32
"""Tasks from the first that is not taken, among which a thread looks for one that is ready."""
SPINS, _LESS_SPINS = 1500, 20
"""How often a thread looks before it returns, for some tenths of a millisecond, and how often when it has returned so
and comes again: others may need the core."""

_LINE = 8
"""Integers in a line of the cache: what different threads write lies in different lines."""
_SPINS_LEFT, _ALL_SPINS, _HELD, _FAILED = range(4)  # what a thread keeps: `_HELD` is a task for the interpreter, from 1


class CompiledSchedule:
    """Tasks in an order in which they may be taken. `waits` names for each the earlier ones that it waits for, and
    `called` says which need the interpreter. A thread returns after those that `pauses` names, and when it has looked
    `spins` times. For `threads` threads, which have calls of their own for each task."""

    def __init__(
        self,
        waits: Sequence[Sequence[int]],
        called: Sequence[bool],
        pauses: Sequence[bool],
        threads: int,
        spins: int = SPINS,
    ) -> None:
        ends = np.array([0, *itertools.accumulate(map(len, waits))], np.int64)
        needed = np.array([*itertools.chain.from_iterable(waits), 0], np.int64)
        self._first, self._run = np.zeros(_LINE, np.int64), np.zeros(_LINE, np.int64)
        taken, ended = np.zeros((2, len(waits)), np.int64)
        self._own, self._fresh = np.zeros((2, threads, _LINE), np.int64)
        self._fresh[:, [_SPINS_LEFT, _ALL_SPINS]] = spins
        kinds = np.array(called, np.int64), np.array(pauses, np.int64)
        self._shared = (self._first, self._run, taken, ended, ends, needed, *kinds)
        self._threads: list[_Thread | None] = [None] * threads

    def begin(self) -> None:
        """Begins a run of all tasks. No thread may be in an earlier one any more."""
        self._first[0] = 0
        self._run[0] += 1
        self._own[...] = self._fresh

    def has_calls(self, thread: int) -> bool:
        """Whether the calls of a thread are known."""
        return self._threads[thread] is not None

    def set_calls(self, thread: int, calls: Sequence[Sequence[MachineCall]]) -> None:
        """Says which calls a thread makes for every task."""
        self._threads[thread] = _Thread(calls, (self._own[thread], *self._shared))

    def run(self, thread: int) -> ThreadProgress:
        """Takes tasks and runs them in a thread, whose calls are known. Raises CallError where one fails."""
        own = self._threads[thread]
        assert own is not None
        progress = ThreadProgress(own.function(own.arguments))
        if progress is ThreadProgress.FAILED:
            number = int(self._own[thread, _FAILED])
            try:
                own.calls[number].fail()
                raise RuntimeError("machine code failed")
            except BaseException as error:
                raise CallError(own.owners[number], error) from error
        return progress

    def called_task(self, thread: int) -> int:
        """The task that a thread has taken for the interpreter."""
        return int(self._own[thread, _HELD]) - 1


class _Thread:
    """A thread of a schedule: its function, the address of its arguments, and its calls with the tasks to which they
    belong."""

    __slots__ = ("_kept", "arguments", "calls", "function", "owners")

    def __init__(self, calls: Sequence[Sequence[MachineCall]], shared: Sequence[Array]) -> None:
        self.calls = [call for own in calls for call in own]
        self.owners = [task for task, own in enumerate(calls) for _ in own]
        ends = np.array([0, *itertools.accumulate(map(len, calls))], np.int64)
        table = np.array([call.places for call in self.calls] or [(0, 0)], np.int64)
        tables = (*shared, ends, table)
        arguments = np.array([len(calls), *map(address, tables)], np.int64)
        self.function, self.arguments = _emit_schedule().result(), address(arguments)
        self._kept = (arguments, tables)


@compiler.compile_once
def _emit_schedule() -> Any:
    """What a thread does: see `CompiledSchedule`. Its arguments are the number of tasks, and the addresses of what the
    thread keeps, the first task that is not taken, the number of the run, the run in which every task was last taken,
    and ended, where the waits of every task end, the waits, which tasks need the interpreter, after which a thread
    pauses, where the calls of every task end, and the calls."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import I64, Emitter

    e = Emitter()
    b = e.b
    count, own, first, runs, taken, ended, wait_ends, waits, called, pauses, call_ends, calls = (
        e.argument() for _ in range(12)
    )
    integer = I64.as_pointer()
    kind = ir.FunctionType(I64, [integer])
    first, taken, ended = (b.inttoptr(place, integer) for place in (first, taken, ended))
    run, spins = e.read(runs, I64(0), I64), e.variable(e.read(own, I64(_SPINS_LEFT), I64))
    all_spins = e.read(own, I64(_ALL_SPINS), I64)

    def finish(progress: ThreadProgress) -> None:
        b.ret(I64(int(progress)))

    def end(task: Any) -> None:
        b.store_atomic(run, b.gep(ended, [task]), "release", 8)

    held = e.read(own, I64(_HELD), I64)
    with b.if_then(b.icmp_signed("!=", held, I64(0))):
        end(b.sub(held, I64(1)))
        e.put(own, I64(_HELD), I64(0))
    look = b.append_basic_block("look")
    b.branch(look)

    b.position_at_end(look)
    start = b.load_atomic(first, "monotonic", 8)
    with b.if_then(b.icmp_signed(">=", start, count), likely=False):
        finish(ThreadProgress.ENDED)
    window = b.add(start, I64(WINDOW))
    stop = b.select(b.icmp_signed("<", window, count), window, count)
    with e.span(start, stop) as task:
        following = b.append_basic_block("following")
        place = b.gep(taken, [task])
        last = b.load_atomic(place, "monotonic", 8)
        with b.if_then(b.icmp_signed("==", last, run)):
            with b.if_then(b.icmp_signed("==", task, start)):
                b.cmpxchg(first, start, b.add(start, I64(1)), "monotonic", "monotonic")
                b.branch(look)
            b.branch(following)
        with e.span(e.read(wait_ends, task, I64), e.read(wait_ends, b.add(task, I64(1)), I64)) as wait:
            needed = b.gep(ended, [e.read(waits, wait, I64)])
            with b.if_then(b.icmp_signed("!=", b.load_atomic(needed, "acquire", 8), run)):
                b.branch(following)
        own_task = b.extract_value(b.cmpxchg(place, last, run, "monotonic", "monotonic"), 1)
        with b.if_then(own_task):
            b.store(all_spins, spins)
            e.put(own, I64(_SPINS_LEFT), all_spins)
            with b.if_then(b.icmp_signed("!=", e.read(called, task, I64), I64(0)), likely=False):
                e.put(own, I64(_HELD), b.add(task, I64(1)))
                finish(ThreadProgress.CALLING)
            with e.span(e.read(call_ends, task, I64), e.read(call_ends, b.add(task, I64(1)), I64)) as call:
                entry = b.mul(call, I64(2))
                code, arguments = e.read(calls, entry, I64), e.read(calls, b.add(entry, I64(1)), I64)
                status = b.call(b.inttoptr(code, kind.as_pointer()), [b.inttoptr(arguments, integer)])
                with b.if_then(b.icmp_signed("!=", status, I64(0)), likely=False):
                    e.put(own, I64(_FAILED), call)
                    finish(ThreadProgress.FAILED)
            end(task)
            with b.if_then(b.icmp_signed("!=", e.read(pauses, task, I64), I64(0)), likely=False):
                finish(ThreadProgress.PAUSED)
            b.branch(look)
        b.branch(following)
        b.position_at_end(following)
    e.relax()
    b.store(b.sub(b.load(spins), I64(1)), spins)
    with b.if_then(b.icmp_signed("<", b.load(spins), I64(0)), likely=False):
        e.put(own, I64(_SPINS_LEFT), I64(_LESS_SPINS))
        finish(ThreadProgress.WAITING)
    b.branch(look)
    return e.module
