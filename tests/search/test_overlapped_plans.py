"""Plans in which most exchanges hide behind kernels, of which the time tables say little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from einc.compiler import compile_model
from einc.logical.pins import parse_pin
from einc.options import CompileOptions

MODEL = Path(__file__).resolve().parents[2] / "models" / "chain_a.ein"
CLIMBED = (
    "p12=i/4,j/2 p34=k/8 p5678.1=i/2,j/4 p5678.2=j/2,k/4 p5678=i/2,k/4 p345678=k/8 y.1=i/8 y=i/2,k/4"  # hill climbing
)


@pytest.mark.slow
def test_no_plan_of_hill_climbing_is_faster() -> None:
    text, options = MODEL.read_text(encoding="utf-8"), CompileOptions(machine="dgx-a100", schedule="naive")
    chosen = compile_model(text, "chain_a.ein", options)
    pins = tuple(parse_pin(pin) for pin in CLIMBED.split())
    climbed = compile_model(text, "chain_a.ein", replace(options, pins=pins))
    assert chosen.program.predicted_ms < 0.99 * climbed.program.predicted_ms < 4.9
