"""Tokens of a model text: where statements end, which tokens are faulty, and where each stands.

The terminals themselves are in `grammars/ein.lark`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from lark import Token

from einc.errors import SourceSpan
from einc.frontend import limits
from einc.frontend.source import Source
from einc_runtime.text import shorten

SEPARATOR = "_SEPARATOR"
OPENING = frozenset({"LPAR", "LSQB", "_LBRACE"})
CLOSING = frozenset({"RPAR", "RSQB", "_RBRACE"})
BRACES = frozenset({"_LBRACE", "_RBRACE"})
STATEMENT_WORDS = frozenset(
    {"MODEL", "PARAM", "DIM", "INPUT", "WEIGHT", "OUTPUT", "RETURN", "BLOCK", "REPEAT", "PRESET"}
)  # they start a statement, and stand nowhere else


class Layout:
    """Drops line ends inside ( ) and [ ], and ends the last statement of every body and of the text.

    A word that starts a statement, at the start of a line, closes brackets that were left open before it: a missing
    parenthesis does not swallow the rest of the text. One layout serves one text.
    """

    def __init__(self) -> None:
        self._opened: list[str] = []

    def close_brackets(self) -> None:
        """Takes all ( and [ for closed."""
        while self._opened and self._opened[-1] != "_LBRACE":
            self._opened.pop()

    def process(self, stream: Iterable[Token]) -> Iterator[Token]:
        """The tokens that the parser is to see."""
        newline: Token | None = None  # the last line end that was dropped, if nothing has come since
        last: Token | None = None
        for token in stream:
            kind = token.type
            if kind == SEPARATOR and token == "\n" and self._opened and self._opened[-1] != "_LBRACE":
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


class Lexeme(Token):
    """A token that knows its span."""

    span: SourceSpan


def lexeme(source: Source, token: Token) -> Lexeme:
    """The token with its span in the source."""
    result = Lexeme(token.type, str(token))
    line, column = token.line or 1, token.column or 1
    result.span = source.span(line, column, token.end_line or line, token.end_column or column + 1)
    return result


def fault(token: Lexeme) -> tuple[str, str | None] | None:
    """What is wrong with a token by itself, and a hint; None where nothing is."""
    if token.type == "UNKNOWN":
        if token == '"':
            return "this string does not end on its line", "expected a closing '\"'"
        if token in "'`“”‘’":
            return f"expected a name, a number or an operator, found {shown(token)}", 'strings stand in "double quotes"'
        hint = {"^": "`**` is the power", "@": "`matmul(a, b)` multiplies matrices"}.get(token)
        return f"unexpected character {shown(token)}", hint
    if token.type == "NAME" and len(token) > limits.NAME_CHARACTERS:
        return f"this name has {len(token):,} characters; at most {limits.NAME_CHARACTERS} are allowed", None
    if token.type == "INTEGER" and (len(token) > limits.NAME_CHARACTERS or int(token) >= limits.INTEGER):
        return f"this integer is too large: expected one below 2**63, found {shown(token)}", None
    if token.type == "FLOAT" and (len(token) > limits.NAME_CHARACTERS or math.isinf(float(token))):
        return f"this number is too large or too long: {shown(token)}", None
    if token.type == "STRING" and len(token) > limits.STRING_CHARACTERS:
        return f"this string has {len(token):,} characters; at most {limits.STRING_CHARACTERS:,} are allowed", None
    return None


def shown(token: str) -> str:
    """A token as an error shows it: short, printable and in quotes."""
    text = shorten(token, 40)
    return f"'{text}'" if text.isprintable() else repr(str(text))
