"""Reading what a command is given: a file that is not there is wrong usage, one that cannot be read an error."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einc.errors import Diagnostic, ModelError, ReadError, SourceSpan, UsageError
from einc_runtime.errors import RuntimeFault

if TYPE_CHECKING:
    from einc_runtime.plan.schema import Bundle

STDIN = "-"
PLAN_MARK = b"\x89EINC\r\n\x1a"
MODEL_LIMIT = 64 * 2**20
"""The most bytes read of a model or exchange program; larger ones are refused."""


def read_text(path: str) -> str:
    """A model or program text; UTF-8, with its line ends as they are."""
    require_present(path)
    with reading(path), sys.stdin.buffer if path == STDIN else open(path, "rb") as file:
        data = file.read(MODEL_LIMIT + 1)
    if len(data) > MODEL_LIMIT:
        raise ReadError(f"cannot read: it holds more than the {MODEL_LIMIT // 2**20} MiB that einc reads", where=path)
    if data.startswith(PLAN_MARK):
        hint = "`einc explain`, `einc run` and `einc verify` take plans"
        raise ModelError([Diagnostic("this is a plan, not a text", SourceSpan(path, 1, 1, 1, ""), hint)])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        start = before.rfind(b"\n") + 1
        line = data[start:].split(b"\n", 1)[0][:200].decode("utf-8", "replace")
        column = len(data[start : error.start].decode("utf-8", "replace")) + 1
        span = SourceSpan(path, before.count(b"\n") + 1, column, column + 1, line.rstrip("\r"))
        found = f"the byte 0x{data[error.start]:02x} is no UTF-8 text"
        wide = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        hint = f"{'the file looks like UTF-16; ' if wide else ''}save it as UTF-8"
        raise ModelError([Diagnostic(found, span, hint)]) from None


def read_plan(path: str) -> Bundle:
    """A plan file, validated."""
    from einc_runtime.plan.codec import read_bundle

    require_present(path)
    with reading(path):
        return read_bundle(path)


def is_plan(path: str) -> bool:
    """Whether a file is meant to be a plan rather than a model: a model's name ends in .ein or it begins as text."""
    if path == STDIN or path.endswith(".ein"):
        return path == STDIN
    require_present(path)
    with reading(path), open(path, "rb") as file:
        start = file.read(512)
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start < max(1, len(start) - 3)  # a character may be cut off at the end
    return not start or b"\0" in start


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns the ways in which reading `path` fails into errors that name it."""
    try:
        yield
    except RuntimeFault as fault:
        fault.where = fault.where or path
        raise
    except OSError as error:
        raise ReadError(f"cannot read: {error.strerror}", where=path) from None


def require_present(path: str, *, or_folder: bool = False) -> None:
    """Raise a usage error where there is nothing at `path`; standard input is there unless the shell closed it."""
    if path == STDIN:
        if sys.stdin is None:
            raise ReadError("cannot read: it is closed", where="standard input")
        return
    try:
        found = os.path.lexists(path)
    except ValueError:  # a NUL byte
        found = False
    if not found:
        raise UsageError("there is no such file", where=path or "''")
    if os.path.isdir(path) and not or_folder:
        raise ReadError("cannot read: it is a directory", where=path)
