"""What the parser expected and what it found, in words for people."""

from __future__ import annotations

from collections.abc import Collection

from einc.frontend.tokens import SEPARATOR, STATEMENT_WORDS, Lexeme, shown
from einc_runtime.text import did_you_mean

_WRITTEN = {
    "LPAR": "'('", "RPAR": "')'", "LSQB": "'['", "RSQB": "']'", "_LBRACE": "'{'", "_RBRACE": "'}'",
    "_COMMA": "','", "_COLON": "':'", "_EQUAL": "'='", "_FROM": "'from'", "_AS": "'as'",
    "NAME": "a name", "STRING": "a string", SEPARATOR: "the end of the line",
}  # fmt: skip
_EXPRESSION = frozenset({"NAME", "INTEGER", "FLOAT", "STRING", "TRUE", "FALSE", "LSQB", "LPAR", "MINUS"})
_COMPARISONS = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_OPERATORS = frozenset({"PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "PERCENT", "POWER"}) | _COMPARISONS


def expected_words(terminals: Collection[str]) -> str:
    """`a name, ')' or ','`: the terminals in words, groups of them under one name."""
    rest = set(terminals)
    words = []
    if rest >= STATEMENT_WORDS:
        rest -= STATEMENT_WORDS | {"NAME", SEPARATOR, "$END"}
        words.append("a statement")
    if rest >= _EXPRESSION:
        rest -= _EXPRESSION
        words.append("an expression")
    if rest & _OPERATORS:
        rest -= _OPERATORS
        words.append("an operator")
    words += [_WRITTEN.get(terminal, terminal.lower()) for terminal in sorted(rest)]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} or {words[-1]}"


def found_words(token: Lexeme) -> str:
    """The token as a reader sees it."""
    if token.type == SEPARATOR:
        if token == ";":
            return "';'"
        return "the end of the line" if token else "the end of the text"
    if token.type in STATEMENT_WORDS or token.type in ("_FROM", "_AS"):
        return f"the word {shown(token)}"
    return shown(token)


def syntax_hint(start: list[Lexeme], token: Lexeme, terminals: Collection[str]) -> str | None:
    """What may help, from the tokens of the statement up to the faulty one."""
    first = start[0] if start else token
    if token.type in STATEMENT_WORDS and "NAME" in terminals:
        return f"{shown(token)} is a word of the language and cannot be a name"
    if first.type == "NAME" and len(start) == 1 and token.type == "NAME":
        return did_you_mean(first, (word.lower() for word in STATEMENT_WORDS))
    if first.type == "NAME" and len(start) == 1 and token.type == "LPAR":
        return "the result of a call needs a name: `y = ...`"
    if token.type in _COMPARISONS and "_EQUAL" not in terminals:
        return "comparisons do not chain; put parentheses around one of them"
    if {"RPAR", "RSQB"} & set(terminals) and start and token.span.line > start[-1].span.line:
        return f"a bracket is still open after line {start[-1].span.line}"
    if token.type == "_EQUAL" and "_COLON" in terminals:
        return f"a tensor is declared as `{first.lower()} name : dtype[dims]`"
    if first.type == "OUTPUT" and len(start) == 2 and token.type == "LPAR":
        return f"name the result: `output y = {start[1]}(...)`"
    if "LSQB" in [lexeme.type for lexeme in start] and {"NAME", "RSQB"} & set(terminals):
        return _index_hint(first, token)
    return None


def _index_hint(first: Lexeme, token: Lexeme) -> str | None:
    """What to write in place of a token that can be neither a dimension nor an index."""
    if first.type in ("INPUT", "WEIGHT") and (token.type in ("INTEGER", "LPAR") or token.type in _OPERATORS):
        return "dimensions are names; declare the number with `dim name = ...`"
    if token.type in ("INTEGER", "_COLON") and first.type not in ("PARAM", "DIM"):
        return "indices are names; `slice(x, rows=[0, 1])` takes positions"
    return None
