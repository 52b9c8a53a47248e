"""The package of docs/custom-operators.md and others, installed into a folder on the path."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from einc_runtime import custom

PAGE = Path(__file__).parents[2] / "docs" / "custom-operators.md"


def read_block(language: str) -> str:
    match = re.search(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert match is not None
    return match[1]


def install(folder: Path, name: str, module: str, operators: list[str]) -> None:
    """What pip writes for a package of one module."""
    (folder / f"{name}.py").write_text(module, "utf-8")
    record = folder / f"{name}-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    lines = [f"{operator} = {name}:{operator}" for operator in operators]
    (record / "entry_points.txt").write_text("\n".join(["[einc_operators]", *lines, ""]), "utf-8")


@pytest.fixture(name="site")
def make_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, into which packages are installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def forget() -> None:
        custom.list_custom_operators.cache_clear()
        custom.load_custom_operator.cache_clear()

    forget()
    yield tmp_path
    forget()
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(name="spectra")
def install_spectra(site: Path) -> Path:
    install(site, "spectra", read_block("python"), ["power_spectrum", "energy"])
    return site
