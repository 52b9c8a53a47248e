"""Waiting for what other processes or devices do, without taking the core from those that compute."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_NAP, LAST_NAP = 20e-6, 1e-3
"""Seconds between two looks: the first, and the most after looks in vain. Processes may share cores, so that looking
without a pause would take them from those that compute."""

BRIEF_NAP = 50e-6
"""The most between two looks where all that is waited for is under way, and is short."""


class Naps:
    """Waits between looks in vain, longer each time, up to `last` seconds; `reset` where something happened."""

    def __init__(self, pause: Callable[[float], None] = time.sleep, last: float = LAST_NAP) -> None:
        self._pause, self._last = pause, last
        self.reset()

    def reset(self) -> None:
        self._next = FIRST_NAP

    def take(self) -> None:
        self._pause(self._next)
        self._next = min(2 * self._next, self._last)
