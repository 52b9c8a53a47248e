"""A world of the executor: one plan, some workers, an order of everything, and perhaps one fault."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cpu import host
from einc_runtime.execution.cpu.memory import allocate_aligned
from einc_runtime.kernels.llvm import compiler
from tests.worlds.plans import HANDMADE, PreparedPlan, SimulatedExecutor, count_plans, make_plan
from tests.worlds.simulation import Finding, SimulatedScheduler

FAULTS = (
    "none",
    "none",
    "none",
    "none",
    "failure",
    "memory",
    "allocation",
    "interrupt",
    "interrupt",
    "signal",
    "threads",
)
TIMES = (100.0, 100.0, 30_000.0, 1e6)


def needs_compiler(seed: int) -> bool:
    """Whether the world of a seed runs a plan of the compiler, which takes a while to prepare."""
    return seed % 16 == 15


class ExecutorWorlds:
    """Runs worlds; what is prepared is shared between them."""

    def __init__(self) -> None:
        self.scheduler = SimulatedScheduler()
        self._prepared: dict[tuple[int, int], PreparedPlan] = {}
        self.after: Callable[[SimulatedExecutor], Any] = lambda executor: executor.after  # tests drop dependencies

    def run(self, seed: int) -> str:
        """Runs the world of a seed and says which fault it had. Raises Finding."""
        rng = random.Random(seed)
        compiled = needs_compiler(seed)
        number = rng.randrange(HANDMADE, count_plans()) if compiled else rng.randrange(HANDMADE)
        workers = rng.choice((1, 2, 2, 3, 4, 5))
        fault = rng.choice(FAULTS)
        if fault == "allocation" and rng.random() < 0.9:  # which takes long: an executor is made anew
            fault = "none"
        if fault == "allocation":
            self._run_short_of_memory(rng, number, workers)
            return fault
        prepared = self._prepare(number, workers)
        executor, scheduler = prepared.executor, self.scheduler
        tasks = len(executor.after)
        executor.set_graph(
            self.after(executor),
            [rng.choice(TIMES) for _ in range(tasks)],
            [rng.random() for _ in range(tasks)],
            program=compiler.is_available() and rng.random() < 0.5,
        )
        failing = rng.randrange(tasks) if fault in ("failure", "memory") else None
        executor.failing, executor.failure = failing, MemoryError if fault == "memory" else ZeroDivisionError
        at = int(2 ** rng.uniform(0, 8)) if fault in ("interrupt", "signal") else None
        scheduler.begin(
            rng,
            max_threads=rng.randrange(3) if fault == "threads" else 99,
            interrupt=at if fault == "interrupt" else None,
        )
        error = self._execute(prepared, at if fault == "signal" else None, traced=rng.random() < 0.3)
        expected = {"failure": KernelFault, "memory": MissingFault, "interrupt": KeyboardInterrupt,
                    "signal": KeyboardInterrupt}.get(fault)  # fmt: skip
        if error is None and fault in ("failure", "memory"):
            raise Finding("a task failed, and nothing was reported")
        if error is not None and (expected is None or not isinstance(error, expected)):
            raise Finding(f"{type(error).__name__}: {error}") from error
        if error is None and prepared.differs():
            raise Finding("other bits than those of a sequential run")
        if error is not None:  # what failed can be done again
            executor.failing = None
            scheduler.begin(rng)
            error = self._execute(prepared, None)
            if error is not None:
                raise Finding(f"after {fault}: {type(error).__name__}: {error}") from error
            if prepared.differs():
                raise Finding(f"after {fault}: other bits than those of a sequential run")
        return fault

    def _prepare(self, number: int, workers: int) -> PreparedPlan:
        key = (number, workers)
        if key not in self._prepared:
            self._prepared[key] = PreparedPlan(*key, self.scheduler)
        return self._prepared[key]

    def _execute(self, prepared: PreparedPlan, signal: int | None, traced: bool = False) -> BaseException | None:
        """One run, after which nothing may be left: no thread, no lock, no limit of BLAS. Returns its error."""
        executor, scheduler = prepared.executor, self.scheduler
        records: list[Any] | None = [] if traced else None
        executor.open = True
        error: BaseException | None = None
        try:
            with _interrupted_at(signal, scheduler):
                executor.execute(records)
        except Finding:
            raise
        except BaseException as caught:
            error = caught
        executor.open = False
        scheduler.interrupt = None
        for _ in range(50):
            if scheduler.threads:  # those that have not begun may end
                scheduler.sleep(1.0)
        if scheduler.threads:
            raise Finding("a thread is left behind")
        if executor.late is not None:
            raise Finding(executor.late)
        if scheduler.error is not None:
            raise Finding(f"a thread ended with {scheduler.error!r}") from scheduler.error
        if host._users or host._limiter is not None:
            raise Finding("BLAS is left with one thread")
        if records is not None and error is None:
            ends = {task: end for task, _, _, end in records}
            if len(records) < len(executor.bundle.tasks) and not ends:
                raise Finding("tasks are missing in the records")
            if any(start > end or start < 0 for _, _, start, end in records):
                raise Finding("a record of a task ends before it begins")
        return error

    def _run_short_of_memory(self, rng: random.Random, number: int, workers: int) -> None:
        """An executor that is made anew, whose allocations fail from some on, and then do not."""
        left = rng.randrange(8)

        def allocate(size: int) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise MissingFault(f"{size:,} bytes of memory are not available")
            return allocate_aligned(size)

        prepared = self._prepare(number, workers)
        self.scheduler.begin(rng)
        error: BaseException | None = None
        try:
            executor = SimulatedExecutor(make_plan(number), workers, self.scheduler, allocate=allocate)
            fresh = PreparedPlan.__new__(PreparedPlan)
            fresh.bundle, fresh.executor, fresh.expected = prepared.bundle, executor, prepared.expected
            for mine, buffer in zip(executor._memory.buffers, prepared.executor._memory.buffers, strict=True):
                mine[...] = buffer
        except BaseException as caught:
            error = caught
        else:
            error = self._execute(fresh, None)
            if error is not None:
                left = 1 << 30
                self.scheduler.begin(rng)
                again = self._execute(fresh, None)
                if again is not None:
                    raise Finding(f"after too little memory: {again!r}") from again
            if fresh.differs():
                raise Finding("other bits than those of a sequential run")
        if error is not None and not isinstance(error, MissingFault):
            raise Finding(f"too little memory is reported as {type(error).__name__}: {error}") from error


class _interrupted_at:
    """Interrupts the calling thread where a real signal could: when the `at`-th function of the runtime's execution is
    entered or has called one written in C."""

    def __init__(self, at: int | None, scheduler: SimulatedScheduler) -> None:
        self.left, self.scheduler = at, scheduler

    def __enter__(self) -> None:
        if self.left is not None:
            from greenlet import getcurrent

            caller, current = getcurrent(), getcurrent

            def profile(frame: FrameType, event: str, _: object) -> None:
                if event not in ("call", "c_return") or current() is not caller:
                    return
                if "/einc_runtime/execution/cpu/" not in frame.f_code.co_filename:
                    return
                self.left -= 1  # type: ignore[operator]
                if self.left == 0:
                    self.scheduler.interrupted = True
                    raise KeyboardInterrupt

            sys.setprofile(profile)

    def __exit__(self, *_: object) -> None:
        if self.left is not None:
            sys.setprofile(None)
