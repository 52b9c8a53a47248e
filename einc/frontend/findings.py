"""Collecting the errors of a model, so that all are reported together, and guessing what was meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from einc.errors import Diagnostic, ModelError, SourceSpan
from einc.frontend import limits

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Reported(Exception):
    """Unwinds a statement whose error stands among the findings already."""


class Findings:
    """The errors of one model, each once, in the order of the text."""

    def __init__(self) -> None:
        self._found: dict[tuple[SourceSpan, str], Diagnostic] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, message: str, span: SourceSpan, hint: str | None = None) -> None:
        """Note an error. The same error at the same place counts once, however often a block is applied."""
        self._found.setdefault((span, message), Diagnostic(message, span, hint))

    def fail(self, message: str, span: SourceSpan, hint: str | None = None) -> Reported:
        """Note an error; the caller raises what this returns."""
        self.add(message, span, hint)
        return Reported()

    def check(self) -> None:
        """Raises ModelError with everything noted so far, if anything was."""
        if not self._found:
            return
        ordered = sorted(self._found.values(), key=_place)
        if len(ordered) >= limits.ERRORS:
            ordered = [*ordered[: limits.ERRORS], Diagnostic("there may be more errors; mend these first")]
        raise ModelError(ordered)


def _place(diagnostic: Diagnostic) -> tuple[bool, int, int]:
    """Order of the text; definitions from the command line, which stand in files of their own, come first."""
    span = diagnostic.span
    assert span is not None
    return (not span.file.startswith("-"), span.line, span.column)


def each(evaluate: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """What `evaluate` makes of every item. All items report their errors; raises Reported where one has some."""
    results = []
    for item in items:
        with suppress(Reported):
            results.append(evaluate(item))
    if len(results) < len(items):
        raise Reported
    return results
