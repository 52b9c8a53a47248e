"""Which choices are said not to be certain: those that another plan within the error of the prediction would turn."""

from __future__ import annotations

from typing import Any

import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.report.choices import describe_choices, format_choices
from einc.report.document import explain

CHAIN = """model chain
dim i = 4096; dim j = 4096; dim k = 8192; dim l = 4096
input a : bf16[i, j]
weight b : bf16[j, k]
weight c : bf16[k, l]
output y = matmul(matmul(a, b), c)
"""


def cut(count: int, **more: float) -> dict[str, Any]:
    return {"intervals": {"i": [[n, n + 1] for n in range(count)]}, "replicas": 1, **more}


def operation(name: str, *alternatives: tuple[float, float], pin: str | None = None) -> dict[str, Any]:
    """An operator in 8 parts, and its other cuts with what each adds and its error; the n-th has n + 1 parts."""
    cuts = [cut(n, more_ms=more, error_ms=error) for n, (more, error) in enumerate(alternatives, 1)]
    return {"name": name, "pin": pin, "next_fastest": cuts[0] if cuts else None, "other_cuts": cuts, **cut(8)}


def row(name: str, ms: float | None, memory: int = 7, **more: Any) -> dict[str, Any]:
    return {"name": name, "predicted_ms": ms, "memory_bytes": memory, "fits": True, "chosen": False, **more}


def document(*operations: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "predicted_ms": 2.0,
        "predicted_range_ms": [1.7, 2.3],
        "ops": operations,
        "baselines": [],
        "contenders": [],
        **more,
    }


def told(choices: dict[str, Any]) -> list[str]:
    return format_choices(choices | {"choices": describe_choices(choices)})


def test_a_cut_is_uncertain_within_its_own_error_and_not_within_the_range_of_the_plan() -> None:
    shown = document(
        operation("certain", (0.11, 0.1), (0.2, 0.19)),
        operation("near", (0.05, 0.04), (0.06, 0.061)),
        operation("pinned", (0.0, 0.1), pin="i/8"),
        operation("whole"),
        operation("faster", (-0.3, 0.1)),  # what the tables promise, and the search did not find so
    )
    assert describe_choices(shown) == {
        "count": 3,
        "uncertain": [{"choice": "cut", "name": "near", "chosen": "i/8", "instead": "i/2", "predicted_ms": 2.06}],
    }
    assert told(shown) == [
        "1 of 3 choices is within the error of the prediction:",
        "  near cut i/2 instead of i/8 (about 2.060 ms)",
    ]


def test_a_plan_is_uncertain_within_the_range_and_equal_ones_count_once() -> None:
    chosen = row("time", 2.0, 5, chosen=True)
    shown = document(
        baselines=[row("data", 2.3), row("sequence", 2.3), row("single", None), row("megatron", 2.31)],
        contenders=[
            chosen,
            row("paper", 2.2),
            row("data", 9.0),
            row("less memory", 2.0, 5),
            row("big", 2.1, fits=False),
        ],
    )
    choices = describe_choices(shown)
    assert choices is not None
    assert (choices["count"], [alternative["name"] for alternative in choices["uncertain"]]) == (3, ["data", "paper"])
    assert told(shown)[1:] == ["  the optimum of the paper's cost (2.200 ms)", "  the baseline data (2.300 ms)"]


def test_equal_choices_are_named_once_and_few_in_all() -> None:
    layers = [operation(f"layer.{n}.up", (0.01, 0.02)) for n in range(32)]
    far = [operation(f"other{n}", (0.02 + n / 100, 0.2)) for n in range(6)]
    lines = told(document(*layers, *far))
    assert lines[0] == "38 of 38 choices are within the error of the prediction:"
    assert lines[1] == "  layer.0.up (x32) cut whole instead of i/8 (about 2.010 ms)"
    assert lines[-1] == "  3 more"


def test_nothing_is_said_where_nothing_was_measured() -> None:
    shown = document(operation("near", (0.0, 0.1)), predicted_range_ms=None)
    assert describe_choices(shown) is None
    assert told(shown) == []
    assert told(document(operation("certain", (0.2, 0.1)))) == []


@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-v100"])
def test_other_cuts_have_errors_where_gpus_were_measured(machine: str) -> None:
    """No error is more than what the two kernels and the moves could be off together, at the largest of all errors."""
    result = explain(compile_model(CHAIN, "chain.ein", CompileOptions(machine=machine, schedule="naive")).bundle)
    errors = [
        (other_cut["error_ms"], other_cut["more_ms"])
        for operation in result["ops"]
        for other_cut in operation["other_cuts"]
    ]
    assert errors
    if machine == "dgx-v100":
        assert {error for error, _ in errors} == {None}
        return
    assert result["choices"]["count"] >= len(result["ops"])
    for error, more in errors:
        assert 0 <= error <= 0.3 * (result["predicted_ms"] + abs(more))
