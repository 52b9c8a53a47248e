"""Every error that the compiler reports on purpose, and the place in a source file that it points at.

An error says what is wrong, where, what was expected and what to do. Its class decides the exit code of the
command line; nothing below `cli` prints or exits. The runtime's errors are in `einc_runtime.errors`, with the base of
both.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.errors import ReportedError
from einc_runtime.text import shorten

MAX_FINDINGS = 50
"""Findings that are reported together: nobody mends more at once."""


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A range of one line of a source file.

    `line` and `column` count from 1; `end_column` is exclusive; `text` is the line itself, without its newline. What
    was given as an argument, `tokens=5`, stands in no file: `file` is empty, and the text names the place.
    """

    file: str
    line: int
    column: int
    end_column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.file else shorten(self.text, 60)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: what is wrong, where it stands, and what would help."""

    message: str
    span: SourceSpan | None = None
    hint: str | None = None

    def render(self) -> str:
        """The finding as text, with the source line and a caret under it where a span is known."""
        lines = [self.message if self.span is None else f"{self.span}: {self.message}"]
        if self.span is not None and self.span.text:
            text, start = self.span.text, self.span.column - 1
            offset = max(0, start - 60)  # long lines show a window around the caret
            window = text[offset : offset + 110].replace("\t", " ")
            width = max(1, min(self.span.end_column - self.span.column, len(window) - (start - offset)))
            lines += [f"    {window}", f"    {' ' * (start - offset)}{'^' * width}"]
        if self.hint is not None:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


class EincError(ReportedError):
    """Base of the compiler's errors."""

    where: SourceSpan | str | None

    def __init__(self, message: str, *, where: SourceSpan | str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)

    def render(self) -> str:
        if isinstance(self.where, SourceSpan):
            return Diagnostic(self.message, self.where, self.hint).render()
        return super().render()


class UsageError(EincError):
    """The command was called wrongly; a file that is not there counts as such."""

    code, exit_code = "usage", 2


class ModelError(EincError):
    """One or more findings in a model text; all findings of a file are reported together."""

    code, exit_code = "model", 65

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        first = diagnostics[0]
        super().__init__(first.message, where=first.span, hint=first.hint)
        self.diagnostics = tuple(diagnostics)

    def __reduce__(self) -> tuple[type[ModelError], tuple[tuple[Diagnostic, ...]]]:
        return type(self), (self.diagnostics,)

    def render(self) -> str:
        return "\n".join(diagnostic.render() for diagnostic in self.diagnostics)

    def findings(self) -> tuple[dict[str, str | None], ...]:
        return tuple(
            {"message": d.message, "where": None if d.span is None else str(d.span), "hint": d.hint}
            for d in self.diagnostics
        )


class OperatorError(EincError):
    """An operator cannot be applied to these tensors or attributes.

    `argument` is the position of the offending argument (0-based, tensors and literals counted together) or the
    name of the offending attribute, so that the front end can point at it.
    """

    code, exit_code = "operator", 65

    def __init__(self, message: str, *, argument: int | str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.argument = argument


class MachineError(EincError):
    """A machine file or name is unusable, or the machine is too small for what is asked of it."""

    code, exit_code = "machine", 65


def warn_user(message: str, kind: type[Warning]) -> None:
    """Warns at the line that called einc, however many functions of einc lie between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "einc":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


class MachineWarning(UserWarning):
    """Something that had to be assumed of the machine that a plan is made for."""


class ModelWarning(UserWarning):
    """Something that was decided about a module of PyTorch, and that its author may not have meant."""


class ProgramError(EincError):
    """An exchange program does not parse, or cannot be simulated."""

    code, exit_code = "exchange_program", 65


class CapacityError(EincError):
    """The plan does not fit into the memory of a site."""

    code, exit_code = "memory", 69


class ReadError(EincError):
    """A file that exists could not be read."""

    code, exit_code = "read", 74


class InternalError(EincError):
    """A bug in einc: a stage found its own output broken."""

    code, exit_code = "internal", 70
