"""Reports failures. Only this module decides which exception leads to which exit code."""

from __future__ import annotations

import contextlib
import errno
import traceback
from dataclasses import dataclass, field
from typing import Any

import click
from click.exceptions import Exit  # after an interrupted import, click may lack its attribute `exceptions`

from einc_runtime.cli import output, signals
from einc_runtime.cli.signals import Terminated, exit_code_of
from einc_runtime.errors import ReportedError, RuntimeFault, WriteFault
from einc_runtime.text import replace_unprintable

SUCCESS, USAGE, BUG, MISSING, CANNOT_WRITE, INTERRUPTED = 0, 2, 70, 69, 73, 130


class CheckFailed(RuntimeFault):
    """A check or comparison that did not hold.

    `document` is what the command prints as JSON when it holds; `details` are lines for people only.
    """

    code, exit_code = "check", 1

    def __init__(self, message: str, document: dict[str, Any], *, details: str = "") -> None:
        super().__init__(message)
        self._document = document
        self._details = details

    def render(self) -> str:
        return f"{self.message}\n{self._details}".rstrip()

    def document(self) -> dict[str, Any]:
        return self._document


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the command line reports it. With no text nothing is printed."""

    exit_code: int
    code: str
    message: str
    text: str
    where: str | None = None
    document: dict[str, Any] = field(default_factory=dict)
    findings: tuple[dict[str, str | None], ...] = ()

    def json(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message, "where": self.where}
        if self.findings:
            error["findings"] = list(self.findings)
        return {**self.document, "error": error}


def report(error: BaseException, *, debug: bool, as_json: bool, program: str = "einc") -> int:
    """Print what went wrong, and return the exit code."""
    if isinstance(error, SystemExit):  # only shell completion ends like this
        return error.code if isinstance(error.code, int) else SUCCESS
    if isinstance(error, Exit):
        return error.exit_code
    failure = describe(error, program)
    if debug:
        output.note("".join(traceback.format_exception(error)).rstrip())
    if failure.text:  # lines of models and names of files may have what a terminal takes for commands
        output.note(replace_unprintable(failure.text, keep="\n\t"))
    # If standard output is what failed, the JSON document cannot be printed either.
    with contextlib.suppress(ReportedError, OSError):
        if as_json and not isinstance(error, BrokenPipeError):
            output.say_json(failure.json())
        output.flush()
    return failure.exit_code


def describe(error: BaseException, program: str = "einc") -> Failure:
    """The failure to report for an exception."""
    match error:
        case ReportedError():
            return _make_failure(error, program)
        case click.UsageError():
            command = program if error.ctx is None else error.ctx.command_path
            text = f"{program}: {error.format_message()}\nTry '{command} --help' for help."
            return Failure(USAGE, "usage", error.format_message(), text)
        case click.ClickException():
            return Failure(USAGE, "usage", error.format_message(), f"{program}: {error.format_message()}")
        case Terminated():
            return Failure(exit_code_of(error), "interrupted", "terminated", f"{program}: terminated")
        case KeyboardInterrupt() | click.Abort():
            return Failure(INTERRUPTED, "interrupted", "interrupted", f"{program}: interrupted")
        case BrokenPipeError():
            return Failure(CANNOT_WRITE, "write", "standard output was closed", "")
        case OSError() if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF):
            fault = WriteFault(f"cannot write: {error.strerror}", where="standard output")  # click's own help
            return _make_failure(fault, program)
        case MemoryError():
            message = "this needs more memory than there is"
            return Failure(MISSING, "memory", message, f"{program}: {message}")
    if signals.last_signal is not None:  # an extension module may turn the signal's exception into one of its own
        interrupted = signals.last_signal == signals.INTERRUPT
        return describe(KeyboardInterrupt() if interrupted else Terminated(signals.last_signal), program)
    message = f"{type(error).__name__}: {error}".splitlines()[0][:500]
    text = f"{program}: a bug in einc: {message}\n    please report it, with what --debug prints"
    return Failure(BUG, "internal", message, text)


def _make_failure(error: ReportedError, program: str) -> Failure:
    text = error.render()
    return Failure(
        error.exit_code,
        error.code,
        error.message,
        text if text.startswith(f"{program}: ") else f"{program}: {text}",
        None if error.where is None else str(error.where),
        error.document(),
        error.findings(),
    )
