"""`compile --propose` and `--exchange`, and `explain --preamble`, from the outside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.layered_model import TEXT

CHOICE = ("-m", "dgx-v100", "--devices", "4", "--ideal", "--schedule", "naive", "--selector", "eindecomp")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "layers.ein"
    path.write_text(TEXT)
    return path


def test_a_person_writes_a_program_for_an_exchange(model: Path, tmp_path: Path, einc: Callable[..., Any]) -> None:
    plan, mine = tmp_path / "plan.bin", tmp_path / "mine.exprog"
    assert einc("compile", model, *CHOICE, "-o", plan).code == 0
    document = einc("explain", plan, "--preamble", "x.1", "--json").json()
    assert document["author"] == "compiler"
    shown = einc("explain", plan, "--preamble", "x.1").out
    assert shown.endswith(document["preamble"])
    assert shown.startswith(
        "# The exchange of x.1 in layers, on 4 sites of dgx-v100\n# Times: the plan's program 4.373e-05"
    )
    (tmp_path / "preamble").write_text(shown)  # a file for the other commands, too: GPUS leaves out the other sites
    search = ("exprog", "optimize", tmp_path / "preamble", "-m", "dgx-v100", "--ideal", "--iterations", "0", "-o", mine)
    assert einc(*search).code == 0
    result = einc("compile", model, *CHOICE, "-o", plan, "--exchange", f"x.*={mine}", "--json")
    assert result.code == 0
    assert f"einc: x.1: {mine} takes 2.896e-05 ms, what it replaces 4.373e-05 ms" in result.err
    authors = {exchange["name"]: exchange["author"] for exchange in result.json()["exchanges"]}
    assert [name for name, author in authors.items() if author == "user"] == ["x.0", "x.1", "x.2"]
    assert ", by a given program" in einc("explain", plan, "--op", "x.0").out
    # what the plan has now is printed with whole atoms again
    assert einc("explain", plan, "--preamble", "x.1", "--json").json()["preamble"] == document["preamble"]


def test_proposals_for_a_plan_are_told(model: Path, tmp_path: Path, einc: Callable[..., Any]) -> None:
    answers = tmp_path / "answers"
    answers.write_text("no program")
    command = f"command:{sys.executable} -c 'raise SystemExit(3)'"
    result = einc(
        "compile", model, *CHOICE, "-o", tmp_path / "p.bin", "--propose", answers, "--propose", command, "--json"
    )
    assert result.code == 0
    lines = result.json()["proposals"]
    begins = ("x.0: proposal 1.1: refused", "x.0: proposer 2:", *["layer.1.h.1: propos"] * 3)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))
    assert all(f"einc: {line}" in result.err for line in lines)
    explained = einc("explain", model, *CHOICE, "--propose", answers)
    assert "einc: x.0: proposal 1.1: refused" in explained.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("compile", "MODEL", "--emit", "exprog", "--exchange", "x.1"), 2, "NAME=FILE"),
        (("compile", "MODEL", "--emit", "exprog", "--exchange", "x.1=nowhere"), 2, "nowhere"),
        (("compile", "MODEL", "--emit", "exprog", "--exchange", "z=MODEL"), 65, "MODEL:2"),
        (("compile", "MODEL", "--emit", "exprog", "--propose", "command:'"), 2, "--propose"),
        (("compile", "MODEL", "-o", "MODEL", "--propose", "MODEL"), 2, "over"),
        (("explain", "MODEL", "--preamble", "z"), 2, "there are 'x.0'"),
        (("explain", "MODEL", "--preamble", "y"), 2, "'y' has no exchange"),
        (("explain", "MODEL", "--preamble", "y", "--op", "y"), 2, "cannot be combined"),
    ],
)
def test_mistakes(arguments: Any, code: int, words: str, model: Path, einc: Callable[..., Any]) -> None:
    filled = [argument.replace("MODEL", str(model)) for argument in arguments]
    result = einc(*filled, *CHOICE)
    assert result.code == code
    assert words.replace("MODEL", str(model)) in result.err
