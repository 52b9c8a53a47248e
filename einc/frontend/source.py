"""Model texts by line, and the spans that errors point at."""

from __future__ import annotations

from dataclasses import dataclass, field

from einc.errors import Diagnostic, ModelError, SourceSpan
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
    if len(text) > limits.TEXT_CHARACTERS:
        raise ModelError([_too_long(file)])
    return Source(file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


def _too_long(file: str) -> Diagnostic:
    return Diagnostic(
        f"the model text is longer than {limits.TEXT_CHARACTERS:,} characters, the most that is read",
        SourceSpan(file, 1, 1, 2, ""),
        "write repeated parts as a block, and long lists as `[value] * count`",
    )
