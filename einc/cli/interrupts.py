"""Ctrl-C while exchange programs are searched for: the best found so far is kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einc.cli import output

if TYPE_CHECKING:
    from einc.physical.budget import Budget


@contextmanager
def keeping_the_best(budget: Budget) -> Iterator[None]:
    """Inside, the first interrupt during the search ends the search alone, and one line says so at the end."""
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:  # as in a script's background, where interrupts are for others
        signal.signal(signal.SIGINT, lambda number, frame: budget.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if budget.interrupted:
        output.note("einc: interrupted; the plan has the best exchange programs found so far")
