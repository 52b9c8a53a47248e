"""A model text and its tokens: where they stand, where statements end, and which tokens are faulty.

The terminals themselves are defined in `grammars/ein.lark`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lark import Token

from einc.errors import Diagnostic, ModelError, SourceSpan
from einc.frontend import limits
from einc_runtime.text import shorten

SEPARATOR = "_SEPARATOR"
OPENING = frozenset({"LPAR", "LSQB", "_LBRACE"})
CLOSING = frozenset({"RPAR", "RSQB", "_RBRACE"})
BRACES = frozenset({"_LBRACE", "_RBRACE"})
STATEMENT_WORDS = frozenset(
    {
        "MODEL",
        "PARAM",
        "DIM",
        "INPUT",
        "WEIGHT",
        "STATE",
        "OUTPUT",
        "RETURN",
        "BLOCK",
        "AGGREGATE",
        "IDENTITY",
        "REPEAT",
        "SCAN",
        "PRESET",
        "USE",
    }
)  # they start a statement, and stand nowhere else


@dataclass(frozen=True, slots=True)
class SourceText:
    """A model text with its name; all line ends are newlines."""

    file: str
    text: str
    lines: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", self.text.split("\n"))

    def span(self, line: int, column: int, end_line: int, end_column: int) -> SourceSpan:
        """The span between two places, cut off at the end of its first line."""
        text = self.lines[line - 1]
        return SourceSpan(self.file, line, column, end_column if end_line == line else len(text) + 1, text)


def read_source(text: str, file: str) -> SourceText:
    """A source with its byte order mark removed and its line ends unified.

    Raises ModelError if the text is longer than the language allows.
    """
    if len(text) > limits.TEXT_CHARACTERS:
        raise ModelError([_make_length_error(file)])
    return SourceText(file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


def _make_length_error(file: str) -> Diagnostic:
    return Diagnostic(
        f"the model text is longer than {limits.TEXT_CHARACTERS:,} characters, the most that is read",
        SourceSpan(file, 1, 1, 2, ""),
        "write repeated parts as a block, and long lists as `[value] * count`",
    )


class LineJoiner:
    """Drops line ends inside ( ) and [ ] and after `=`, and ends the last statement of every body and of the text.

    A word that starts a statement, at the start of a line, closes brackets that were left open before it: a missing
    parenthesis does not swallow the rest of the text. Each text needs its own joiner.
    """

    def __init__(self) -> None:
        self._opened: list[str] = []

    def close_brackets(self) -> None:
        """Treats all ( and [ as closed."""
        while self._opened and self._opened[-1] != "_LBRACE":
            self._opened.pop()

    def process(self, stream: Iterable[Token]) -> Iterator[Token]:
        """The tokens that the parser gets."""
        newline: Token | None = None  # the last line end that was dropped, if nothing has come since
        last: Token | None = None
        for token in stream:
            kind = token.type
            inside = bool(self._opened) and self._opened[-1] != "_LBRACE"
            if kind == SEPARATOR and token == "\n" and (inside or (last is not None and last.type == "_EQUAL")):
                newline = token
                continue
            if newline is not None and kind in STATEMENT_WORDS:
                self.close_brackets()
                yield newline
            newline = None
            self._follow(kind)
            if kind == "_RBRACE":
                yield Token.new_borrow_pos(SEPARATOR, "", token)
            last = token
            yield token
        if last is not None:
            end_line, end_column = last.end_line or 1, last.end_column or 1
            yield Token(SEPARATOR, "", last.end_pos, end_line, end_column, end_line, end_column, last.end_pos)

    def _follow(self, kind: str) -> None:
        if kind in BRACES:  # they never stand inside ( ) or [ ]
            self.close_brackets()
        if kind in OPENING:
            self._opened.append(kind)
        elif kind in CLOSING and self._opened and (self._opened[-1] == "_LBRACE") == (kind == "_RBRACE"):
            self._opened.pop()


class SpannedToken(Token):
    """A token that knows its span."""

    span: SourceSpan


def add_span(source: SourceText, token: Token) -> SpannedToken:
    result = SpannedToken(token.type, str(token))
    line, column = token.line or 1, token.column or 1
    result.span = source.span(line, column, token.end_line or line, token.end_column or column + 1)
    return result


def find_fault(token: SpannedToken) -> tuple[str, str | None] | None:
    """The error of a token by itself, with a hint; None if there is none."""
    if token.type == "UNKNOWN":
        if token == '"':
            return "this string does not end on its line", "expected a closing '\"'"
        if token in "'`“”‘’":
            return (
                f"expected a name, a number or an operator, found {quote_token(token)}",
                'strings stand in "double quotes"',
            )
        hint = {"^": "`**` is the power", "@": "`matmul(a, b)` multiplies matrices"}.get(token)
        return f"unexpected character {quote_token(token)}", hint
    if token.type == "NAME" and len(token) > limits.NAME_CHARACTERS:
        return f"this name has {len(token):,} characters; at most {limits.NAME_CHARACTERS} are allowed", None
    if token.type == "INTEGER" and (len(token) > limits.NAME_CHARACTERS or int(token) >= limits.INTEGER_BOUND):
        return f"this integer is too large: expected one below 2**63, found {quote_token(token)}", None
    if token.type == "FLOAT" and (len(token) > limits.NAME_CHARACTERS or math.isinf(float(token))):
        return f"this number is too large or too long: {quote_token(token)}", None
    if token.type == "STRING" and len(token) > limits.STRING_CHARACTERS:
        return f"this string has {len(token):,} characters; at most {limits.STRING_CHARACTERS:,} are allowed", None
    return None


def quote_token(token: str) -> str:
    """A token for errors: short, printable and in quotes."""
    text = shorten(token, 40)
    return f"'{text}'" if text.isprintable() else repr(str(text))
