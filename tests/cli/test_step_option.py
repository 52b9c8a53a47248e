"""`--step`: plans of derived steps are compiled, proved and run; what is wrong with a request is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODEL = """\
model smooth
dim tokens = 6
dim width = 4
input x : f32[tokens, width]
output y = cumsum(x, "tokens")
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("smooth.ein").write_text(MODEL)
    return "smooth.ein"


def test_a_step_is_compiled_proved_and_run(einc: Callable[..., Any], model: str) -> None:
    step = ("--step", "tokens=2")
    assert einc("compile", model, *step, "-m", "host", "--devices", 1, "-o", "step.bin").code == 0
    proved = einc("verify", "step.bin", "--model", model, *step, "--json").json()["proved"]
    assert proved[-2].endswith("those of the decode step that is derived from smooth.ein, no more and no less")
    assert proved[-1] == "3 steps with random numbers compute what the model does"
    rows = np.arange(8, dtype="f4").reshape(2, 4)
    np.save("x.npy", rows)
    np.save("positions.npy", np.array([0, 1]))
    run = einc("run", "step.bin", "--inputs", "x=x.npy", "--inputs", "positions=positions.npy", "-o", "y.npy")
    assert run.code == 0
    np.testing.assert_allclose(np.load("y.npy"), np.cumsum(rows, 0))


def test_a_step_of_several_sequences(einc: Callable[..., Any], model: str) -> None:
    step = ("--step", "tokens=1x3")
    assert einc("compile", model, *step, "-m", "host", "--devices", 1, "-o", "step.bin").code == 0
    proved = einc("verify", "step.bin", "--model", model, *step, "--json").json()["proved"]
    assert proved[-1] == "6 steps with random numbers compute what the model does"
    rows = np.arange(12, dtype="f4").reshape(3, 4)
    np.save("x.npy", rows)
    np.save("positions.npy", np.array([0, 0, 0]))
    assert (
        einc("run", "step.bin", "--inputs", "x=x.npy", "--inputs", "positions=positions.npy", "-o", "y.npy").code == 0
    )
    np.testing.assert_allclose(np.load("y.npy"), rows)


def test_a_plan_of_the_model_is_not_one_of_the_step(einc: Callable[..., Any], model: str) -> None:
    assert einc("compile", model, "-m", "host", "--devices", 1, "-o", "plan.bin").code == 0
    result = einc("verify", "plan.bin", "--model", model, "--step", "tokens=2")
    assert result.code == 65
    assert "smooth_step" in result.err


def test_steps_of_large_models_are_not_tried(einc: Callable[..., Any], model: str) -> None:
    step = ("-D", "tokens=9000", "--step", "tokens=1")
    assert einc("compile", model, *step, "-m", "host", "--devices", 1, "-o", "step.bin").code == 0
    document = einc("verify", "step.bin", "--model", model, *step, "--json").json()
    assert any(line.startswith("by computing them, that steps are those") for line in document["unproved"])


@pytest.mark.parametrize(
    "step",
    [
        "tokens",
        "tokens=",
        "=1",
        "tokens=-1",
        "tokens=1.5",
        "tokens=1=2",
        "tokens=٣",
        "tokens=1x",
        "tokens=1x0",
        "",
        "tokens=1,blocks=2",
        "tokens=1,blocks=2x0",
        "tokens=1 blocks=2x1",
    ],
)
def test_malformed_steps(einc: Callable[..., Any], model: str, step: str) -> None:
    result = einc("check", model, "--step", step)
    assert result.code == 2
    assert "is not of the form DIM=N" in result.err


def test_steps_that_there_are_not(einc: Callable[..., Any], model: str) -> None:
    assert [einc("check", model, "--step", step).code for step in ("tokens=1", "tokens=1x3,blocks=9x2")] == [0, 0]
    Path("soft.ein").write_text(MODEL.replace("cumsum", "softmax"))
    result = einc("check", "soft.ein", "--step", "tokens=1", "--json")
    assert result.code == 65
    finding = json.loads(result.out)["error"]
    assert finding["where"] == "soft.ein:5:12"
    result = einc("check", model, "--step", "tokns=1")
    assert (result.code, "did you mean 'tokens'" in result.err.lower()) == (2, True)
