"""The lines that `einc explain` begins with."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from einc.compiler import compile_model
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc.report.document import explain
from einc.report.faster_cut import find_faster_cut
from einc.report.summary import summarize_plan

MODEL = "model m\ndim n = 2048\ninput x : f32[n, n]\nweight w : f32[n, n]\noutput y = relu(matmul(x, w))\n"


def test_a_cut_is_suggested_if_the_plan_is_faster_with_it() -> None:
    """A poor cut of one operator is pinned, and the plan says that it was not: then the tables know a better one."""
    options = CompileOptions(machine="dgx-a100", devices=8, schedule="naive", pins=(parse_pin("y=whole"),))
    pinned = compile_model(MODEL, "m.ein", options).bundle
    assert explain(pinned)["faster_cut"] is None  # whoever pins an operator knows
    operations = tuple(msgspec.structs.replace(operation, pin=None) for operation in pinned.operations)
    document = explain(msgspec.structs.replace(pinned, operations=operations))
    cut = document["faster_cut"]
    assert cut["ops"] == ["y"]
    assert cut["predicted_ms"] < document["predicted_ms"]
    advice = summarize_plan(document)[2]
    assert advice.startswith(f"to try: --pin 'y={cut['cut']}': this plan would take ")
    with_pin = replace(options, pins=(parse_pin(f"y={cut['cut']}"),))
    assert compile_model(MODEL, "m.ein", with_pin).program.predicted_ms <= cut["predicted_ms"] * (1 + 1e-9)


def test_a_cut_that_only_the_tables_like_is_not_suggested() -> None:
    """The plan with it is built, and takes longer."""
    plan = compile_model(MODEL, "m.ein", CompileOptions(machine="dgx-a100", devices=8, schedule="naive"))
    document, logical = explain(plan.bundle), plan.plan
    rows = [dict(row) for row in document["ops"]]
    rows[-1]["next_fastest"] = rows[-1]["next_fastest"] | {"more_ms": -document["predicted_ms"]}
    assert document["faster_cut"] is None
    assert find_faster_cut(plan.bundle, logical, plan.target.machine, rows) is None
