"""Whole plans are predicted fast enough to be compared while compiling."""

from __future__ import annotations

from pathlib import Path

import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.predict.costs import compute_task_costs
from einc.predict.timeline import time_tasks
from tests.support.paced import within

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "machine", "most"),
    [
        ("llama_block", "dgx-a100", 0.3),
        pytest.param("llama_block", "dgx-v100", 0.3, marks=pytest.mark.slow),
        pytest.param("llama", "dgx-v100", 3.0, marks=pytest.mark.slow),
        pytest.param("llama_block", "gb200-nvl72", 5.0, marks=pytest.mark.slow),
    ],
)
def test_predicting_is_fast(model: str, machine: str, most: float) -> None:
    text = (MODELS / f"{model}.ein").read_text()
    compiled = compile_model(text, f"{model}.ein", CompileOptions(machine=machine, schedule="naive"))
    program = compiled.program
    with within(3 * most):
        for _ in range(3):
            time_tasks(compute_task_costs(program), compiled.target.machine)
