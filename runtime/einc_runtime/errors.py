"""The errors that the runtime reports on purpose, and the base class of those that both packages report.

`RuntimeFault` and its kinds are raised when a plan is read, proved or run. The compiler's errors
(`einc.errors.EincError`) have the same base, `ReportedError`, so that one `except` takes both and the command line has
one way to report them. Every other exception that reaches a user is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class ReportedError(Exception):
    """Base of all errors that a user can cause or correct.

    `code` is the stable word in JSON output, `exit_code` is what a command ends with. `where` is the place, if it is
    known: a file, or a part of a file or plan. `hint` says what would help.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70
    where: object

    def __init__(self, message: str, *, where: object = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        # What a traceback or a notebook shows of an exception: its place and its hint belong to that.
        return self.render()

    def render(self) -> str:
        """The whole error as text for a terminal."""
        text = self.message if self.where is None else f"{self.where}: {self.message}"
        return text if self.hint is None else f"{text}\n    hint: {self.hint}"

    def findings(self) -> tuple[dict[str, str | None], ...]:
        """For JSON: what is wrong, one by one, where the error reports several things together."""
        return ()

    def document(self) -> dict[str, Any]:
        """For JSON: what the command found out although it failed."""
        return {}


class RuntimeFault(ReportedError):
    """Base of the runtime's errors."""

    code = "runtime"
    where: str | None

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)


class UsageFault(RuntimeFault):
    """The command was called wrongly; a file that is not there counts as such."""

    code, exit_code = "usage", 2


class ReadFault(RuntimeFault):
    """A file that exists cannot be read."""

    code, exit_code = "read", 74


class WriteFault(RuntimeFault):
    """An output cannot be written."""

    code, exit_code = "write", 73


class PlanFault(RuntimeFault):
    """The bytes are not a plan bundle, or are one that contradicts itself."""

    code, exit_code = "plan", 65


class ArrayFault(RuntimeFault):
    """An input or weight array is missing, unreadable, or not what the plan says."""

    code, exit_code = "array", 65


class MissingFault(RuntimeFault):
    """A device, a library or memory that execution needs is not here."""

    code, exit_code = "missing", 69


class KernelFault(RuntimeFault):
    """A kernel failed while the plan ran."""

    code, exit_code = "kernel", 70


class ValueFault(KernelFault):
    """A kernel met a value that no input may have: a token that the vocabulary lacks, a position outside of a cache."""

    code, exit_code = "value", 65


def raise_together(problems: Sequence[str], where: str | None = None, limit: int = 20) -> None:
    """Raises one ArrayFault with a line for each problem, if there is any."""
    if problems:
        more = [f"and {len(problems) - limit} more"] if len(problems) > limit else []
        raise ArrayFault("\n    ".join([*problems[:limit], *more]), where=where)
