"""Figures of docs/paper.md that its commands print: cuts of the product, and times of exchange programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from einc.cli.main import main

MODELS = Path(__file__).parents[2] / "models"
PAGE = (MODELS.parent / "docs" / "paper.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z-]+)`, `([a-z0-9-]+)` \| .*? \| ([0-9.]+) \| ([0-9.]+) \|$", PAGE, re.MULTILINE)


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What a command prints, with single blanks."""
    assert main([str(word) for word in words]) == 0
    captured = capsys.readouterr()
    return re.sub(" +", " ", captured.out + captured.err)


def test_the_product_is_cut_as_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "mm.ein"
    model.write_text(
        "\n".join(re.findall(r"^    (\w.*)$", PAGE.split("Section 4.4")[1].split("says")[0], re.MULTILINE))
    )
    cut, cost = re.findall(r"says `(.*?)` and `(.*?)`", PAGE)[0]
    printed = run(capsys, "explain", model, "-m", "dgx-a100", "--selector", "eindecomp")
    assert cut in printed
    assert cost in printed
    (fastest,) = re.findall(r"the cut\nis `(.*?)`", PAGE)
    assert f"c matmul {fastest} " in run(capsys, "explain", model, "-m", "dgx-a100")


@pytest.mark.parametrize(("name", "machine", "simulated", "optimized"), ROWS)
def test_exchange_programs_take_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, machine: str, simulated: str, optimized: str
) -> None:
    program, better = MODELS / "exchanges" / f"{name}.exprog", tmp_path / "better.exprog"
    assert f"{simulated} ms" in run(capsys, "exprog", "simulate", program, "-m", machine, "--ideal")
    printed = run(capsys, "exprog", "optimize", program, "-m", machine, "--ideal", "-o", better)
    assert f"{optimized} ms" in printed
