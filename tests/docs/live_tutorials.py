"""The tutorials hold from their first to their last command, and their notebooks are what the pages say and run.

Run by `make test-tutorials`: they need PyTorch, a server's packages and those of notebooks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.tutorials import FOLDER, list_pages, matches, play, read_steps, write_notebook

PAGES = list_pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_reader_types_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    differences = list(play(page.read_text(encoding="utf-8"), tmp_path))
    shown = [f"$ {difference.command.line}\n{difference.printed}" for difference in differences]
    assert not shown, "\n".join([*shown, "python -m tests.docs.tutorials --write writes what is printed today"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebooks_are_those_of_the_pages(page: Path) -> None:
    notebook = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert notebook == write_notebook(page.read_text(encoding="utf-8")), "python -m tests.docs.tutorials --notebooks"


def test_a_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(FOLDER / "my-own-idea.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    printed = [
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "text" in output
    ]
    assert any("after 60 steps" in text for text in printed)
    assert "Traceback" not in "".join(printed)


def test_what_matches() -> None:
    assert matches("a\n...\nc\n", "a\nb\nb\nc\n")
    assert matches("a\n...\nc\n", "a\nc\n")
    assert matches("took ... ms\n...\n", "took 3.5 ms\nmore\n")
    assert not matches("a\n...\nc\n", "a\nb\n")
    assert not matches("a.c\n", "abc\n")
    assert [step.line for step in read_steps("```console\n$ a \\\n  b\nc\n$ d &\n```\n")] == ["a    b", "d &"]
