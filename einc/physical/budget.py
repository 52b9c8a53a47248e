"""How long the search for exchange programs may take, and the interrupt that ends it early."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class SearchBudget:
    """The time that is left, shared between the exchanges of a plan; without `seconds` there is no end to it.

    An interrupt that comes while something is `searching` is raised there, as KeyboardInterrupt; at any other moment
    between `begin` and `end` it only marks the budget as spent (see `interrupt`).
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._deadline = math.inf
        self._searching = False
        self.open = False
        self.interrupted = False

    def begin(self) -> None:
        """The clock starts."""
        self._deadline = time.monotonic() + self._seconds
        self.open = True

    def end(self) -> None:
        """From here on, interrupts are none of the search's business."""
        self.open = False

    @property
    def left(self) -> float:
        """Seconds; infinite where there is no limit, and 0 after an interrupt."""
        return 0.0 if self.interrupted else max(0.0, self._deadline - time.monotonic())

    def share(self, exchanges: int) -> float:
        """What the next of so many exchanges may take; those that need less leave the rest to those after them."""
        return self.left / max(1, exchanges)

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Interrupts inside are raised, and end this search and all to come."""
        self._searching = True
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._searching = False

    def interrupt(self) -> None:
        """What a handler of interrupts does. Raises KeyboardInterrupt where the search has no part in it."""
        if self._searching or not self.open or self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
