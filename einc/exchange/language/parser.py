"""Text to syntax tree (paper, Section 5.2), by the grammar `grammars/exprog.lark`.

The parser is LALR and builds the tree while it reads, so that no text can make it recurse deeply.
"""

from __future__ import annotations

import contextlib
import functools
from typing import cast

from lark import Lark
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from einc.data import find_folder
from einc.errors import ProgramError
from einc.exchange.language.syntax import ActionNode, ProgramSource, ProgramTree
from einc.exchange.language.transformer import Declaration, InvalidEntry, ProgramTreeBuilder

MAX_PROGRAM_TEXT = 4 * 2**20
"""Characters of a text; reading them takes some seconds."""

_TOKEN_WORDS = {
    "GPUS": "'GPUS:'", "PARTITIONS": "'PARTITIONS:'", "IN": "'IN:'", "OUT": "'OUT:'", "NAME": "a name",
    "INT": "a site number", "NUMBER": "a number", "SIZE": "'size'", "AFTER": "'after'", "AT": "'@'", "PLUS": "'+'",
    "LBRACE": "'{'", "RBRACE": "'}'", "LPAR": "'('", "RPAR": "')'", "COLON": "':'", "__ANON_0": "'->'",
    "_COPIED": "'=>'", "_ADDED": "'<='",
    "_COMMA": "','", "_SEMICOLON": "';'", "_NEWLINE": "a new line", "$END": "the end",
}  # fmt: skip


def parse(text: str, file: str = "<program>") -> ProgramTree:
    """The syntax tree of a text. Raises ProgramError, with its place, for anything that is no exchange program."""
    source = ProgramSource(file, text)
    if len(text) > MAX_PROGRAM_TEXT:
        raise ProgramError(f"the program is longer than {MAX_PROGRAM_TEXT} characters", where=file)
    try:
        declared, actions = cast("tuple[list[Declaration], list[ActionNode]]", _load_lark().parse(source.text))
    except InvalidEntry as error:
        raise source.error(error.message, error.text_range, error.hint) from None
    except UnexpectedInput as error:
        raise _describe_syntax_error(source, error) from None
    declarations: dict[str, Declaration] = {}
    for declaration in declared:
        if declaration.header in declarations:
            raise source.error(f"{declaration.header} is declared twice", declaration.text_range)
        declarations[declaration.header] = declaration
    for header in ("IN", "OUT"):
        if header not in declarations:
            raise ProgramError(f"the program has no {header}: declaration", where=source.file)
    gpus = declarations.get("GPUS")
    return ProgramTree(
        gpus=None if gpus is None else tuple(gpus.entries),
        partitions=tuple(declarations["PARTITIONS"].entries) if "PARTITIONS" in declarations else (),
        holdings=tuple(declarations["IN"].entries),
        requirements=tuple(declarations["OUT"].entries),
        actions=tuple(actions),
        source=source,
        gpus_place=(0, 0) if gpus is None else gpus.text_range,
    )


@functools.cache
def _load_lark() -> Lark:
    """The parser's tables, built once per process."""
    grammar = (find_folder("grammars") / "exprog.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", transformer=ProgramTreeBuilder(), maybe_placeholders=False)


def _describe_syntax_error(source: ProgramSource, error: UnexpectedInput) -> ProgramError:
    end = len(source.text.rstrip())
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        token = error.token
        text_range = (token.start_pos or 0, token.end_pos or 0)
        shown = str(token) if len(token) <= 40 else f"{token[:40]}..."
        unexpected = "the end of the line" if token.type == "_NEWLINE" else repr(shown.split("\n")[0])
    elif isinstance(error, UnexpectedCharacters):
        at = error.pos_in_stream or 0
        text_range, unexpected = (at, at + 1), ascii(source.text[at])
    else:
        text_range, unexpected = (end, end + 1), "the end"
    expected = sorted(_TOKEN_WORDS[word] for word in _list_accepted(source.text) if word in _TOKEN_WORDS)
    message = f"unexpected {unexpected}"
    if expected:
        message += f"; expected {', '.join(expected[:-1])}{' or ' if expected[1:] else ''}{expected[-1]}"
    return source.error(message, text_range, _advise(source, text_range, unexpected))


def _list_accepted(text: str) -> set[str]:
    """The terminals that are allowed at the place of the error."""
    again = _load_lark().parse_interactive(text)
    with contextlib.suppress(UnexpectedInput):
        again.exhaust_lexer()
    return set(again.accepts())  # type: ignore[no-untyped-call]


def _advise(source: ProgramSource, text_range: tuple[int, int], unexpected: str) -> str | None:
    """Advice for frequent mistakes with newlines."""
    before = source.text[: text_range[0]].rstrip()
    if unexpected == "'->'" and "\n" in source.text:
        head = max(((before.rfind(word + ":"), word) for word in ("IN", "OUT", "PARTITIONS")), default=(-1, ""))
        if head[0] >= 0 and "\n\n" not in before[head[0] :]:
            return f"a line that ends in ';' or ',' continues {head[1]}: end it without, or with a blank line"
    if unexpected == "the end of the line" and before.endswith(("->", "@", "+", "(", ":")):
        return "a statement goes on in the next line only after ';' or ','"
    return None
