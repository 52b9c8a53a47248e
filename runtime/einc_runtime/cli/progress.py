"""Progress of long work on stderr: its current phase, and how long all of it has taken.

On a terminal, rich shows it. It is installed with the compiler; the runtime alone works without it, and then shows
nothing. Elsewhere, as in the log of a batch system, there is a line now and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einc_runtime.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress

_DELAY = 0.5
"""Seconds before anything is shown on a terminal; most commands end earlier."""

_LINE_EVERY = 30.0
"""Seconds between lines elsewhere: few enough for a log, and often enough to see that work goes on."""


@contextmanager
def show_phases() -> Iterator[Callable[[str], None]]:
    """Yields a function to call with the name of each phase as it begins."""
    if not output.show_progress():
        begin = shown = time.monotonic()

        def note_phase(name: str) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= _LINE_EVERY:
                shown = now
                output.note(f"einc: after {now - begin:.0f} s: {name}")

        yield note_phase
        return
    display = _Display()
    try:
        yield display.begin_phase
    finally:
        display.stop()


class _Display:
    """One line with the phase and the time, from `_DELAY` seconds after the beginning until it is stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of everything below: the display is opened by the timer's thread
        self._name = "starting"
        self._progress: Progress | None = None
        self._stopped = False
        self._timer = threading.Timer(_DELAY, self._open)
        self._timer.daemon = True
        self._timer.start()

    def begin_phase(self, name: str) -> None:
        with self._lock:
            self._name = name
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], description=name)

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._progress is not None:
                self._progress.stop()

    def _open(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        except ImportError:
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with self._lock:
            if self._stopped:
                return
            # Standard output is left alone: it may carry a plan or JSON.
            console = Console(stderr=True)
            self._progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
            self._progress.add_task(self._name, total=None)
            self._progress.start()
