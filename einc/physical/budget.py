"""The time that the search for exchange programs may take, and the interrupt that ends it early."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

HELD_BACK = 0.5
"""The part of a time limit that is kept for what may follow: proposals, or stages, micro-batches and replicas."""


class SearchBudget:
    """The time that is left, shared among the exchanges of a plan; without `seconds` there is no limit.

    An interrupt within `catch_interrupt` is raised there, as KeyboardInterrupt. At any other moment between `begin` and
    `end` it only marks the budget as spent (see `interrupt`).
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._deadline = math.inf
        self._held = self._reserved = 0.0
        self._searching = False
        self.open = False
        self.interrupted = False

    @property
    def limited(self) -> bool:
        """Whether there is a time limit."""
        return self._seconds != math.inf

    def begin(self) -> None:
        """Starts the clock; it is started once, and several searches share the time."""
        if self._deadline == math.inf:
            self._deadline = time.monotonic() + self._seconds
        self.open = True

    def hold_back(self, part: float) -> None:
        """Keeps a part of all time from the search, until `release`; without a limit there is nothing to keep."""
        self._held = 0.0 if self._seconds == math.inf else part * self._seconds

    def release(self) -> None:
        """Adds what was held back to the time that is left."""
        self._held = 0.0

    def reserve(self, seconds: float) -> None:
        """Keeps these seconds, in place of those that were kept before, for what comes after the search."""
        self._reserved = seconds

    def end(self) -> None:
        """Ends the search: later interrupts do not concern it."""
        self.open = False

    @property
    def left(self) -> float:
        """Seconds; infinite where there is no limit, and 0 after an interrupt."""
        return 0.0 if self.interrupted else max(0.0, self._deadline - self._held - self._reserved - time.monotonic())

    def share(self, exchanges: int) -> float:
        """The seconds for the next of `exchanges` exchanges. What it does not use is left to those after it."""
        return self.left / max(1, exchanges)

    @contextmanager
    def catch_interrupt(self) -> Iterator[None]:
        """Within this context, an interrupt ends the search, and marks the budget as spent."""
        self._searching = True
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._searching = False

    def interrupt(self) -> None:
        """Handles an interrupt. Raises KeyboardInterrupt unless it only ends the search."""
        if self._searching or not self.open or self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
