"""The parser's tables of `grammars/ein.lark`.

To make them takes as long as to search a small plan, so they come with einc as JSON (`tests/support/parser_tables.py`
writes it). They are made again where another version of Lark wrote them, or where the grammar was changed since.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any, cast

import lark
from lark import Lark, Token

from einc.data import find_folder
from einc.frontend.transformer import AstBuilder


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
