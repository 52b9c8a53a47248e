"""Parsing model texts with Lark's LALR tables, token by token, so that all mistakes of a text are reported.

After a mistake, the rest of the statement is skipped and parsing goes on with the next one. The parser keeps its state
on its own stacks; nothing here recurses with the text.

To make the tables of `grammars/ein.lark` takes as long as to search a small plan, so they come with einc as JSON
(`tests/support/parser_tables.py` writes it). They are made again where another version of Lark wrote them, or where the
grammar was changed since.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import lark
from lark import Lark, Token, UnexpectedToken

from einc.data import find_folder
from einc.errors import MAX_FINDINGS
from einc.frontend import ast, limits
from einc.frontend.ast import measure_depth
from einc.frontend.findings import Findings, describe_expected, describe_found, suggest_syntax
from einc.frontend.tokens import SEPARATOR, LineJoiner, SourceText, SpannedToken, add_span, find_fault, read_source
from einc.frontend.transformer import AstBuilder


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What could be read of a text; `lost_names` are the names in statements that could not be parsed."""

    model: ast.ModelSyntax
    lost_names: frozenset[str]


def parse(text: str, file: str) -> ast.ModelSyntax:
    """The syntax of a whole text. Raises ModelError with all its mistakes."""
    findings = Findings()
    parsed = parse_text(text, file, findings)
    findings.check()
    return parsed.model


def parse_text(text: str, file: str, findings: Findings) -> ParsedText:
    """The syntax of a text as far as it can be read; mistakes are added to the findings."""
    return _RecoveringParser(read_source(text, file), findings).run()


class _RecoveringParser:
    """One parse of a text. It feeds tokens to Lark, and after a mistake it finds the place to go on."""

    def __init__(self, source: SourceText, findings: Findings) -> None:
        self._source = source
        self._findings = findings
        self._parser: Any = load_parser().parse_interactive(source.text)  # its methods are not typed
        self._layout = LineJoiner()
        self._statement: list[SpannedToken] = []  # the tokens of the statement so far
        self._braces: list[SpannedToken] = []  # the open bodies
        self._brackets = 0  # the open ( and [ of the statement
        self._lost: set[str] = set()

    def run(self) -> ParsedText:
        tokens = self._layout.process(self._parser.lexer_thread.lex(self._parser.parser_state))
        start = SpannedToken(SEPARATOR, "")  # of the statement that is skipped
        skipping = -1  # the open braces of what is skipped; -1 while nothing is
        for plain in tokens:
            token = add_span(self._source, plain)
            if skipping < 0:
                if self._take(token):
                    continue
                if len(self._findings) >= MAX_FINDINGS:
                    self._findings.check()
                start = self._statement[0] if self._statement else token
                self._give_up()
                skipping = 0
            if skipping == 0 and _starts_statement(token, start):
                self._layout.close_brackets()
                if self._take(token):
                    skipping = -1
                    continue
            skipping = self._skip(token, skipping)
        self._close_bodies()
        model: ast.ModelSyntax = self._parser.feed_eof()
        return ParsedText(model, frozenset(self._lost))

    def _take(self, token: SpannedToken) -> bool:
        """Feed one token; on a mistake, report it and return False."""
        mistake = find_fault(token)
        if mistake is not None:
            self._findings.add(mistake[0], token.span, mistake[1])
            return False
        if token.type in ("LPAR", "LSQB", "_LBRACE") and len(self._braces) + self._brackets == limits.NESTING:
            message = f"brackets nest too deeply here; at most {limits.NESTING} levels are allowed"
            self._findings.add(message, token.span, "give parts of the expression names of their own")
            return False
        if len(self._statement) == limits.STATEMENT_TOKENS:
            message = f"this statement is longer than {limits.STATEMENT_TOKENS:,} tokens, the most that are read"
            self._findings.add(message, self._statement[0].span, "split it into several statements")
            return False
        try:
            self._parser.feed_token(token)
        except UnexpectedToken:
            terminals = self._parser.accepts()
            message = f"expected {describe_expected(terminals)}, found {describe_found(token)}"
            self._findings.add(message, token.span, suggest_syntax(self._statement, token, terminals))
            return False
        if token.type == SEPARATOR and self._statement:
            done: ast.Statement = self._parser.parser_state.value_stack[-2]  # below the separator
            if measure_depth(done) > limits.NESTING:
                message = f"this expression nests too deeply; at most {limits.NESTING} levels are allowed"
                self._findings.add(message, done.span, "give parts of the expression names of their own")
                return False
        self._follow(token)
        return True

    def _follow(self, token: SpannedToken) -> None:
        """Keep track of the statement and of the open brackets."""
        match token.type:
            case "LPAR" | "LSQB":
                self._brackets += 1
            case "RPAR" | "RSQB":
                self._brackets -= 1
            case "_LBRACE":
                self._braces.append(token)
            case "_RBRACE":
                self._braces.pop()
        if token.type in (SEPARATOR, "_LBRACE"):
            self._statement = []
        else:
            self._statement.append(token)

    def _give_up(self) -> None:
        """Take back the unfinished statement: unwind to where a new statement may start."""
        if self._statement and self._statement[-1].type == "_RBRACE":  # a body is closed: its statement is whole
            self._parser.feed_token(Token(SEPARATOR, ""))
        state = self._parser.parser_state
        while "INPUT" not in self._parser.choices():
            state.state_stack.pop()
            state.value_stack.pop()
        self._lose(self._statement)
        self._statement, self._brackets = [], 0

    def _skip(self, token: SpannedToken, braces: int) -> int:
        """Pass over one token; returns the open braces of what is skipped, or -1 after its end."""
        self._lose([token])
        if token.type == "_LBRACE":
            return braces + 1
        if token.type == "_RBRACE":
            return max(0, braces - 1)
        return -1 if token.type == SEPARATOR and braces == 0 else braces

    def _lose(self, tokens: list[SpannedToken]) -> None:
        self._lost.update(str(token) for token in tokens if token.type == "NAME")

    def _close_bodies(self) -> None:
        """Close the bodies that the text leaves open, the innermost first."""
        while self._braces:
            opening = self._braces.pop()
            self._findings.add("this '{' is not closed", opening.span, "expected '}' before the end of the text")
            for kind in ("_RBRACE", SEPARATOR):
                self._parser.feed_token(Token(kind, ""))


def _starts_statement(token: SpannedToken, start: SpannedToken) -> bool:
    """Whether a token looks like the start of the next statement after a bracket was left open.

    It is a name that comes first on its line, and stands no further right than the faulty statement's start.
    """
    span, start_span = token.span, start.span
    if token.type != "NAME" or span.line == start_span.line or span.column > start_span.column:
        return False
    return not span.text[: span.column - 1].strip()


class _KeepAll:
    """Tells Lark to keep the terminals that no rule of the grammar asks for."""

    always_accept = ("UNKNOWN",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


@functools.cache
def load_parser() -> Lark:
    """The parser, once per process."""
    folder = find_folder("grammars")
    grammar = (folder / "ein.lark").read_text(encoding="utf-8")
    tables = json.loads((folder / "ein.json").read_bytes(), object_hook=_restore_numbers)
    if tables["stamp"] != stamp(grammar):
        return make_parser(grammar)
    load: Any = Lark._load_from_dict
    return cast(Lark, load(tables["data"], tables["memo"], postlex=_KeepAll(), transformer=AstBuilder()))


def make_parser(grammar: str) -> Lark:
    """The parser of a grammar, which takes about 60 ms."""
    return Lark(
        grammar, parser="lalr", lexer="basic", postlex=_KeepAll(), transformer=AstBuilder(), maybe_placeholders=False
    )


def stamp(grammar: str) -> str:
    """What tables depend on."""
    return f"{lark.__version__} {hashlib.sha256(grammar.encode()).hexdigest()}"


def _restore_numbers(entries: dict[str, Any]) -> dict[Any, Any]:
    """Keys of JSON that were numbers."""
    return {int(key) if key.isdecimal() else key: value for key, value in entries.items()}
