"""`einc check --assert`: every figure against what `einc explain` shows, comparisons, and what a wrong text gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.cli.main import main
from einc.errors import UsageError
from einc.report.contract_text import QUANTITIES, CutContract, FigureContract, parse_contract, parse_contract_file

MODELS = Path(__file__).parents[2] / "models"
FFN = ("-D", "tokens=50", "-D", "d_model=24", "-D", "d_ff=100")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ffn") / "ffn.bin"
    options = ["-m", "dgx-v100", "--devices", "4", "--selector", "eindecomp", "--baseline", "single", "--ideal"]
    sizes = ["-D", "tokens=500", "-D", "d_model=240", "-D", "d_ff=1000"]
    assert main(["compile", str(MODELS / "ffn.ein"), *sizes, *options, "-o", str(path)]) == 0
    return path


def figures_of(document: dict[str, Any]) -> dict[str, float]:
    """The quantities as a reader of `explain --json` works them out."""
    parts = [*document["ops"], *document["outputs"]]
    exchanges = [part["exchange"] for part in parts if part["exchange"]]
    alone = [row["predicted_ms"] for row in document["baselines"] if row["name"] == "single"]
    weights, sites = document["weights"], range(document["devices"])
    results = {
        "predicted_ms": document["predicted_ms"],
        "exchange_ms": sum(exchange["completion_ms"] for exchange in exchanges),
        "naive_ms": sum(exchange["naive_ms"] for exchange in exchanges),
        "bound_ms": sum(exchange["bound_ms"] for exchange in exchanges),
        "comm_bytes": sum(part["moves"]["bytes"] for part in parts),
        "transfers": sum(part["moves"]["transfers"] for part in parts),
        "memory": max(document["memory_bytes"]),
        "weights": max(sum(row["site_bytes"][site] for row in weights) for site in sites),
        "replicated_weights": max(sum(row["replicated_bytes"][site] for row in weights) for site in sites),
        "sites": 4,
        "idle_sites": len(set.intersection(*(set(op["idle_sites"]) for op in document["ops"]))),
        "operators": len(document["ops"]),
        "cost": document["total_cost"],
        "speedup": alone[0] / document["predicted_ms"],
    }
    results |= {
        part: sum(op["cost"][part] for op in document["ops"]) for part in ("repartition", "join", "aggregation")
    }
    results |= document["time"]["critical"]
    results["bound_ratio"] = results["exchange_ms"] / results["bound_ms"]
    return results


def test_every_quantity_is_what_explain_shows(plan: Path, einc: Callable[..., Any]) -> None:
    expected = figures_of(einc("explain", plan, "--json").json())
    assert set(expected) == set(QUANTITIES)
    asserts = [word for name in QUANTITIES for word in ("--assert", f"{name} >= 0")]
    rows = einc("check", plan, *asserts, "--json").json()["asserts"]
    assert [row["quantity"] for row in rows] == list(QUANTITIES)
    for row in rows:
        assert row["figure"] == pytest.approx(expected[row["quantity"]], rel=1e-12), row["quantity"]
        assert row["holds"]
    assert expected["comm_bytes"] > 0 < expected["exchange_ms"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("predicted_ms < 250us", 0.25),
        ("predicted_ms<2s", 2000.0),
        ("predicted_ms < 1.5", 1.5),
        ("naive_ms < 5e2ns", 5e-4),
        ("memory <= 24GiB", 24 * 2**30),
        ("memory <= 24 GB", 24e9),
        ("comm_bytes == 3KiB", 3072),
        ("comm_bytes == 3", 3),
        ("transfers > 3", 3),
    ],
)
def test_units(text: str, limit: float) -> None:
    contract = parse_contract(text)
    assert isinstance(contract, FigureContract)
    assert contract.limit == pytest.approx(limit, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memry <= 3", "did you mean 'memory'?"),
        ("cost <= 3KB", "takes no unit"),
        ("memory <= 3ms", "takes one of B"),
        ("memory <= 3kib", "takes one of B"),
        ("memory = 3", "is no contract: at"),
        ("memory <=", "is no contract"),
        ("memory <= -3", "is no contract: at '-3'"),
        ("3 <= memory", "is no contract"),
        ("memory <= 3 <= 4", "is no contract"),
        ("cut(act) <= d_ff/8", "compared with == and !="),
        ("cut(act) == d_ff", "is not an index and a count"),
        ("cut() == d_ff/8", "is no contract"),
        ("cuts(act) == d_ff/8", "is no contract"),
        ("", "it ends too early"),
        ("memory <= 1" + "0" * 1000, "more than 1000 characters"),
        ("memory <= 1\0", "is no contract"),
    ],
)
def test_what_is_no_contract_is_wrong_usage(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_contract(text, "there")
    assert message in caught.value.render()
    assert caught.value.where == "there"


def test_cuts_are_read_as_pins_are() -> None:
    contract = parse_contract("cut( layer.[0-3]*.up ) == heads/2, keys/4")
    assert isinstance(contract, CutContract)
    assert (contract.pin.pattern, contract.pin.cut) == ("layer.[0-3]*.up", "heads/2,keys/4")
    assert [requirement.where for requirement in parse_contract_file("# a\n\nmemory < 3 # b\n cost > 1\n", "f")] == [
        "f:3",
        "f:4",
    ]


@pytest.mark.parametrize(
    ("comparison", "held"), [("<", "001"), ("<=", "011"), ("==", "010"), (">=", "110"), (">", "100"), ("!=", "101")]
)
def test_comparisons(plan: Path, einc: Callable[..., Any], comparison: str, held: str) -> None:
    asserts = [word for limit in (2, 3, 4) for word in ("--assert", f"operators {comparison} {limit}")]
    rows = einc("check", plan, *asserts, "--json").json()["asserts"]
    assert "".join(str(int(row["holds"])) for row in rows) == held


def test_all_that_do_not_hold_are_told_with_their_figures(plan: Path, tmp_path: Path, einc: Callable[..., Any]) -> None:
    document = einc("explain", plan, "--json").json()
    (tmp_path / "slo.txt").write_text("memory <= 24GiB\ncomm_bytes == 1  # too few\n", encoding="utf-8")
    result = einc("check", plan, "--assert-file", tmp_path / "slo.txt", "--assert", "predicted_ms <= 0")
    assert result.code == 1
    assert result.out.startswith("holds: memory <= 24GiB (memory is ")
    assert "2 of 3 contracts do not hold" in result.err
    moved = sum(part["moves"]["bytes"] for part in [*document["ops"], *document["outputs"]])
    assert "slo.txt:2: does not hold: comm_bytes == 1 (comm_bytes is " in result.err
    assert f"({moved:,} B))" in result.err
    assert f"predicted_ms is {document['predicted_ms']:.6g} ms" in result.err
    assert einc("check", plan, "--assert", "memory <= 24GiB").code == 0


def test_cuts_are_those_of_the_plan(plan: Path, einc: Callable[..., Any]) -> None:
    (act, _, _) = einc("explain", plan, "--json").json()["ops"]
    counts = {name: len(parts) for name, parts in act["intervals"].items()}
    exact = ",".join(f"{name}/{count}" for name, count in counts.items() if count > 1) or "whole"
    name, count = max(counts.items(), key=lambda item: item[1])
    assert count > 1, "the plan cuts something"
    held = [f"cut(act) == {exact}", f"cut(a*) == {name}/{count},...", f"cut(act) != {name}/{count + 1},..."]
    broken = [f"cut(act) != {exact}", "cut(*) == whole", "cut(act) == replicated", f"cut(act) == {name}/{count + 1}"]
    asserts = [word for text in held + broken for word in ("--assert", text)]
    result = einc("check", plan, *asserts, "--json")
    assert result.code == 1
    rows = result.json()["asserts"]
    assert [row["holds"] for row in rows] == [True] * len(held) + [False] * len(broken)
    assert [row["operator"] for row in rows[4]["operators"]] == ["act", "hidden", "y"]
    for text, message in (("cut(nope) == whole", "matches no operator"), ("cut(act) == foo/2", "has no index 'foo'")):
        wrong = einc("check", plan, "--assert", text)
        assert (wrong.code, message in wrong.err) == (2, True)


def test_dimensions_stand_for_indices_as_in_pins(einc: Callable[..., Any]) -> None:
    options = ["-m", "dgx-a100", "--devices", "5", "--schedule", "naive", "--pin", "act=d_ff/5"]
    asserts = ["--assert", "cut(act) == d_ff/5", "--assert", "cut(act) != tokens/5", "--assert", "cut(act) == k/5"]
    result = einc("check", MODELS / "ffn.ein", *FFN, *options, *asserts)
    assert result.code == 0
    assert result.out.splitlines()[0].endswith("1 input, 2 weights, 3 operators, outputs y")
    assert result.out.count("holds: ") == 3


def test_what_the_plan_does_not_tell_does_not_hold(einc: Callable[..., Any]) -> None:
    options = ["-m", "dgx-a100", "--devices", "2", "--schedule", "naive", "--selector", "greedy"]
    result = einc("check", MODELS / "ffn.ein", *FFN, *options, "--assert", "speedup >= 0")
    assert result.code == 1
    assert "compile it with --baseline single" in result.err


def test_without_contracts_nothing_is_compiled(einc: Callable[..., Any], plan: Path) -> None:
    result = einc("check", MODELS / "ffn.ein", "-m", "dgx-a100")
    assert (result.code, "--assert" in result.err) == (2, True)
    assert einc("check", plan, "--devices", "2", "--assert", "cost > 0").code == 2
    help_text = einc("check", "--help").out
    assert all(name in help_text for name in QUANTITIES)
