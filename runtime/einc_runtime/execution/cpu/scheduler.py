"""What running a plan on the CPU takes from the system: threads, a lock at which they wait for each other, and a clock.

`THREADS` is what programs use. Another scheduler may decide in which order threads go on, what time it is, and which
waits end: the worlds of the tests do (docs/trust.md).
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


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


class SystemThreads:
    """The threads and the clock of the system."""

    def start(self, function: Callable[..., None], *arguments: object) -> None:
        _thread.start_new_thread(function, arguments)

    def make_monitor(self) -> Monitor:
        return threading.Condition(threading.RLock())

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


THREADS = SystemThreads()
