"""Every error that `einc` reports on purpose, and the place in a source file that it points at.

An error says what is wrong, where, what was expected and what to do. Its class decides the exit code of the
command line; nothing below `cli` prints or exits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A range of one line of a source file.

    `line` and `column` count from 1; `end_column` is exclusive; `text` is the line itself, without its newline.
    """

    file: str
    line: int
    column: int
    end_column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


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


class EincError(Exception):
    """Base of all errors that a user can cause or mend.

    `code` is the stable word in JSON output; `exit_code` is what the process ends with.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, where: SourceSpan | str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def render(self) -> str:
        """The whole error as text for a terminal."""
        if isinstance(self.where, SourceSpan):
            return Diagnostic(self.message, self.where, self.hint).render()
        text = self.message if self.where is None else f"{self.where}: {self.message}"
        return text if self.hint is None else f"{text}\n    hint: {self.hint}"


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

    def render(self) -> str:
        return "\n".join(diagnostic.render() for diagnostic in self.diagnostics)


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


class ProgramError(EincError):
    """An exchange program does not parse, or cannot be simulated."""

    code, exit_code = "exchange_program", 65


class CapacityError(EincError):
    """The plan does not fit into the memory of a site."""

    code, exit_code = "memory", 69


class CheckFailed(EincError):
    """A comparison or check that did not hold."""

    code, exit_code = "check", 1


class WriteError(EincError):
    """An output could not be created."""

    code, exit_code = "write", 73


class ReadError(EincError):
    """A file that exists could not be read."""

    code, exit_code = "read", 74


class InternalError(EincError):
    """A bug in einc: a stage found its own output broken."""

    code, exit_code = "internal", 70


def counted(number: int, noun: str) -> str:
    """`1 argument`, `3 arguments`: for messages."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def sized(count: int) -> str:
    """Bytes for people: exact below 10 KiB, else four digits and a power of 1024."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < (10_240 if unit == "B" else 1024):
            break
        amount, unit = amount / 1024, larger
    return f"{count:,} B" if unit == "B" else f"{amount:.4g} {unit}"
