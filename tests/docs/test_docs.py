"""The documents name what exists: links, files, modules, targets of the Makefile, commands and their options."""

from __future__ import annotations

import fnmatch
import pkgutil
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from einc.cli.main import main
from einc.cli.root import root
from einc_runtime.cli.root import root as runtime_root

ROOT = Path(__file__).parents[2]
FOLDERS = ("einc", "runtime", "tests", "docs", "models", "grammars")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [*ROOT.glob("*.md"), ROOT / "einc/README.md", *ROOT.glob("runtime/**/*.md"), *ROOT.glob("docs/**/*.md")]
)
PROGRAMS = {"einc": root, "einc-runtime": runtime_root}
GENERATED = {"docs/gpu-results.md"}
"""What a command writes, and git ignores."""

OLD_NAMES = {"CHANGELOG.md"}
"""Pages about names that are gone: their links must lead somewhere, their code may not."""


class Code(NamedTuple):
    """A piece of code on a page: a span between backticks, or one line of a block with what continues it."""

    line: int
    text: str


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def code_of(page: str) -> tuple[tuple[Code, ...], tuple[tuple[int, str], ...]]:
    """The code on a page, and the lines that are prose."""
    code: list[Code] = []
    prose: list[tuple[int, str]] = []
    fenced, depth = False, 0  # depth: how far the first line of an indented block is indented
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("```"):
            fenced, depth = not fenced, indent
        elif fenced or (indent >= 4 and (depth or not prose or not prose[-1][1].strip())):
            if not line.strip():
                continue
            if not fenced:
                depth = depth or indent
            if indent > depth and code:
                code[-1] = Code(code[-1].line, f"{code[-1].text} {line.strip()}")
            else:
                code.append(Code(number, line.strip()))
        else:
            depth = depth if not line.strip() else 0
            prose.append((number, line))
    spans = [
        Code(text_of(page).count("\n", 0, span.start()) + 1, span[1].replace("\n", " "))
        for span in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text_of(page))
    ]
    return (*code, *spans), tuple(prose)


def list_code(pages: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """The pieces of code of all pages: page, line and text."""
    return ((page, number, text) for page in pages for number, text in code_of(page)[0])


def test_links_lead_somewhere() -> None:
    lost = []
    for page, number, line in ((name, *line) for name in PAGES for line in code_of(name)[1]):
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (ROOT / page).parent / path if path else ROOT / page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                lost.append(f"{page}:{number}: {link}")
    assert lost == []


def test_files_and_folders_exist() -> None:
    lost = []
    for page, number, text in list_code(sorted(set(PAGES) - OLD_NAMES)):
        written = set(re.findall(r'^```\w+ title="([^"]+)"$', text_of(page), re.M))  # by the reader of a tutorial
        names = re.findall(r"[\w.*/-]*\w\.py\b", text)
        names += re.findall(rf"(?<![\w/.])(?:{'|'.join(FOLDERS)})/[\w./*-]*", text)
        lost += [f"{page}:{number}: {name}" for name in sorted({*names} - written) if not exists(name)]
    assert lost == []


def test_comments_name_files_that_exist() -> None:
    """The same for docstrings and comments, whose files stand in backticks."""
    lost = []
    for file in files():
        if file.endswith(".py") and not file.startswith("/tests/docs/"):
            lines = (ROOT / file[1:]).read_text(encoding="utf-8").splitlines()
            names = (
                (n, name) for n, line in enumerate(lines, 1) for name in re.findall(r"`([\w./-]*\w\.(?:py|md))`", line)
            )
            lost += [f"{file}:{number}: {name}" for number, name in names if not exists(name)]
    assert not lost, lost


def test_modules_exist() -> None:
    lost = []
    for page, number, text in list_code(sorted(set(PAGES) - OLD_NAMES)):
        for name in re.findall(r"(?<![\w./-])einc(?:_runtime)?(?:\.[A-Za-z_]\w*)+(?![\w/])", text):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                if not name.endswith((".ein", ".bin")):
                    lost.append(f"{page}:{number}: {name}")
    assert lost == []


def test_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of_makefile(), re.M))
    used = [
        (f"{page}:{number}", name)
        for page, number, text in list_code(PAGES)
        for name in re.findall(r"^make ([a-z-]+)", text)
    ]
    assert [f"{location}: make {name}" for location, name in used if name not in targets] == []


def test_commands_and_options_exist() -> None:
    faults = ((page, number, fault) for page, number, text in list_code(PAGES) for fault in command_faults(text))
    assert [f"{page}:{number}: {fault}" for page, number, fault in faults] == []


def test_what_the_checks_find() -> None:
    """The checks see a mistake of each kind."""
    wrong = [
        "einc compyle x",
        "einc run --chek x",
        "einc exprog check --emit x",
        "a | einc compile --selector best",
        "einc-runtime explain x",
    ]
    assert [len(list(command_faults(text))) for text in wrong] == [1, 1, 1, 1, 1]
    sound = "$ einc compile M [-m MACHINE] [--devices N | 0,1] [--selector greedy|random] --emit=graph  # --no option"
    assert list(command_faults(sound)) == []
    existing = ["einc/cli/main.py", "cli/main.py", "tests/docs", "test_d*.py"]
    assert [
        name for name in (*existing, "einc/nothing.py", "li/main.py", "docs/nothing.md") if exists(name)
    ] == existing
    assert {"exit-codes", "entry"} & anchors(ROOT / "docs/cli.md") == {"exit-codes"}


def test_all_pages_are_read() -> None:
    assert {"README.md", "einc/README.md", "runtime/README.md", "docs/cli.md", "docs/decisions/README.md"} <= set(PAGES)
    assert sum(len(code_of(page)[0]) for page in PAGES) > 1000


def test_the_readme_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model of the README is the one that comes with einc, and each line of its output is still printed."""
    monkeypatch.chdir(tmp_path)
    text = text_of("README.md") + text_of("docs/features.md")
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^(?:    .*)?\n)+", text, re.M)]
    (model,) = (block.strip() for block in blocks if "# ffn.ein" in block)
    head, shown = (block.strip("\n") for block in blocks if "ffn on 8 sites" in block)
    assert shown.startswith(head)
    assert main(["models", "copy", "ffn"]) == 0
    statements = (tmp_path / "ffn.ein").read_text(encoding="utf-8").partition("model ffn")
    assert statements[2].startswith(model.partition("model ffn")[2])
    assert main(["compile", "ffn.ein", "-m", "dgx-a100", "-o", "ffn.bin"]) == 0
    capsys.readouterr()
    assert main(["explain", "ffn.bin"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in shown.splitlines() if line not in printed] == []


def command_faults(text: str) -> Iterator[str]:
    """What a command line or a synopsis has that `einc` has not: a command, an option, or a choice of an option."""
    for program, line in re.findall(r"(?:^|\| |\(|\$ )(einc|einc-runtime)((?: .*)?)$", text.split("  #")[0]):
        words = re.findall(r"[^\s\[\]()]+", line)
        command: click.Command = PROGRAMS[program]
        while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
            name = words.pop(0)
            subcommand = command.get_command(click.Context(command), name)
            if subcommand is None:
                yield f"{program} {name}"
                return
            command = subcommand
        if isinstance(command, click.Group) and words[:1] in (["..."], ["COMMAND"]):
            continue
        options = {o: p for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help": None, "-h": None}
        for i, word in enumerate(words):
            option, _, value = word.partition("=")
            if option == "|":
                break
            if not re.fullmatch(r"--[a-z][a-z-]*|-[a-zA-Z]", option):
                continue
            if option not in options:
                yield f"{command.name} {option}"
                continue
            kind = getattr(options[option], "type", None)
            if isinstance(kind, click.Choice):
                choices = value or (words[i + 1] if i + 1 < len(words) else "")
                yield from (
                    f"{option} {choice}"
                    for choice in choices.split("|")
                    if choice.islower() and choice not in kind.choices
                )


def exists(name: str) -> bool:
    """Whether a path, or a pattern of paths, is in the tree: from the root, or as the end of a file's path."""
    if name.rstrip("/") in GENERATED or (ROOT / name).exists():
        return True
    name = name.replace("NAME", "*")  # as pages that say how to add something have it
    return any(fnmatch.fnmatch(file, f"*/{name.lstrip('./')}") for file in files())


@cache
def files() -> tuple[str, ...]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return tuple(f"/{path.relative_to(ROOT).as_posix()}" for path in paths if "__pycache__" not in path.parts)


@cache
def text_of_makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
