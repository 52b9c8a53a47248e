"""What is said of the choice of a plan: what it was compared with, and what less memory costs."""

from __future__ import annotations

from typing import Any

import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.report.document import explain
from einc.report.paper_costs import compare_with_paper
from einc.report.selection import describe_choice, format_contenders, format_memory_points, summarize_selection

TEXT = """model m
dim n = 512
dim m = 1024
input x : f16[n, m]
weight w : f16[m, m]
weight v : f16[m, m]
output y = matmul(relu(matmul(x, w)), v)
"""


def row(name: str, ms: float | None, memory: int = 1 << 20, cost: int = 100, **more: Any) -> dict[str, Any]:
    known = {"name": name, "predicted_ms": ms, "memory_bytes": memory, "total_cost": cost}
    return {**known, "synthesized": False, "promised_ms": None, "fits": True, "chosen": False, "reason": None, **more}


def document(*contenders: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "selector": "fastest",
        "predicted_ms": 2.0,
        "least_ms": None,
        "predicted_range_ms": None,
        "rates": "measured",
        "total_cost": 200,
        "exact": False,
        "memory_bytes": [100, 1 << 20],
        "contenders": list(contenders),
        "baselines": [],
        **more,
    }


def test_equal_plans_stand_in_one_row_and_the_chosen_one_first() -> None:
    choice = document(
        row("paper", 8.0, 1 << 19, 50, promised_ms=3.0),
        row("data", 4.0),
        row("time", 2.0, cost=200, chosen=True, synthesized=True),
        row("sequence", 4.0),
        row("megatron", None, reason="as data"),
        row("sequence-heads", 4.0),
        row("time, synthesized", 9.0, fits=False),
        row("single", None, reason="about 9 ms by the time tables"),
    )
    _, *lines = format_contenders(choice, str)
    assert [line.split("  ")[0] for line in lines[:3]] == [
        "time tables",
        "paper's cost",
        "data, sequence, sequence-heads and 1 more",
    ]
    assert lines[0].endswith("chosen")
    assert "3.000 to 8.000 ms" in lines[1]
    assert lines[3].endswith("does not fit")
    assert lines[4] == "  not tried: single, about 9 ms by the time tables"
    assert any("a to b" in line for line in lines)
    assert summarize_selection(choice) == [
        "the fastest by predicted time of 3 plans that fit: the optimum of the time tables"
    ]
    (told,) = compare_with_paper(choice)
    assert told.endswith("3.000 to 8.000 ms, 1.50 to 4.00 times as long, with 0.25 times the elements")
    assert describe_choice(choice) == "predicted 2.00 ms, 1 MiB per site"


def test_a_faster_plan_that_does_not_fit_is_named_as_such() -> None:
    choice = document(
        row("time", 2.0, cost=200, chosen=True),
        row("paper", 1.5, 1 << 34, 50, fits=False),
        row("data", 1.2, 5 << 32, fits=False),
        row("single", 4.0, 1 << 35, fits=False),
    )
    assert "a faster plan does not fit: 1.20 ms would take 20 GiB per site" in summarize_selection(choice)
    told = "predicted 2.00 ms, 1 MiB per site (1.20 ms would take 20 GiB per site, which does not fit)"
    assert describe_choice(choice) == told
    slower = document(row("time", 2.0, cost=200, chosen=True), row("single", 4.0, 1 << 35, fits=False))
    assert not any("does not fit" in line for line in [*summarize_selection(slower), describe_choice(slower)])


def test_what_a_plan_promised_is_said_where_it_takes_something_else() -> None:
    choice = document(row("time", 1.9, cost=200, chosen=True), row("paper", 1.95, cost=50))
    told = "plans are compared before they are built whole: this one promised 1.90 ms"
    assert told in summarize_selection(choice)
    assert told not in summarize_selection(choice | {"predicted_ms": 1.9001})


def test_how_far_the_fastest_plan_may_be_is_said() -> None:
    choice = document(row("time", 2.0, chosen=True), least_ms=1.6)
    assert "at most 1.25 times the fastest possible plan: none takes less than 1.60 ms" in summarize_selection(choice)
    assert len(summarize_selection(choice | {"least_ms": None})) == len(summarize_selection(choice)) - 1


def test_tables_that_were_not_minimized_are_not_called_exact() -> None:
    told = "\n".join(format_contenders(document(row("paper", 2.0, chosen=True)), str))
    assert "minimized exactly" in told
    missing = row("time", None, reason="its tables would be too large")
    lacking = document(row("paper", 2.0, chosen=True), missing)
    assert "minimized exactly" not in "\n".join(format_contenders(lacking, str))
    assert compare_with_paper(lacking) == ["the paper's cost would choose this plan, too"]
    assert describe_choice(lacking) == "predicted 2.00 ms, 1 MiB per site"


def test_a_baseline_that_was_taken() -> None:
    choice = document(row("time", 3.0), baselines=[{"name": "data", "chosen": True}])
    assert "the baseline data" in summarize_selection(choice)[0]


@pytest.mark.parametrize("selector", ["eindecomp", "greedy", "random"])
def test_other_selectors_do_not_speak_of_time(selector: str) -> None:
    choice = document(selector=selector)
    (line,) = summarize_selection(choice)
    assert "fastest of" not in line
    assert format_contenders(choice, str) == []
    assert describe_choice(choice).endswith("cost 200, not proved least")


def test_time_over_memory() -> None:
    points = [(1 << 19, 5.0, True), ((1 << 19) + 1, 4.0, True), (1 << 20, 3.0, True), (1 << 30, 2.0, False)]
    rows = [{"memory_bytes": memory, "predicted_ms": ms, "fits": fits} for memory, ms, fits in points]
    lines = format_memory_points(document(memory_points=rows), str)
    assert [" ".join(line.split()) for line in lines[1:-1]] == [
        "512 KiB per site 4.000 ms",
        "1 MiB per site 3.000 ms this plan's memory",
        "1 GiB per site 2.000 ms does not fit",
    ]
    assert format_memory_points(document(memory_points=rows[:1]), str) == []


def test_a_plan_says_what_the_search_found() -> None:
    """The document against the search: the chosen contender is the plan, and no other one was faster."""
    compiled = compile_model(TEXT, "m.ein", CompileOptions(machine="dgx-a100", devices=4))
    result = explain(compiled.bundle)
    chosen = [contender for contender in result["contenders"] if contender["chosen"]]
    assert len(chosen) == 1
    assert chosen[0]["predicted_ms"] == pytest.approx(result["predicted_ms"])
    assert chosen[0]["total_cost"] == result["total_cost"]
    assert chosen[0]["memory_bytes"] == max(result["memory_bytes"])
    timed = [contender for contender in result["contenders"] if contender["predicted_ms"] is not None]
    assert min(contender["predicted_ms"] for contender in timed) == chosen[0]["predicted_ms"]
    assert all((contender["promised_ms"] is None) == contender["synthesized"] for contender in timed)
    assert all(
        contender["promised_ms"] <= contender["predicted_ms"] for contender in timed if not contender["synthesized"]
    )
    points = result["memory_points"]
    assert points == sorted(points, key=lambda point: (point["memory_bytes"], -point["predicted_ms"]))
    assert all(op["next_fastest"] is not None for op in result["ops"])
