"""Rules that hold in every file of the project: one name for one thing, and no test that imports another."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hint_cases import CASES

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
CODE = (ROOT / "einc", ROOT / "runtime" / "einc_runtime")

TWICE = {
    "Graph": "the class of the paper's API, and the graph that it builds",
    "Tensor": "the class of the paper's API, and a tensor of the plan's schema",
}
"""Class names that are defined twice, each with the reason. At most ten; an underscore in front makes no other name."""


OPERATOR_TABLES = {"CALLS", "EXTRAS", "FAMILIES"}
"""What each file of operators says of itself, under names that the registry of `einc/ops` reads."""


VAGUE_NAMES = (
    "one", "ones", "own", "found", "other", "others", "place", "here", "there", "rest", "whole", "given", "thing",
    "things", "made", "asked", "wanted", "alike", "what", "which",
)  # fmt: skip
"""Pronouns and fillers, which say nothing about the value that they name."""
STILL_VAGUE = (
    "bench", "gpu", "importers", "mutation", "reference", "runtime/execution", "runtime/generation",
    "runtime/kernels", "serve", "serving", "testbed", "training", "training_runs", "triton", "truth",
)  # fmt: skip
"""Folders of tests that have such names. No folder is added to these."""


def read_sources(*folders: Path) -> Iterator[tuple[str, str]]:
    """The path and the text of every file. Only suspicious ones are parsed, as all take seconds."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def list_imported(text: str) -> Iterator[str]:
    """What a file imports, with the module that it is imported from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_no_test_imports_another() -> None:
    """What several tests need is in `tests/support`."""
    suspicious = r"^\s*(import|from) +tests\b[\w. ]*(\.|import +(\([^)]*|.*)\b)(test|live)_"
    imports = [
        f"{path} imports {module}"
        for path, text in read_sources(TESTS)
        if re.search(suspicious, text, re.MULTILINE)
        for module in list_imported(text)
        if re.search(r"\btests\.(\w+\.)*(test|live)_", f"{module}.")
    ]
    assert not imports


def test_files_of_tests_have_names_of_their_own() -> None:
    counts = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_one_class_name_is_one_class() -> None:
    places = defaultdict(list)
    for path, text in read_sources(*CODE):
        for name in re.findall(r"^ *class +(\w+) *[(:\[]", text, re.MULTILINE):
            places[name.lstrip("_")].append(path)
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert twice.keys() == TWICE.keys(), {name: twice.get(name) for name in twice.keys() ^ TWICE.keys()}
    assert len(TWICE) <= 10
    assert all(len(files) == 2 for files in twice.values())


def list_constants(text: str) -> Iterator[tuple[str, str]]:
    """Names of a module in upper case with the text of what they are bound to; an underscore in front is left out.

    Type variables are no constants. A value that names a constant of the same name is that one's, in another form.
    """
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        is_type_variable = isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"
        names = {target.id.lstrip("_") for target in targets if isinstance(target, ast.Name) and target.id.isupper()}
        used = {ast.unparse(node).split(".")[-1].lstrip("_") for node in ast.walk(value) if isinstance(node, ast.expr)}
        yield from ((name, ast.unparse(value)) for name in names - used if not is_type_variable)


def test_one_constant_name_has_one_value() -> None:
    """Who has read one definition knows what the name means in any other module. Parsed are files with a name that
    another file has, too."""
    bound = {
        path: (set(re.findall(r"^_*([A-Z][A-Z0-9_]*)\b[^=\n]*=", text, re.MULTILINE)), text)
        for path, text in read_sources(*CODE)
    }
    counts = Counter(name for names, _ in bound.values() for name in names)
    values: defaultdict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, (names, text) in bound.items():
        for name, value in list_constants(text) if any(counts[name] > 1 for name in names) else ():
            if not (path.startswith("einc/ops/") and name in OPERATOR_TABLES):
                values[name][value].append(path)
    assert {name: dict(paths) for name, paths in values.items() if len(paths) > 1} == {}


def list_numbers_without_reason(text: str) -> Iterator[str]:
    """Constants of a module that are numbers, and have neither a comment nor a docstring of theirs or of their group.

    A group has no empty line in it. Its reason is a comment above it, or a docstring or a comment in it.
    """
    lines = text.splitlines()
    for number in (n for n, line in enumerate(lines) if re.match(r"_?[A-Z][A-Z0-9_]*(:.*)? = [-+(]*[0-9]", line)):
        try:
            (statement,) = ast.parse(lines[number]).body
        except SyntaxError:  # it has several lines, and so is no number
            continue
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        is_number = all(
            isinstance(node, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
            or (isinstance(node, ast.Constant) and type(node.value) in (int, float))
            for node in ast.walk(statement.value)
        )
        if not isinstance(target, ast.Name) or not target.id.isupper() or not is_number:
            continue
        first = last = number
        while first > 0 and lines[first - 1].strip():
            first -= 1
        while last < len(lines) and lines[last].strip():
            last += 1
        if not any("#" in line or line.startswith('"""') for line in lines[first:last]):
            yield target.id


def test_each_number_has_its_reason() -> None:
    """A number that nobody can explain is one that nobody dares to change."""
    assert [f"{path}: {name}" for path, text in read_sources(*CODE) for name in list_numbers_without_reason(text)] == []


def list_vague_names(text: str) -> Iterator[tuple[int, str]]:
    """Where a variable, a parameter or a field has a name of VAGUE_NAMES. Python itself calls operands `other`."""
    tree = ast.parse(text)
    operands = {
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and re.fullmatch("__[a-z]+__", node.name)
        for argument in node.args.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg) and node not in operands:
            name = node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
            name = node.name
        else:
            continue
        if name.lstrip("_") in VAGUE_NAMES:
            yield node.lineno, name


def test_names_say_what_a_value_is() -> None:
    """`operator` and `best_plan` can be understood where they are used; `one`, `own` and `found` cannot."""
    vague = []
    pattern = re.compile(rf"\b_?({'|'.join(VAGUE_NAMES)})\b")
    excused = tuple(f"tests/{folder}/" for folder in STILL_VAGUE)
    for path, text in read_sources(*CODE, TESTS):
        if not path.startswith(excused) and pattern.search(re.sub(r'"""(?s:.*?)"""|"[^"\n]*"|#.*', "", text)):
            vague += [f"{path}:{line}: {name}" for line, name in list_vague_names(text)]
    assert vague == []


@pytest.mark.parametrize("folder", [*CODE, TESTS], ids=lambda folder: folder.name)
def test_limits_are_called_max(folder: Path) -> None:
    limits = [
        f"{path}: {node.id}"
        for path, text in read_sources(folder)
        if re.search(r"\b_?MOST(_|\b)", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and re.match(r"_?MOST(_|$)", node.id)
    ]
    assert not limits


def test_files_are_short_enough_to_be_read_at_once() -> None:
    lengths = {path: len(text.splitlines()) for path, text in read_sources(*CODE)}
    assert {path: lines for path, lines in lengths.items() if lines > 400} == {}


def test_one_module_knows_how_packages_are_installed() -> None:
    """A command that installs something must work in the environment that einc is in."""
    said = r"\bpip\b\W+(install|download)\b|\binstall (the )?(extra|package)\b"
    paths = [path for path, text in read_sources(*CODE) if re.search(said, text)]
    assert paths == ["runtime/einc_runtime/installing.py"]


def test_every_hint_at_a_package_is_followed_by_a_test() -> None:
    """`make test-hints` does so in fresh environments."""
    imports = re.compile(r"^from einc_runtime\.installing import", re.MULTILINE)
    assert {path for path, text in read_sources(*CODE) if imports.search(text)} == {case.file for case in CASES}


def test_nobody_is_told_to_install_einc_from_an_index() -> None:
    """None has it, so the command fails, or brings something of somebody else."""
    pages = [page for folder in ("docs", "einc", "runtime") for page in (ROOT / folder).rglob("*.md")]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    texts = [*read_sources(*CODE), *((str(page), page.read_text(encoding="utf-8")) for page in sorted(pages))]
    named = r"\beinc(-runtime)?\[|\bpip install +(-\S+ +)*['\"]?einc\b"
    assert [f"{path}: {line}" for path, text in texts for line in text.splitlines() if re.search(named, line)] == []
