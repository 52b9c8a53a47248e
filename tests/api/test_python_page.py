"""docs/python.md runs as it stands, from top to bottom, and names everything that the package exports."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import einc as es
from einc.api.arguments import GraphOptions, PlanningOptions
from einc.options import CompileOptions

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 7
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), namespace)
    assert (tmp_path / "ffn.bin").stat().st_size > 1000


def test_the_page_has_every_call() -> None:
    text = PAGE.read_text(encoding="utf-8")
    calls = [name for name in dir(es.Graph) if not name.startswith("_")] + ["compileGraph", "createGraph", "tensorDesc"]
    assert [name for name in calls if f"{name}(" not in text] == []


def test_the_package_lists_its_names() -> None:
    assert set(es.__all__) <= set(dir(es))


def test_options_are_named_for_editors() -> None:
    """`compile` names every option of a compilation, so that editors complete it."""
    named = {*PlanningOptions.__annotations__, *GraphOptions.__annotations__, *inspect.signature(es.compile).parameters}
    known = {field.name for field in dataclasses.fields(CompileOptions)} - {"definitions"}
    assert known - named == set()
    assert set(PlanningOptions.__annotations__) - known == {"schedule_mode", "proposers"}
