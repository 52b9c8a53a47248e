"""Progress of long work: its current phase and how long it has taken, on stderr if that is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from einc_runtime.cli import output

_DELAY = 0.5
"""Seconds that work may take before anything is shown; most commands never show it."""


@contextmanager
def show_phases() -> Iterator[Callable[[str], None]]:
    """Yields a function to call with the name of each phase as it begins."""
    if not output.show_progress():
        yield lambda name: None
        return
    display = _Display()
    display.start()
    try:
        yield display.phase
    finally:
        display.stop()


class _Display(threading.Thread):
    """Rewrites one line with the phase and its time until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._now = ("starting", time.monotonic())
        self._over = threading.Event()

    def phase(self, name: str) -> None:
        self._now = (name, time.monotonic())

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        if self._over.wait(_DELAY):
            return
        while True:
            name, since = self._now
            sys.stderr.write(f"\r\033[K{name} ... {time.monotonic() - since:.1f} s")
            sys.stderr.flush()
            if self._over.wait(0.2):
                break
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
