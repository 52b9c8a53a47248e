"""Runs plans on the CPU in a process of its own, with every arena between pages that nobody may touch.

So a plan that writes outside of its memory ends the process, and one that never ends is ended; both are told apart from
wrong results.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import resource
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import MissingFault, ReportedError
from einc_runtime.execution.cpu import executor, memory
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels.llvm import compiler
from einc_runtime.plan.schema import Bundle

MAX_SECONDS = 300
MAX_START = 300
"""Seconds for the runs of one mutant, some milliseconds each, and for the first run of a process, which has yet to
import what it needs: on a machine that others keep busy, too."""

MAX_MEMORY = 8 << 30
MAX_ARENA = 1 << 28
_SMALL = compiler.MIN_COMPILED_ELEMENTS
_CANARY, _NO_ACCESS = 0xA5, 0
_libc = ctypes.CDLL(None, use_errno=True)


class OutOfBounds(Exception):
    """Bytes around an arena have changed."""


class GuardedArenas:
    """Hands out memory in the place of `memory.allocate_aligned`: it begins after one forbidden page, and ends at most
    63 bytes, which `check` looks at, before another one."""

    def __init__(self) -> None:
        self._maps: list[tuple[mmap.mmap, int, int]] = []

    def allocate(self, size: int) -> Array:
        if size > MAX_ARENA:
            raise MissingFault(f"{size:,} bytes of memory are not available")
        page = mmap.PAGESIZE
        room = -(-size // page) * page
        area = mmap.mmap(-1, room + 2 * page)
        first = ctypes.addressof(ctypes.c_char.from_buffer(area))
        for start in (first, first + page + room):
            if _libc.mprotect(ctypes.c_void_p(start), page, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        begin = page + (room - size) // 64 * 64  # aligned, and as far back as possible
        whole = np.frombuffer(area, np.uint8, room, page)
        whole[:] = _CANARY
        self._maps.append((area, begin - page, begin - page + size))
        return whole[begin - page : begin - page + size]

    def check(self) -> None:
        """Raises OutOfBounds where bytes outside have changed."""
        for area, start, end in self._maps:
            room = np.frombuffer(area, np.uint8, len(area) - 2 * mmap.PAGESIZE, mmap.PAGESIZE)
            if (room[:start] != _CANARY).any() or (room[end:] != _CANARY).any():
                raise OutOfBounds


def run_plan(bundle: Bundle, steps: Sequence[Mapping[str, Array]], native: bool = False) -> dict[str, Array]:
    """The outputs of every step and the states after it, by `name_of_result`; unwritten memory holds NaNs.

    Each step loads what it has of inputs, weights and states, and begins with the states that the one before it left.
    With `native`, kernels of small blocks are compiled, too, where llvmlite is installed.
    """
    guarded = GuardedArenas()
    compiler.MIN_COMPILED_ELEMENTS = 0 if native else _SMALL
    memory.allocate_aligned = executor.allocate_aligned = guarded.allocate  # type: ignore[attr-defined]
    session = Session(bundle, executor=CpuExecutor(bundle, 1, poison=True))
    states = [tensor.name for tensor in session.states]
    wanted = {*session.missing, *states}
    results: dict[str, Array] = {}
    for number, arrays in enumerate(steps):
        session.load_all({name: array for name, array in arrays.items() if name in wanted})
        session.execute()
        for name in [tensor.name for tensor in session.outputs] + states:
            results[name_of_result(name, number)] = session.offload(name)
    guarded.check()
    return results


def name_of_result(name: str, step: int) -> str:
    """What an output or a state after a step is called among all results."""
    return f"{name} of step {step}"


class RunningProcess:
    """Runs one plan after another in a process that is started again when it has died.

    It is not forked: the threads of this process, such as that which compiles kernels, would be missing there.
    """

    def __init__(self) -> None:
        self._process: Any = None
        self._started = False
        self._pipe: Connection

    def run(self, bundle: Bundle, steps: Sequence[Mapping[str, Array]], native: bool = False) -> dict[str, Array] | str:
        """The results of all steps, or in words what happened: `refused: ...`, `failed: ...`, `hung` or `died: ...`."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send((bundle, list(map(dict, steps)), native))
            if self._pipe.poll(MAX_SECONDS if self._started else MAX_START):
                self._started = True
                answer: dict[str, Array] | str = self._pipe.recv()
                return answer
            answer = f"hung: no result after {MAX_SECONDS} s"
        except (EOFError, ConnectionError):
            self._process.join(1)
            answer = f"died: exit code {self._process.exitcode}"
        self.stop()
        return answer

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process, self._started = None, False

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()


def _serve(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            bundle, steps, native = pipe.recv()
        except EOFError:
            return
        try:
            answer: dict[str, Array] | str = run_plan(bundle, steps, native)
        except OutOfBounds:
            answer = "died: it wrote outside of its memory"
        except ReportedError as error:
            known = "refused" if error.exit_code != 70 else "failed"
            answer = f"{known}: {error.code}: {error.message}"
        except Exception as error:
            answer = f"failed: {type(error).__name__}: {error}"
        pipe.send(answer)
