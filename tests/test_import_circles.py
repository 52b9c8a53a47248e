"""No module imports itself by a way over others, however long, and also not where it is first needed."""

from __future__ import annotations

import graphlib
import importlib
import sys
from pathlib import Path

import grimp
import pytest


def find_circle(*packages: str) -> list[str]:
    """The modules of a circle of imports, the first one again at the end; empty if there is none.

    All imports count: those of a whole module, those in functions, and those that are for types alone.
    """
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_modules_import_each_other_in_one_direction() -> None:
    assert find_circle("einc", "einc_runtime") == []


IMPORTS = {
    "of modules": "from toy_circle import {next}\n",
    "in functions": "def use():\n    from toy_circle.{next} import use\n",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy_circle.{next} import use\n",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_a_circle_of_three_files_is_found(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "toy_circle"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, following in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        (folder / f"{name}.py").write_text(IMPORTS[how].format(next=following))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    circle = find_circle("toy_circle")
    sys.modules.pop("toy_circle", None)
    assert circle[0] == circle[-1]
    assert set(circle) == {f"toy_circle.{name}" for name in "abc"}
