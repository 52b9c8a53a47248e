"""The page has every environment variable that is read, which one module reads, and what modules keep between calls."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from einc_runtime import environment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/environment.md").read_text()
SOURCES = [path for folder in ("einc", "runtime/einc_runtime") for path in sorted((ROOT / folder).rglob("*.py"))]
"""All files. Only those are parsed whose text may have what is looked for, as all take seconds."""
READER = ROOT / "runtime/einc_runtime/environment.py"


def list_rows(title: str) -> set[str]:
    """The names in the first column of the table below a heading."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_page_has_every_variable_and_no_other() -> None:
    assert list_rows("Variables of einc") == set(environment.OF_EINC)
    rows = list_rows("Variables of other programs that einc reads")
    assert rows | list_rows("Variables of other programs that einc sets") == set(environment.OF_OTHERS)


def find_reads(path: Path) -> list[str]:
    """The lines of a file that reach for the environment of the process."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    lines, text = [], path.read_text()
    if not re.search("|".join(names), text):
        return []
    for node in ast.walk(ast.parse(text)):
        attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        imported = isinstance(node, ast.ImportFrom) and node.module == "os"
        used = {node.attr} if attribute else {alias.name for alias in node.names} if imported else set()
        if names & used:
            lines.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return lines


def test_one_module_reads_the_environment() -> None:
    assert [read for path in SOURCES if path != READER for read in find_reads(path)] == []
    assert len(find_reads(READER)) >= 4


def test_no_name_of_a_variable_of_einc_is_written_elsewhere() -> None:
    """In code, as a whole string: others name it by its constant."""
    strings = {
        node.value
        for path in SOURCES
        if path != READER and "EINC_" in path.read_text()
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


CHANGING = {"list", "dict", "set", "Counter", "defaultdict", "deque", "ContextVar", "WeakValueDictionary", "WeakSet"}
"""What makes something that is filled later, if a module has it and it is empty at first."""


def is_filled_later(value: ast.expr | None) -> bool:
    if isinstance(value, ast.List):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    called = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else None
    return called in CHANGING and all(isinstance(arg, ast.Constant) for arg in value.args)  # type: ignore[union-attr]


def find_states(path: Path) -> set[str]:
    """Names that a module assigns again in functions, and containers of it that are empty when it is imported."""
    text = path.read_text()
    if not re.search(rf"^ *global |^\w+(: .*)? = (\[|\{{|({'|'.join(CHANGING)})\b)", text, re.MULTILINE):
        return set()
    tree = ast.parse(text)
    names = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_filled_later(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_the_page_has_what_modules_keep() -> None:
    rows = re.findall(r"^\| `([\w/.]+): (\w+)`((?:, `\w+`)*) \|", PAGE, re.M)
    told = {(file, name) for file, first, more in rows for name in (first, *re.findall(r"\w+", more))}
    package = ROOT / "runtime/einc_runtime"
    results = {
        (str(path.relative_to(package if path.is_relative_to(package) else ROOT)), name)
        for path in SOURCES
        for name in find_states(path)
    }
    assert results <= told
    filled, assigned = ("kernels/numpy/onednn.py", "_forms"), ("cli/output.py", "_results")
    assert {filled, assigned} <= results  # both kinds are seen
    assert all(re.search(rf"^{name}\b.* = ", (package / file).read_text(), re.M) for file, name in told)
