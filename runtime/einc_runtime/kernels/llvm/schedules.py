"""Tasks that several threads run without the interpreter between them.

A short kernel takes a few microseconds. To start it from Python, and to wake a thread that waits for it, takes longer.
So machine code of its own goes through the tasks of a schedule: each thread takes the first one in a fixed order that
is ready, and makes its calls. While none is ready, it reads numbers in memory again and again, and then sleeps for
moments. A thread returns to the interpreter for a task that needs it, and when it has waited for long. The first
thread, whose caller looks for interrupts, also returns after a long task. None of them holds a task then: who ends a
task can always take what waited for it. The order names every task after all that it waits for. So threads never wait
for each other in a circle.

Threads return no more often than that because only one of them can have the interpreter: the other one sleeps, and
systems often wake it on the core of the one that it waited for, behind it, for some milliseconds.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any, Protocol

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.compiler import CompiledCall
from einc_runtime.kernels.numpy.onednn import OnednnCall


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
"""How often a thread looks before it sleeps, for some tenths of a millisecond, and how often when it has slept: others
may need the core."""
NAPS, _NAP_MICROSECONDS = 200, 50
"""How often a thread sleeps before it returns, for some 20 milliseconds together, and for how long at a time."""

_CACHE_LINE_INTEGERS = 8
"""Integers in a line of the cache: what different threads write lies in different lines."""
_SPINS_LEFT, _ALL_SPINS, _NAPS, _HELD, _FAILED = range(5)
"""What a thread keeps; `_HELD` is a task for the interpreter, from 1."""


class CompiledSchedule:
    """Tasks in an order in which they may be taken. `waits` names for each the earlier ones that it waits for, and
    `called` says which need the interpreter. A thread sleeps when it has looked `spins` times, and returns when it has
    slept `naps` times; the first one also returns after those that `pauses` names. For `threads` threads, which have
    calls of their own for each task."""

    def __init__(
        self,
        waits: Sequence[Sequence[int]],
        called: Sequence[bool],
        pauses: Sequence[bool],
        threads: int,
        spins: int = SPINS,
        naps: int = NAPS,
    ) -> None:
        ends = np.array([0, *itertools.accumulate(map(len, waits))], np.int64)
        needed = np.array([*itertools.chain.from_iterable(waits), 0], np.int64)
        self._first, self._run = np.zeros(_CACHE_LINE_INTEGERS, np.int64), np.zeros(_CACHE_LINE_INTEGERS, np.int64)
        taken, ended = np.zeros((2, len(waits)), np.int64)
        self._states, self._fresh = np.zeros((2, threads, _CACHE_LINE_INTEGERS), np.int64)
        self._fresh[:, [_SPINS_LEFT, _ALL_SPINS]] = spins
        self._fresh[:, _NAPS] = naps if _find_sleep() else 0
        self._pauses = np.zeros((2, len(waits)), np.int64)  # of the other threads, and of the first one
        self._pauses[1] = pauses
        self._shared = (self._first, self._run, taken, ended, ends, needed, np.array(called, np.int64))
        self._threads: list[_Thread | None] = [None] * threads

    def begin(self) -> None:
        """Begins a run of all tasks. No thread may be in an earlier one any more."""
        self._first[0] = 0
        self._run[0] += 1
        self._states[...] = self._fresh

    def stop(self) -> None:
        """Takes all tasks that are left, so that threads end with those that they run."""
        self._first[0] = len(self._pauses[0])

    def has_calls(self, thread: int) -> bool:
        """Whether the calls of a thread are known."""
        return self._threads[thread] is not None

    def set_calls(self, thread: int, calls: Sequence[Sequence[MachineCall]]) -> None:
        """Says which calls a thread makes for every task."""
        self._threads[thread] = _Thread(calls, (self._states[thread], *self._shared, self._pauses[int(thread == 0)]))

    def run(self, thread: int) -> ThreadProgress:
        """Takes tasks and runs them in a thread, whose calls are known. Raises CallError where one fails."""
        machine_thread = self._threads[thread]
        assert machine_thread is not None
        progress = ThreadProgress(machine_thread.function(machine_thread.arguments))
        if progress is ThreadProgress.FAILED:
            number = int(self._states[thread, _FAILED])
            try:
                machine_thread.calls[number].fail()
                raise RuntimeError("machine code failed")
            except BaseException as error:
                raise CallError(machine_thread.owners[number], error) from error
        return progress

    def called_task(self, thread: int) -> int:
        """The task that a thread has taken for the interpreter."""
        return int(self._states[thread, _HELD]) - 1


class _Thread:
    """A thread of a schedule: its function, the address of its arguments, and its calls with the tasks to which they
    belong."""

    __slots__ = ("_kept", "arguments", "calls", "function", "owners")

    def __init__(self, calls: Sequence[Sequence[MachineCall]], shared: Sequence[Array]) -> None:
        self.calls = [call for calls_of_task in calls for call in calls_of_task]
        self.owners = [task for task, calls_of_task in enumerate(calls) for _ in calls_of_task]
        ends = np.array([0, *itertools.accumulate(map(len, calls))], np.int64)
        table = np.array([call.places for call in self.calls] or [(0, 0)], np.int64)
        tables = (*shared, ends, table)
        arguments = np.array([len(calls), _find_sleep(), *map(address, tables)], np.int64)
        self.function, self.arguments = _emit_schedule().result(), address(arguments)
        self._kept = (arguments, tables)


@cache
def _find_sleep() -> int:
    """The address of the system's function that sleeps for some microseconds, or 0 where there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, TypeError):  # on Windows
        return 0


@compiler.compile_once
def _emit_schedule() -> Any:
    """What a thread does: see `CompiledSchedule`. Its arguments are the number of tasks, and the addresses of a
    function that sleeps, what the thread keeps, the first task that is not taken, the number of the run, the run in
    which every task was last taken, and ended, where the waits of every task end, the waits, which tasks need the
    interpreter, after which a thread pauses, where the calls of every task end, and the calls."""
    from llvmlite import binding, ir

    from einc_runtime.kernels.llvm.emitter import I32, I64, Emitter

    e = Emitter()
    b = e.b
    count, sleep, thread_state, first, runs, taken, ended, wait_ends, waits, called, pauses, call_ends, calls = (
        e.argument() for _ in range(13)
    )
    integer = I64.as_pointer()
    kind = ir.FunctionType(I64, [integer])
    first, taken, ended = (b.inttoptr(address, integer) for address in (first, taken, ended))
    run, spins = e.read(runs, I64(0), I64), e.variable(e.read(thread_state, I64(_SPINS_LEFT), I64))
    all_spins, all_naps = (e.read(thread_state, I64(address), I64) for address in (_ALL_SPINS, _NAPS))
    naps = e.variable(all_naps)

    def finish(progress: ThreadProgress) -> None:
        b.ret(I64(int(progress)))

    def end(task: Any) -> None:
        b.store_atomic(run, b.gep(ended, [task]), "release", 8)

    held = e.read(thread_state, I64(_HELD), I64)
    with b.if_then(b.icmp_signed("!=", held, I64(0))):
        end(b.sub(held, I64(1)))
        e.put(thread_state, I64(_HELD), I64(0))
    look = b.append_basic_block("look")
    b.branch(look)

    b.position_at_end(look)
    start = b.load_atomic(first, "monotonic", 8)
    with b.if_then(b.icmp_signed(">=", start, count), likely=False):
        finish(ThreadProgress.ENDED)
    window = b.add(start, I64(WINDOW))
    stop = e.least(window, count)
    with e.span(start, stop) as task:
        following = b.append_basic_block("following")
        address = b.gep(taken, [task])
        last = b.load_atomic(address, "monotonic", 8)
        with b.if_then(b.icmp_signed("==", last, run)):
            with b.if_then(b.icmp_signed("==", task, start)):
                b.cmpxchg(first, start, b.add(start, I64(1)), "monotonic", "monotonic")
                b.branch(look)
            b.branch(following)
        with e.span(e.read(wait_ends, task, I64), e.read(wait_ends, b.add(task, I64(1)), I64)) as wait:
            needed = b.gep(ended, [e.read(waits, wait, I64)])
            with b.if_then(b.icmp_signed("!=", b.load_atomic(needed, "acquire", 8), run)):
                b.branch(following)
        own_task = b.extract_value(b.cmpxchg(address, last, run, "monotonic", "monotonic"), 1)
        with b.if_then(own_task):
            b.store(all_spins, spins)
            b.store(all_naps, naps)
            e.put(thread_state, I64(_SPINS_LEFT), all_spins)
            with b.if_then(b.icmp_signed("!=", e.read(called, task, I64), I64(0)), likely=False):
                e.put(thread_state, I64(_HELD), b.add(task, I64(1)))
                finish(ThreadProgress.CALLING)
            with e.span(e.read(call_ends, task, I64), e.read(call_ends, b.add(task, I64(1)), I64)) as call:
                entry = b.mul(call, I64(2))
                code, arguments = e.read(calls, entry, I64), e.read(calls, b.add(entry, I64(1)), I64)
                status = b.call(b.inttoptr(code, kind.as_pointer()), [b.inttoptr(arguments, integer)])
                with b.if_then(b.icmp_signed("!=", status, I64(0)), likely=False):
                    e.put(thread_state, I64(_FAILED), call)
                    finish(ThreadProgress.FAILED)
            end(task)
            with b.if_then(b.icmp_signed("!=", e.read(pauses, task, I64), I64(0)), likely=False):
                finish(ThreadProgress.PAUSED)
            b.branch(look)
        b.branch(following)
        b.position_at_end(following)
    triple = binding.get_default_triple()
    if triple.startswith("x86_64"):
        e.intrinsic("llvm.x86.sse2.pause", ir.VoidType())  # this loop waits for another thread
    elif triple.startswith(("aarch64", "arm64")):
        e.intrinsic("llvm.aarch64.isb", ir.VoidType(), I32(15))  # the same, for as long as the pipeline takes to empty
    b.store(b.sub(b.load(spins), I64(1)), spins)
    with b.if_then(b.icmp_signed("<", b.load(spins), I64(0)), likely=False):
        with b.if_then(b.icmp_signed("==", b.load(naps), I64(0))):
            e.put(thread_state, I64(_SPINS_LEFT), I64(_LESS_SPINS))
            finish(ThreadProgress.WAITING)
        b.store(b.sub(b.load(naps), I64(1)), naps)
        b.store(I64(_LESS_SPINS), spins)
        sleeper = ir.FunctionType(I32, [I32]).as_pointer()
        b.call(b.inttoptr(sleep, sleeper), [I32(_NAP_MICROSECONDS)])
    b.branch(look)
    return e.module


class LibraryCall:
    """Makes the same call, of which it keeps all that the call needs. See `MachineCall`.

    It is made in a thread for which oneDNN's settings were said (`onednn.limit_threads`).
    """

    __slots__ = ("_kept", "fail", "places")

    def __init__(self, call: OnednnCall) -> None:
        compiled = CompiledCall(_emit_call(), [*call.numbers])
        self.places, self.fail, self._kept = compiled.places, call.fail, (call, compiled)


@compiler.compile_once
def _emit_call() -> Any:
    """Arguments: the address of a function that takes two addresses, a count and an address, and these. What it returns
    is the status."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import I32, I64, Emitter

    e = Emitter()
    function, primitive, stream, count, arguments = (e.argument() for _ in range(5))
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(I32, [pointer, pointer, I32, pointer])
    operands = [e.b.inttoptr(operand, pointer) for operand in (primitive, stream, arguments)]
    operands.insert(2, e.b.trunc(count, I32))
    e.b.ret(e.b.sext(e.b.call(e.b.inttoptr(function, kind.as_pointer()), operands), I64))
    return e.module
