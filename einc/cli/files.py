"""Reading what a command is given: a file that is not there is wrong usage, one that cannot be read an error."""

from __future__ import annotations

import os

from einc.errors import Diagnostic, ModelError, ReadError, SourceSpan, UsageError

MODEL_LIMIT = 64 * 2**20
PLAN_LIMIT = 512 * 2**20
"""The most bytes read of a model or exchange program, and of a plan; larger ones are refused unread."""


def read_bytes(path: str, limit: int = PLAN_LIMIT) -> bytes:
    """The contents of a file of at most `limit` bytes."""
    require_present(path)
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ReadError(f"cannot read: {reason}", where=path) from None
    if len(data) > limit:
        raise ReadError(f"cannot read: it holds more than the {limit // 2**20} MiB that einc reads", where=path)
    return data


def read_text(path: str) -> str:
    """A model or program text; UTF-8, with its line ends as they are."""
    data = read_bytes(path, MODEL_LIMIT)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        start = before.rfind(b"\n") + 1
        line = data[start:].split(b"\n", 1)[0][:200].decode("utf-8", "replace")
        column = len(data[start : error.start].decode("utf-8", "replace")) + 1
        span = SourceSpan(path, before.count(b"\n") + 1, column, column + 1, line.rstrip("\r"))
        found = f"the byte 0x{data[error.start]:02x} is no UTF-8 text"
        raise ModelError([Diagnostic(found, span, "save the file as UTF-8")]) from None


def require_present(path: str) -> None:
    """Raise a usage error where there is nothing at `path`."""
    try:
        found = os.path.lexists(path)
    except ValueError:  # a NUL byte
        found = False
    if not found:
        raise UsageError("there is no such file", where=path or "''")
    if os.path.isdir(path):
        raise ReadError("cannot read: it is a directory", where=path)
