"""`--pin`, `--baseline` and `--memory`: what a person says about the choice of cuts, and where it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import einc as es
from einc.errors import UsageError
from einc.plan_report import read_report

MODELS = Path(__file__).parents[2] / "models"
TINY = (MODELS / "ffn.ein", "--preset", "tiny", "-m", "dgx-a100", "--schedule", "naive")

Run = Callable[..., Any]


def test_pins_stand_in_the_plan_and_it_computes_the_same(einc: Run, tmp_path: Path) -> None:
    plan, file = tmp_path / "p.bin", tmp_path / "mine.pins"
    file.write_text("# by rows of the second weight\ny = d_model/2, j/4\n", encoding="utf-8")
    assert einc("compile", *TINY, "--pin", "hid*=tokens/4", "--pin", f"@{file}", "-o", plan).code == 0
    document = einc("explain", plan, "--json").json()
    cuts = {op["name"]: {n: len(cut) for n, cut in op["intervals"].items() if len(cut) > 1} for op in document["ops"]}
    assert cuts["hidden"] == {"tokens": 4}
    assert cuts["y"] == {"j": 4, "k": 2}
    assert [op["pin"] for op in document["ops"]] == [None, "tokens/4", "d_model/2,j/4"]
    text = einc("explain", plan).out
    assert "tokens/4 (pinned)" in text
    assert "pinned to d_model/2,j/4" in text
    assert einc("run", plan, "--inputs", "rand:1", "--weights", "rand:2", "--check").code == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--pin", "hiden=tokens/2"), "did you mean 'hidden'"),
        (("--pin", "hidden=tokens/9"), "takes 9 sites"),
        (("--pin", "hidden"), "is not a valid pin"),
        (("--pin", "@nowhere.pins"), "nowhere.pins"),
        (("--baseline", "best"), "single, data, sequence, megatron"),
        (("--memory", "24 pounds"), "24GiB"),
        (("--memory", "0"), "24GiB"),
        (("--memory", "1TiB"), "the most is 38.39 GiB"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(einc: Run, tmp_path: Path, option: tuple[str, str], words: str) -> None:
    result = einc("compile", *TINY, *option, "-o", tmp_path / "p.bin")
    assert result.code == 2
    assert words in result.err


def test_options_of_compile_do_not_change_a_plan(einc: Run, tmp_path: Path) -> None:
    plan = tmp_path / "p.bin"
    einc("compile", *TINY, "-o", plan)
    for option, value in (("--pin", "y=whole"), ("--baseline", "data"), ("--memory", "1GiB")):
        result = einc("explain", plan, option, value)
        assert result.code == 2
        assert f"{option} is for compiling" in result.err


def test_the_fastest_of_the_plan_and_its_baselines_is_taken(einc: Run, tmp_path: Path) -> None:
    plain, plan, again = (tmp_path / name for name in ("plain.bin", "p.bin", "again.bin"))
    arguments = (*TINY, "--selector", "eindecomp")
    alone = einc("compile", *arguments, "-o", plain, "--json").json()
    assert alone["baselines"] == []
    assert alone["memory_limit"] is None
    summary = einc("compile", *arguments, "--baseline", "single, data,megatron", "-o", plan, "--json").json()
    times = {row["name"]: row["predicted_ms"] for row in summary["baselines"]}
    assert list(times) == ["single", "data", "megatron", "megatron-sequence"]
    assert summary["predicted_ms"] == min(*times.values(), alone["predicted_ms"])
    chosen = [row["name"] for row in summary["baselines"] if row["chosen"]]
    assert [times[name] for name in chosen] == [summary["predicted_ms"]] * (
        summary["predicted_ms"] < alone["predicted_ms"]
    )
    document = einc("explain", plan, "--json").json()
    assert document["baselines"] == summary["baselines"]
    assert f"baseline {chosen[0]} " in einc("explain", plan).out
    einc("compile", *arguments, "--baseline", "single,data,megatron", "-o", again)
    assert plan.read_bytes() == again.read_bytes()
    assert einc("run", plan, "--inputs", "rand:1", "--weights", "rand:2", "--check").code == 0


def test_a_time_limit_ends_the_comparison(einc: Run, tmp_path: Path) -> None:
    plan = tmp_path / "p.bin"
    document = einc(
        "compile", *TINY, "--baseline", "data,single", "--time-limit", "0.0001", "-o", plan, "--json"
    ).json()
    for row in document["baselines"]:
        assert "no time was left" in row["note"]
        assert not row["chosen"]
    told = einc("compile", *TINY, "--baseline", "data", "-o", plan)
    assert "baseline data" in told.err


def test_less_memory_than_the_machine_has(einc: Run, tmp_path: Path) -> None:
    """6.5 KB a site: a random plan does not fit, and tensor parallelism does."""
    plan = tmp_path / "p.bin"
    model = (MODELS / "moe.ein", "--preset", "tiny", "-m", "dgx-a100")
    arguments = (*model, "--schedule", "naive", "--selector", "random")
    refused = einc("compile", *arguments, "--memory", "6.5KB", "-o", plan)
    assert refused.code == 69
    assert "may take 6,500 B" in refused.err
    assert "a larger --memory" in refused.err
    assert einc("compile", *arguments, "--memory", "6.5 KB", "--baseline", "megatron,single", "-o", plan).code == 0
    document = einc("explain", plan, "--json").json()
    assert document["memory_limit"] == 6500 >= max(document["memory_bytes"])
    rows = {row["name"]: row for row in document["baselines"]}
    assert rows["megatron-sequence"]["chosen"]
    assert rows["megatron-sequence"]["memory_bytes"] == max(document["memory_bytes"])
    assert "may take 6,500 B" in rows["single"]["note"]
    assert "of 6,500 B that it may take" in einc("explain", plan).out


def test_the_python_interface_has_them_too() -> None:
    graph = es.createGraph("ffn")
    x = graph.insertTensor(es.tensorDesc([12, 20]), "x")
    hidden = graph.unary(graph.matmul(x, graph.insertTensor(es.tensorDesc([20, 36]), "w")), "relu")
    graph.save(hidden)
    limit = 1 << 20
    plan = es.compileGraph(
        graph,
        device=4,
        machine="dgx-a100",
        memory=limit,
        pins={"*": "d0/4", f"{hidden.name}": "d1/3"},
        baselines=["data"],
    )
    last = plan.bundle.operations[-1]
    assert last.pin == "d1/3"
    assert [len(index.intervals) for index in last.indices] == [1, 3]
    assert read_report(plan.bundle).memory_limit == limit
    assert [row.name for row in read_report(plan.bundle).baselines] == ["data"]
    with pytest.raises(UsageError, match="not a baseline"):
        es.compileGraph(graph, machine="dgx-a100", baselines=["best"])


def test_what_pins_cost_is_the_time_of_a_plan_without_them(einc: Run, tmp_path: Path) -> None:
    free, pinned = tmp_path / "free.bin", tmp_path / "pinned.bin"
    small, pin = (*TINY, "--devices", "2"), ("--pin", "y=whole")
    assert einc("compile", *small, "--price-pins", "-o", free).code == 0  # there are no pins
    assert einc("compile", *small, *pin, "--price-pins", "-o", pinned).code == 0
    documents = [einc("explain", plan, "--json").json() for plan in (free, pinned)]
    assert [document["unrestricted_ms"] for document in documents] == [None, documents[0]["predicted_ms"]]
    ratio = documents[1]["predicted_ms"] / documents[0]["predicted_ms"]
    assert ratio > 1
    shown = einc("explain", pinned).out
    assert "a plan without these pins is predicted to take" in shown
    assert f"this one {ratio:.2f} times it" in shown
    for unpriced in (pin, (*pin, "--price-pins", "--time-limit", "5")):
        written = einc("compile", *small, *unpriced, "-o", free, "--json").json()
        assert (written["unrestricted_ms"], written["predicted_ms"]) == (None, documents[1]["predicted_ms"])
