"""The tutorials run: files are written, commands are typed, and what is printed is compared with what the page shows.

A page of docs/tutorials has fenced blocks. One with a title is a file. A block `console` has commands, each after `$ `,
and what they print; `...` stands for any text, of one line or, alone on a line, of several. A command that ends in `&`
goes on until the page ends, and the next one waits for what it prints. Other blocks are for the reader alone.

    python -m tests.docs.tutorials [--write] [--notebooks] [PAGE...]

plays pages and shows what differs; `--write` puts what was printed in the place of what differs, and `--notebooks`
writes each page as a notebook beside it, without playing it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
FENCE = re.compile(r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```\n", re.M | re.S)
LIMIT = 1800.0
"""Seconds for one command: `einc advise` on a loaded machine."""


@dataclass(frozen=True)
class WrittenFile:
    """A file that the page has the reader write."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line, what the page says that it prints, and where on the page that stands."""

    line: str
    shown: str
    span: tuple[int, int]

    @property
    def goes_on(self) -> bool:
        return self.line.endswith(" &")


@dataclass(frozen=True)
class Difference:
    """A command that printed something else than the page shows."""

    command: Command
    printed: str


PROGRESS = re.compile(r"^einc: after \d+ s: .*\n", re.MULTILINE)
"""Lines of slow computers."""


def list_pages() -> list[Path]:
    """The tutorials, without the page that lists them."""
    return sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")


def read_steps(text: str) -> Iterator[WrittenFile | Command]:
    """What a reader of a page does, in order."""
    for block in FENCE.finditer(text):
        if block["title"]:
            yield WrittenFile(block["title"], block["body"])
        elif block["language"] == "console":
            yield from _read_commands(block["body"], block.start("body"))


def _read_commands(body: str, offset: int) -> Iterator[Command]:
    for entry in re.finditer(r"^\$ (?P<line>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", body, re.M):
        span = (offset + entry.start("shown"), offset + entry.end("shown"))
        yield Command(entry["line"].replace("\\\n", " "), entry["shown"], span)


def matches(shown: str, printed: str) -> bool:
    """Whether a text is what a page shows, where `...` stands for anything."""
    lines = shown.rstrip().split("\n")
    patterns = [r"(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n" for line in lines]
    return re.fullmatch("".join(patterns), printed.rstrip() + "\n") is not None


def play(text: str, folder: Path) -> Iterator[Difference]:
    """Does what a page says, in an empty folder. Raises RuntimeError for a command that fails."""
    running: list[subprocess.Popen[str]] = []
    try:
        for step in read_steps(text):
            if isinstance(step, WrittenFile):
                (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / step.name).write_text(step.text, encoding="utf-8")
                continue
            printed = _start(step, folder, running) if step.goes_on else _run(step, folder)
            if not matches(step.shown, printed):
                yield Difference(step, printed)
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _environment(folder: Path) -> dict[str, str]:
    """With a cache of the page's own: what another version planned and kept is not what this one plans."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}"
    known["XDG_CACHE_HOME"] = str(folder / ".cache")
    return {**known, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}


def _run(command: Command, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", command.line], cwd=folder, env=_environment(folder), text=True, timeout=LIMIT, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"$ {command.line}\nended with {done.returncode} and printed\n{done.stdout}")
    return PROGRESS.sub("", done.stdout)


def _start(command: Command, folder: Path, running: list[subprocess.Popen[str]]) -> str:
    """Starts a server, and waits until it has printed what the page shows."""
    log = folder / f"server-{len(running)}.log"
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.line.removesuffix(' &')}"], cwd=folder, env=_environment(folder), text=True,
            stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    running.append(process)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and process.poll() is None:
        printed = log.read_text(encoding="utf-8")
        if printed.endswith("\n") and matches(command.shown, printed):
            return printed
        time.sleep(0.1)
    raise RuntimeError(f"$ {command.line}\nended, and printed\n{log.read_text(encoding='utf-8')}")


def update(text: str, differences: list[Difference]) -> str:
    """The page with what was printed in the place of what differs."""
    for difference in reversed(differences):
        start, end = difference.command.span
        printed = difference.printed.rstrip()
        text = text[:start] + (f"{printed}\n" if printed else "") + text[end:]
    return text


def write_notebook(text: str) -> str:
    """The page as a notebook without outputs: prose, files that a cell writes, and commands after `!`."""
    import nbformat

    cells, start = [], 0
    for block in FENCE.finditer(text):
        if not block["title"] and block["language"] != "console":
            continue
        cells.append(nbformat.v4.new_markdown_cell(text[start : block.start()].strip()))
        cells.append(nbformat.v4.new_code_cell(_write_cell(block)))
        start = block.end()
    cells.append(nbformat.v4.new_markdown_cell(text[start:].strip()))
    cells = [cell for cell in cells if cell.source]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # the library draws ids at random, and the same page is to give the same bytes
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=kernel)) + "\n"


def _write_cell(block: re.Match[str]) -> str:
    if block["title"]:
        return f"%%writefile {block['title']}\n{block['body'].rstrip()}"
    commands = list(_read_commands(block["body"], 0))
    if commands[0].goes_on:
        return f"%%script --bg bash\n{commands[0].line.removesuffix(' &')}"
    return "\n".join(f"!{command.line}" for command in commands)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--notebooks", action="store_true")
    parser.add_argument("pages", nargs="*", type=Path)
    chosen = parser.parse_args()
    differing = 0
    for page in chosen.pages or list_pages():
        text = page.read_text(encoding="utf-8")
        if chosen.notebooks:
            page.with_suffix(".ipynb").write_text(write_notebook(text), encoding="utf-8")
            continue
        with tempfile.TemporaryDirectory() as folder:
            differences = list(play(text, Path(folder)))
        for difference in differences:
            print(f"{page.name}: $ {difference.command.line}\n{difference.printed}")
        if chosen.write and differences:
            page.write_text(update(text, differences), encoding="utf-8")
        differing += len(differences)
    return 1 if differing and not chosen.write else 0


if __name__ == "__main__":
    sys.exit(main())
