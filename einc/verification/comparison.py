"""Compares what a plan says with what it should say."""

from __future__ import annotations

from typing import Any

from einc_runtime.errors import PlanFault
from einc_runtime.text import escape_text, shorten

PRECISION = 1e-9
"""How far times that were computed on two machines may lie apart, relative to their size."""

MAX_SHOWN = 120
"""Characters of a value that are shown."""


def require_equal(where: str, stated: Any, expected: Any, hint: str | None = None) -> None:
    """Raises PlanFault where two values differ; 1, 1.0 and true do."""
    if not _are_alike(stated, expected):
        raise PlanFault(f"the plan says {_show(stated)}, and it should be {_show(expected)}", where=where, hint=hint)


def require_time(where: str, stated: float, expected: float) -> None:
    """Raises PlanFault unless two times in ms are equal up to rounding."""
    if not abs(stated - expected) <= PRECISION * max(abs(stated), abs(expected)):
        raise PlanFault(f"the plan says {stated!r} ms, and it should be {expected!r} ms", where=where)


def _are_alike(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or a != b:
        return False
    if isinstance(a, dict):
        return all(_are_alike(value, b[name]) for name, value in a.items())
    return not isinstance(a, list | tuple) or all(map(_are_alike, a, b))


def _show(value: Any) -> str:
    return shorten(escape_text(repr(value)), MAX_SHOWN)
