"""The lines that `einc explain` begins with."""

from __future__ import annotations

from einc.compiler import compile_model
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc.report.document import explain
from einc.report.summary import summarize_plan

MODEL = "model m\ndim n = 64\ninput x : f32[n, n]\nweight w : f32[n, n]\noutput y = relu(matmul(x, w))\n"


def test_a_cut_that_may_save_time_is_told_as_the_option_that_asks_for_it() -> None:
    options = CompileOptions(machine="dgx-a100", devices=8, pins=(parse_pin("y=whole"),))
    document = explain(compile_model(MODEL, "m.ein", options).bundle)
    operation = document["ops"][1]
    assert (operation["name"], operation["pin"]) == ("y", "whole")
    operation["next_fastest"] = {
        "intervals": {"n": [[0, 32], [32, 64]], "n_2": [[0, 64]]}, "replicas": 4, "more_ms": -0.9
    }  # fmt: skip
    assert "--pin" not in summarize_plan(document, [[operation]])[2]  # whoever pins an operator knows
    operation["pin"] = None
    advice = summarize_plan(document, [[operation, operation]])[2]
    assert advice == "to try: --pin 'y=n/2,replicas/4', and so for 1 like it, may save about 1.80 ms"
    assert compile_model(
        MODEL, "m.ein", CompileOptions(machine="dgx-a100", pins=(parse_pin("y=n/2,replicas/4"),))
    ).bundle
