"""That something ends in time, on machines of any speed and however busy: a fixed piece of work is the unit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

USUAL = 0.02
"""Seconds that `_work` takes on a core that is neither new nor old."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails where what is inside takes more than so many seconds of a usual core; those of others do not count."""
    begin = time.process_time()
    yield
    taken = time.process_time() - begin
    assert taken < seconds * slowness(), f"it took {taken:.1f} s, on a core {slowness():.1f} times slower than usual"


@cache
def slowness() -> float:
    """How many times longer this core takes than a usual one, and 1 for faster ones."""
    return max(1.0, min(_work() for _ in range(3)) / USUAL)


def _work() -> float:
    begin = time.process_time()
    table: dict[int, tuple[int, str]] = {}
    for number in range(50_000):
        table[number * number % 65_537] = (number, str(number))
    assert len(table) > 1000
    return time.process_time() - begin
