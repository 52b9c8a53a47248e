"""What running a plan on the CPU takes from the system: threads, a lock at which they wait for each other, and a clock.

`THREADS` is what programs use. Another scheduler may decide in which order threads go on, what time it is, and which
waits end: the worlds of the tests do (docs/trust.md).
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from einc_runtime.execution.cpu.host import find_core


class Monitor(Protocol):
    """A lock that its holder may take again, at which threads wait to be notified: as `threading.Condition` is."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def release(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def notify(self, n: int = 1) -> None: ...
    def notify_all(self) -> None: ...


class ThreadScheduler(Protocol):
    """Makes threads and monitors, and says the time."""

    def start(self, function: Callable[..., None], *arguments: object) -> None:
        """Calls a function in a new thread, and does not wait for it to start. Raises RuntimeError where there can be
        no more threads."""

    def make_monitor(self) -> Monitor: ...

    def now(self) -> float:
        """Seconds of a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Lets other threads go on for some time."""


MAX_PARKED = 64
"""The most threads that wait for something to do."""


class SystemThreads:
    """The threads and the clock of the system.

    A thread whose function has returned waits for the next one. Systems often put a thread on the core of the one that
    starts it, even if it last ran on another one, and move it after some milliseconds, when a step of decoding is
    almost over. So a thread is told to wake on another core. When it has, it may go everywhere again.
    """

    def __init__(self) -> None:
        self._parked: list[_ParkedThread] = []

    def start(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            parked = self._parked.pop()
        except IndexError:
            parked = _ParkedThread()
            parked.next = function, arguments
            _thread.start_new_thread(self._serve, (parked,))
        else:
            parked.next = function, arguments
            parked.leave_core()
            parked.wake.release()

    def forget(self) -> None:
        """Forgets the threads that wait: a process that was forked does not have them."""
        self._parked.clear()

    def _serve(self, parked: _ParkedThread) -> None:
        parked.number = threading.get_native_id()
        while parked.next is not None:
            parked.use_all_cores()
            function, arguments = parked.next
            parked.next = None
            function(*arguments)
            del function, arguments  # which would keep plans alive
            if len(self._parked) < MAX_PARKED:
                self._parked.append(parked)
                parked.wake.acquire()

    def make_monitor(self) -> Monitor:
        return threading.Condition(threading.RLock())

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _ParkedThread:
    """A thread that waits: what it does next, a lock that is released when it knows, the system's number of it, and the
    cores where it may run if it was told to leave one of them."""

    def __init__(self) -> None:
        self.next: tuple[Callable[..., None], tuple[object, ...]] | None = None
        self.wake = _thread.allocate_lock()
        self.wake.acquire()
        self.number = 0
        self.cores: set[int] = set()

    def leave_core(self) -> None:
        """Keeps this thread away from the core on which the calling one runs, if it may run on others."""
        core = find_core()
        if core is None:
            return
        with suppress(OSError):
            cores = os.sched_getaffinity(self.number)
            if len(cores) > 1:
                self.cores = cores
                os.sched_setaffinity(self.number, cores - {core})

    def use_all_cores(self) -> None:
        """Ends what `leave_core` began; this thread calls it."""
        if self.cores:
            cores, self.cores = self.cores, set()
            with suppress(OSError):
                os.sched_setaffinity(0, cores)


THREADS = SystemThreads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=THREADS.forget)
