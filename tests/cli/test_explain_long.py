"""Exchange programs that are too long to be read again: a plan is explained without what would be computed of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "models"


def test_a_naive_plan_is_explained_without_bounds_of_programs_that_are_too_long(
    tmp_path: Path, einc: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.bin"
    einc("compile", MODELS / "ffn.ein", "-m", "dgx-a100", "--schedule", "naive", "-o", plan)
    known = einc("explain", plan).out
    assert "times the bound" in known
    monkeypatch.setattr("einc.exchange.language.parser.MAX_PROGRAM_TEXT", 100)
    for more in ((), ("--ideal",)):  # the plan has its naive times, with the machine's latencies
        document = einc("explain", plan, *more, "--json").json()
        exchanges = [part["exchange"] for part in (*document["ops"], *document["outputs"]) if part["exchange"]]
        assert exchanges
        for exchange in exchanges:
            assert (exchange["completion_ms"] is None) == (exchange["naive_ms"] is None) == bool(more)
            assert exchange["completion_ms"] == exchange["naive_ms"]
            assert exchange["bound_ms"] is None
    text = einc("explain", plan)
    assert text.code == 0
    assert "times the bound" not in text.out
    assert "moved" in text.out
