"""How each way of failing is reported: the one place that knows which exception means which exit code."""

from __future__ import annotations

import contextlib
import errno
import traceback
from dataclasses import dataclass
from typing import Any

import click
from click.exceptions import Exit  # an interrupted import may leave click without its attribute `exceptions`

from einc.cli import output
from einc.cli.signals import Terminated, code_of
from einc.errors import CheckFailed, EincError, ModelError, WriteError
from einc_runtime.errors import RuntimeFault
from einc_runtime.text import replace_unprintable

SUCCESS, USAGE, BUG, MISSING, CANNOT_WRITE, INTERRUPTED = 0, 2, 70, 69, 73, 130


class ComparisonFailed(CheckFailed):
    """A check that did not hold.

    `document` is what the command prints as JSON when it holds; `details` are lines that only people want.
    """

    def __init__(self, message: str, document: dict[str, Any], *, details: str = "") -> None:
        super().__init__(message)
        self._document = document
        self.details = details

    def render(self) -> str:
        return f"{self.message}\n{self.details}".rstrip()

    def document(self) -> dict[str, Any]:
        return self._document


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in the words of the command line. With no text nothing is printed."""

    exit_code: int
    code: str
    message: str
    text: str
    where: str | None = None
    document: dict[str, Any] | None = None
    findings: tuple[dict[str, str | None], ...] = ()

    def json(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message, "where": self.where}
        if self.findings:
            error["findings"] = list(self.findings)
        return {**(self.document or {}), "error": error}


def report(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Print what went wrong, and return the exit code."""
    if isinstance(error, SystemExit):  # only shell completion ends like this
        return error.code if isinstance(error.code, int) else SUCCESS
    if isinstance(error, Exit):
        return error.exit_code
    failure = describe(error)
    if debug:
        output.note("".join(traceback.format_exception(error)).rstrip())
    if failure.text:
        output.note(replace_unprintable(failure.text, keep="\n\t"))
    # Standard output may be what failed; then there is nowhere left to say so.
    with contextlib.suppress(EincError, OSError):
        if as_json and not isinstance(error, BrokenPipeError):
            output.say_json(failure.json())
        output.flush()
    return failure.exit_code


def describe(error: BaseException) -> Failure:
    """Which failure an exception stands for."""
    match error:
        case EincError() | RuntimeFault():
            return _expected(error)
        case click.UsageError():
            usage = f"Try 'einc{_path(error)} --help' for help."
            return Failure(USAGE, "usage", error.format_message(), f"einc: {error.format_message()}\n{usage}")
        case click.ClickException():
            return Failure(USAGE, "usage", error.format_message(), f"einc: {error.format_message()}")
        case Terminated():
            return Failure(code_of(error), "interrupted", "terminated", "einc: terminated")
        case KeyboardInterrupt() | click.Abort():
            return Failure(INTERRUPTED, "interrupted", "interrupted", "einc: interrupted")
        case BrokenPipeError():
            return Failure(CANNOT_WRITE, "write", "standard output was closed", "")
        case OSError() if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF):
            return _expected(WriteError(f"cannot write: {error.strerror}", where="standard output"))  # click's own help
        case MemoryError():
            message = "this needs more memory than there is"
            return Failure(MISSING, "memory", message, f"einc: {message}")
    message = f"{type(error).__name__}: {error}".splitlines()[0][:500]
    text = f"einc: a bug in einc: {message}\n    please report it, with what --debug prints"
    return Failure(BUG, "internal", message, text)


def _expected(error: EincError | RuntimeFault) -> Failure:
    findings: tuple[dict[str, str | None], ...] = ()
    if isinstance(error, ModelError):
        findings = tuple(
            {"message": d.message, "where": None if d.span is None else str(d.span), "hint": d.hint}
            for d in error.diagnostics
        )
    return Failure(
        error.exit_code,
        error.code,
        error.message,
        _prefixed(error.render()),
        None if error.where is None else str(error.where),
        error.document(),
        findings,
    )


def _prefixed(text: str) -> str:
    return text if text.startswith("einc: ") else f"einc: {text}"


def _path(error: click.UsageError) -> str:
    return "" if error.ctx is None else error.ctx.command_path.removeprefix("einc")
