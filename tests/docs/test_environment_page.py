"""Every environment variable that is read is on the page that explains them, and is read in one module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from einc_runtime import environment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/environment.md").read_text()
SOURCES = [path for folder in ("einc", "runtime/einc_runtime") for path in sorted((ROOT / folder).rglob("*.py"))]
READER = ROOT / "runtime/einc_runtime/environment.py"


def list_rows(title: str) -> set[str]:
    """The names in the first column of the table below a heading."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_page_has_every_variable_and_no_other() -> None:
    assert list_rows("Variables of einc") == set(environment.OF_EINC)
    others = list_rows("Variables of other programs that einc reads")
    assert others | list_rows("Variables of other programs that einc sets") == set(environment.OF_OTHERS)


def find_reads(path: Path) -> list[str]:
    """The lines of a file that reach for the environment of the process."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        imported = isinstance(node, ast.ImportFrom) and node.module == "os"
        used = {node.attr} if attribute else {alias.name for alias in node.names} if imported else set()
        if names & used:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_one_module_reads_the_environment() -> None:
    assert [place for path in SOURCES if path != READER for place in find_reads(path)] == []
    assert len(find_reads(READER)) >= 4


def test_no_name_of_a_variable_of_einc_is_written_elsewhere() -> None:
    """In code, as a whole string: others name it by its constant."""
    strings = {
        node.value
        for path in SOURCES
        if path != READER
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not strings & set(environment.OF_EINC)
    mentioned = {name for text in strings for name in re.findall(r"\b_?EINC_[A-Z_]+\b", text)}
    assert mentioned <= {*environment.OF_EINC, *environment.OF_OTHERS}


def test_a_variable_that_nobody_is_told_of_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINC_OTHER", "1")
    for use in (environment.read, lambda name: environment.set_default(name, "1")):
        with pytest.raises(KeyError, match="EINC_OTHER"):
            use("EINC_OTHER")
