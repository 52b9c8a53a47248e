"""Every message of the product's own errors, read from its sources: how each is written.

    python -m tests.test_messages          # lists them: where each is raised, its text, and its hint

What stands in braces is put in as a message is made.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "einc", ROOT / "runtime" / "einc_runtime")
OF_PYTHON = re.compile(r"(Value|Type|Key|Attribute|Assertion|Runtime|OS|Memory|Import|Internal|Permission|Api)Error")
"""Errors of Python and of HTTP, and bugs: no user reads them as they are."""
UNHELPFUL = re.compile(r"\b(invalid|illegal|incorrect|improper|oops|sorry|please|an error occurred)\b", re.IGNORECASE)
"""Words that blame or apologize in place of what was expected."""


@dataclass(frozen=True)
class Message:
    error: str
    location: str
    text: str
    hint: str | None


def list_messages() -> Iterator[Message]:
    """Those of every `raise SomeError("...")` whose error is one of the product's own."""
    for file in sorted(path for folder in SOURCES for path in folder.rglob("*.py")):
        source = file.read_text("utf-8")
        if "raise " not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                continue
            error = ast.unparse(node.exc.func).rpartition(".")[2]
            if error.endswith(("Error", "Fault")) and not OF_PYTHON.fullmatch(error):
                hints = [_read(keyword.value) for keyword in node.exc.keywords if keyword.arg == "hint"]
                location = f"{file.relative_to(ROOT)}:{node.lineno}"
                yield Message(error, location, _read(node.exc.args[0]), *(hints or [None]))


def _read(value: ast.expr) -> str:
    match value:
        case ast.Constant(text):
            return str(text)
        case ast.JoinedStr(parts):
            return "".join(_read(part) for part in parts)
        case ast.BinOp(left, ast.Add(), right):
            return _read(left) + _read(right)
        case ast.FormattedValue(inner):
            return f"{{{ast.unparse(inner)}}}"
    return f"{{{ast.unparse(value)}}}"


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return list(list_messages())


def test_messages_are_found(messages: list[Message]) -> None:
    assert len(messages) > 1000
    assert sum(message.hint is not None for message in messages) > 200


def test_messages_and_hints_are_single_lines_without_a_full_stop(messages: list[Message]) -> None:
    for message in messages:
        for text in filter(None, (message.text, message.hint)):
            assert "\n" not in text, message
            assert not text.endswith(".") or text.endswith("..."), message
            assert text == text.strip(), message


def test_messages_begin_in_the_middle_of_a_line(messages: list[Message]) -> None:
    """Behind the name of the command, or of the file that is wrong: names alone have a capital letter there."""
    ordinary = re.compile(r"(The|A|An|This|There|It|No|Not|Expected|Cannot|Unknown|Found|Could|Must|Only)\b")
    assert [message for message in messages if ordinary.match(message.text)] == []


def test_messages_say_what_was_expected_instead_of_blaming(messages: list[Message]) -> None:
    assert [message for message in messages if UNHELPFUL.search(message.text)] == []


def test_what_is_not_known_is_followed_by_what_is(messages: list[Message]) -> None:
    """A name that there is not comes with a hint, or with the names that there are."""
    unknown = re.compile(r"(unknown|there is no|no) \w+ (named )?'?\{")
    bare = [
        message.location
        for message in messages
        if message.error in ("UsageError", "UsageFault") and unknown.match(message.text) and message.hint is None
    ]
    assert bare == []


if __name__ == "__main__":
    for message in list_messages():
        print(f"{message.location}: {message.error}: {message.text}")
        if message.hint is not None:
            print(f"    hint: {message.hint}")
