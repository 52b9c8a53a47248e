"""Blocks of other texts: the library that comes with einc, and files that a model uses.

Such a file has blocks, and may use others. Its blocks see no params and dims of the model, so that the names in it mean
the same everywhere. A file of the library is read when one of its blocks is called.
"""

from __future__ import annotations

import enum
import functools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from einc.errors import SourceSpan
from einc.frontend import ast, limits
from einc.frontend.findings import AlreadyReported, Findings
from einc.frontend.parser import parse_text

LIBRARY_FOLDER = Path(__file__).parent.parent / "library"
"""The files of the library."""

_DEFINITION = re.compile(r"^(block|aggregate) +([A-Za-z_]\w*)\(", re.M | re.A)


Definition = TypeVar("Definition", ast.BlockDecl, ast.AggregateDecl)


class BlockOrigin(enum.Enum):
    """The text that a block stands in: the model itself, a file that it uses, or the library."""

    MODEL = "model"
    USED = "used"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class UsedDefinitions:
    """What the files that a model uses define, by name."""

    blocks: dict[str, ast.BlockDecl]
    aggregates: dict[str, ast.AggregateDecl]


@functools.cache
def _list_definitions(word: str) -> dict[str, Path]:
    files = sorted(LIBRARY_FOLDER.glob("*.ein"))
    file_of_name = {
        n: file for file in files for kind, n in _DEFINITION.findall(file.read_text("utf-8")) if kind == word
    }
    return dict(sorted(file_of_name.items()))


def list_library() -> dict[str, Path]:
    """The file of each block of the library, by name in alphabetical order."""
    return _list_definitions("block")


def list_library_aggregates() -> dict[str, Path]:
    """The file of each aggregation of the library, by name in alphabetical order."""
    return _list_definitions("aggregate")


def list_definitions() -> dict[str, Path]:
    """The file of each block and of each aggregation of the library: first the blocks."""
    return {**list_library(), **list_library_aggregates()}


@functools.cache
def find_library_block(name: str) -> ast.BlockDecl | None:
    """A block of the library; None where there is none of this name."""
    file = list_library().get(name)
    if file is None:
        return None
    blocks = (statement for statement in _parse_library(file) if isinstance(statement, ast.BlockDecl))
    return next(block for block in blocks if block.name.text == name)


@functools.cache
def find_library_aggregate(name: str) -> ast.AggregateDecl | None:
    """An aggregation of the library; None where there is none of this name."""
    file = list_library_aggregates().get(name)
    if file is None:
        return None
    aggregates = (statement for statement in _parse_library(file) if isinstance(statement, ast.AggregateDecl))
    return next(declared for declared in aggregates if declared.name.text == name)


def _parse_library(file: Path) -> tuple[ast.Statement, ...]:
    findings = Findings()
    parsed = parse_text(file.read_text("utf-8"), f"library/{file.name}", findings)
    findings.check()
    return parsed.model.statements


def show_definition(name: str) -> str:
    """The text of a definition of the library, with the comment before it."""
    lines = list_definitions()[name].read_text("utf-8").splitlines()
    heads = (f"block {name}(", f"aggregate {name}(")
    first = next(number for number, line in enumerate(lines) if line.startswith(heads))
    last = next(number for number in range(first, len(lines)) if lines[number] == "}")
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : last + 1]) + "\n"


def describe_definition(name: str) -> tuple[str, str]:
    """How a definition of the library is called, and what the comment before it says."""
    lines = show_definition(name).splitlines()
    about = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    head = next(line for line in lines if not line.startswith("#"))
    return head.removeprefix("block ").removesuffix(" {"), about


def load_used(model: ast.ModelSyntax, file: str, findings: Findings) -> UsedDefinitions:
    """The definitions of the files that a model uses, and of those that these use. Reports what is wrong with them."""
    used = UsedDefinitions({}, {})
    seen: set[str] = set()
    waiting = [(use, os.path.dirname(file)) for use in _list_uses(model)]
    while waiting:
        use, folder = waiting.pop(0)
        if len(seen) == limits.USED_FILES:
            findings.add(f"more than {limits.USED_FILES} files are used, the most that are read", use.span)
            break
        try:
            path = _find_file(use, folder, findings)
            if path in seen:
                continue
            seen.add(path)
            parsed = parse_text(_read_file(path, use.span, findings), path, findings).model
        except AlreadyReported:
            continue
        for statement in parsed.statements:
            if isinstance(statement, ast.BlockDecl):
                _add_definition(used.blocks, statement, "block", findings)
            elif isinstance(statement, ast.AggregateDecl):
                _add_definition(used.aggregates, statement, "aggregate", findings)
            elif not isinstance(statement, ast.UseStmt):
                findings.add(
                    "a file that is used has blocks and aggregates only",
                    statement.span,
                    "params go to blocks as arguments",
                )
        waiting += [(inner, os.path.dirname(path)) for inner in _list_uses(parsed)]
    return used


def _list_uses(model: ast.ModelSyntax) -> Iterator[ast.UseStmt]:
    return (statement for statement in model.statements if isinstance(statement, ast.UseStmt))


def _find_file(use: ast.UseStmt, folder: str, findings: Findings) -> str:
    """The path of a used file, which lies in the folder of the text or below it."""
    name = str(use.file.value)
    parts = name.split("/")
    inside = all(part not in ("", ".", "..") for part in parts) and "\\" not in name and "\0" not in name
    if not name.endswith(".ein") or not inside:
        message = f"expected a file of blocks beside this one or below, found {name[:100]!r}"
        raise findings.fail(message, use.file.span, 'such as `use "mine.ein"`')
    return os.path.join(folder, *parts)


def _read_file(path: str, span: SourceSpan, findings: Findings) -> str:
    try:
        with open(path, "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise findings.fail(f"'{path}' is no regular file", span)
            data = stream.read(4 * limits.TEXT_CHARACTERS + 1)
    except OSError as error:
        raise findings.fail(f"'{path}' cannot be read: {error.strerror}", span) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise findings.fail(f"'{path}' is no text in UTF-8", span) from None


def _add_definition(known: dict[str, Definition], declared: Definition, word: str, findings: Findings) -> None:
    name = declared.name
    if name.text in known:
        earlier = known[name.text].span
        findings.add(f"{word} '{name.text}' is defined already, in {earlier.file}:{earlier.line}", name.span)
        return
    known[name.text] = declared
