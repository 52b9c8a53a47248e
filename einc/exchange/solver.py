"""HiGHS, which solves the linear programs of bounds and of routes, silent from its first line on."""

from __future__ import annotations

from functools import cache
from typing import Any


def make_solver() -> Any:
    """An empty program of HiGHS that prints nothing and takes one thread."""
    solver = _define_solver()()
    solver.silent()
    solver.setOptionValue("threads", 1)
    return solver


@cache
def _define_solver() -> Any:
    import highspy

    class SilentHighs(highspy.Highs):
        """From version 1.16 on, the first call that the constructor makes prints who made HiGHS."""

        def enableCallbacks(self) -> Any:  # it has this name there
            self.silent()
            return super().enableCallbacks()  # type: ignore[no-untyped-call]

    return SilentHighs
