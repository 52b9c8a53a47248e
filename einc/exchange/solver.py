"""HiGHS, which solves the linear programs of bounds and of routes, silent from its first line on."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

_one_at_a_time = threading.Lock()


def make_solver() -> Any:
    """An empty program of HiGHS that prints nothing and takes one thread.

    From version 1.16 on, HiGHS prints who made it before it can be told to be silent.
    """
    import highspy

    with _discard_stdout():
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    solver.setOptionValue("threads", 1)
    return solver


@contextlib.contextmanager
def _discard_stdout() -> Iterator[None]:
    """Meanwhile, what code in C writes to standard output is lost."""
    with _one_at_a_time:
        try:
            kept = os.dup(1)
        except OSError:  # it is closed
            yield
            return
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.close(nothing)
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
