"""Reading model texts from files, and the spans that errors point at."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from einc.errors import Diagnostic, ModelError, ReadError, SourceSpan, UsageError
from einc.frontend import limits


@dataclass(frozen=True, slots=True)
class Source:
    """A model text under its name; line ends are newlines only."""

    file: str
    text: str
    lines: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", self.text.split("\n"))

    def span(self, line: int, column: int, end_line: int, end_column: int) -> SourceSpan:
        """The span between two places, cut off at the end of its first line."""
        text = self.lines[line - 1]
        return SourceSpan(self.file, line, column, end_column if end_line == line else len(text) + 1, text)


def make_source(text: str, file: str) -> Source:
    """A source with its byte order mark removed and its line ends unified.

    Raises ModelError where the text is longer than the language allows.
    """
    if len(text) > limits.TEXT_BYTES:
        raise ModelError([_too_long(file)])
    return Source(file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


def read_source(path: str | os.PathLike[str]) -> str:
    """The text of a model file.

    Raises UsageError where there is no such file, ReadError where it cannot be read, ModelError where it is too
    long or not UTF-8.
    """
    file = os.fspath(path)
    try:
        with open(file, "rb") as stream:
            data = stream.read(limits.TEXT_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError) as error:
        reason = "a directory" if isinstance(error, IsADirectoryError) else "no such file"
        raise UsageError(f"cannot read {file!r}: {reason}") from None
    except OSError as error:
        reason = "no such file" if error.errno == errno.ENAMETOOLONG else (error.strerror or str(error))
        raise ReadError(f"cannot read {file!r}: {reason}") from None
    if len(data) > limits.TEXT_BYTES:
        raise ModelError([_too_long(file)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError([_not_utf8(file, data, error.start)]) from None


def _too_long(file: str) -> Diagnostic:
    return Diagnostic(
        f"the model text is longer than {limits.TEXT_BYTES:,} bytes, the most that is read",
        SourceSpan(file, 1, 1, 2, ""),
        "write repeated parts as a block, and long lists as `[value] * count`",
    )


def _not_utf8(file: str, data: bytes, position: int) -> Diagnostic:
    before = data[:position].decode("utf-8", "replace")
    line = before.count("\n") + 1
    start = before.rpartition("\n")[2]
    rest = data[position : position + 80].split(b"\n")[0].decode("utf-8", "replace")
    column = len(start) + 1
    hint = "save the file as UTF-8"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        hint = "the file looks like UTF-16; save it as UTF-8"
    return Diagnostic(
        f"expected UTF-8 text, found the byte 0x{data[position]:02x}",
        SourceSpan(file, line, column, column + 1, start + rest),
        hint,
    )
