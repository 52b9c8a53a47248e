"""`einc explain`: the JSON document field by field, held against the bundle, and texts that stay readable."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.cli.main import main
from einc_runtime.plan.codec import decode
from einc_runtime.plan.schema import Bundle, TransferTask

MODELS = Path(__file__).parents[2] / "models"
FFN = ("-D", "tokens=50", "-D", "d_model=24", "-D", "d_ff=100")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ffn") / "ffn.bin"
    arguments = ["-m", "dgx-v100", "--selector", "random", "--schedule", "naive", "-o", str(path)]
    assert main(["compile", str(MODELS / "ffn.ein"), *FFN, *arguments]) == 0
    return path


def tiles(blocks: list[Any], shape: list[int]) -> bool:
    """Whether the distinct blocks cover the shape exactly once (they are few and small here)."""
    cells: list[tuple[int, ...]] = []
    for lower, upper in {(tuple(lower), tuple(upper)) for lower, upper in blocks}:
        cells += itertools.product(*map(range, lower, upper))
    return sorted(cells) == list(itertools.product(*map(range, shape)))


def test_the_document_says_what_the_plan_does(plan: Path, einc: Callable[..., Any]) -> None:
    document = einc("explain", plan, "--json").json()
    bundle = decode(plan.read_bytes())
    assert list(document) == [
        "model", "machine", "devices", "sites", "selector", "schedule", "input_placement", "reproducible",
        "unrestricted_ms", "total_cost", "exact", "cut_cost", "inputs", "ops", "outputs", "weights", "memory_bytes",
        "memory_limit", "predicted_ms", "least_ms", "predicted_range_ms", "rates", "faster_cut", "references", "time",
        "limit", "launches", "baselines", "contenders", "memory_points", "division", "parallelism", "step", "note",
        "unknown", "choices",
    ]  # fmt: skip
    assert (document["model"], document["machine"], document["devices"]) == ("ffn", "dgx-v100", 8)
    assert (document["selector"], document["schedule"]) == ("random", "naive")
    assert document["exact"] is False
    assert document["memory_bytes"] == list(bundle.memory)
    assert document["predicted_ms"] == bundle.predicted_ms >= document["least_ms"] > 0
    assert [op["name"] for op in document["ops"]] == ["act", "hidden", "y"]
    assert document["total_cost"] == sum(sum(op["cost"].values()) for op in document["ops"])
    shapes = {tensor.name: list(tensor.shape) for tensor in bundle.tensors}
    for op in document["ops"]:
        check_operator(op, shapes)
    moved = sum(op["moves"]["bytes"] for op in [*document["ops"], *document["outputs"]])
    assert moved == transferred(bundle) > 0
    (output,) = document["outputs"]
    assert output["name"] == "y"
    types = {tensor.name: (list(tensor.dims), list(tensor.shape), tensor.dtype) for tensor in bundle.tensors}
    rows = [*document["inputs"], *document["weights"], output]
    assert [row["name"] for row in rows] == ["x", "w1", "w2", "y"]
    assert all((row["dims"], row["shape"], row["dtype"]) == types[row["name"]] for row in rows)
    assert [row["stored"] for row in document["weights"]] == ["w1", "w2"]
    assert tiles(output["blocks"], shapes["y"])
    assert len(output["sites"]) == len(output["blocks"])


def check_operator(op: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    assert list(op) == [
        "name", "op", "source", "inputs", "outputs", "intervals", "replicas", "parts", "cost", "pin", "aggregate",
        "specs", "idle_sites", "exchange", "moves", "time", "next_best", "next_fastest", "other_cuts",
    ]  # fmt: skip
    assert op["source"].startswith("ffn.ein:")
    assert list(op["cost"]) == ["repartition", "join", "aggregation"]
    assert op["replicas"] == 1
    assert op["aggregate"] == "sum"
    for intervals in op["intervals"].values():
        assert intervals[0][0] == 0
        assert all(a[1] == b[0] for a, b in itertools.pairwise(intervals))
    sites = [spec["site"] for spec in op["specs"]]
    assert len(set(sites)) == len(sites) == math.prod(len(intervals) for intervals in op["intervals"].values())
    assert sorted(sites + op["idle_sites"]) == list(range(8))
    for j, name in enumerate(op["outputs"]):
        assert tiles([spec["outputs"][j] for spec in op["specs"]], shapes[name])
    join = sum(volume(block) for spec in op["specs"] for block in spec["inputs"])
    assert op["cost"]["join"] == join
    partial = sum(volume(block) for spec in op["specs"] for block in spec["outputs"])
    assert op["cost"]["aggregation"] == partial - sum(math.prod(shapes[name]) for name in op["outputs"])
    exchange = op["exchange"]
    assert (exchange is None) == (op["name"] == "act" or not op["moves"]["transfers"])
    if exchange is not None:
        assert list(exchange) == [
            "program", "completion_ms", "naive_ms", "bound_ms", "bound_free_ms", "bound_by", "splits",
                "author",
        ]  # fmt: skip
        assert exchange["completion_ms"] == exchange["naive_ms"] > 0
        assert 0 < exchange["bound_ms"] <= exchange["completion_ms"] == exchange["naive_ms"]
        assert exchange["bound_free_ms"] is None
        assert exchange["bound_by"]
    assert list(op["next_best"]) == ["intervals", "more"]
    assert op["next_best"]["intervals"] != op["intervals"]


def volume(block: list[list[int]]) -> int:
    return math.prod(upper - lower for lower, upper in zip(*block, strict=True))


def transferred(bundle: Bundle) -> int:
    return sum(
        2 * volume([list(task.read.block.lower), list(task.read.block.upper)])
        for task in bundle.tasks
        if isinstance(task, TransferTask)
    )


def test_every_exchange_program_is_valid_and_takes_the_time_that_is_shown(
    plan: Path, einc: Callable[..., Any], tmp_path: Path
) -> None:
    for ideal in ((), ("--ideal",)):
        document = einc("explain", plan, "--json", *ideal).json()
        exchanges = [part["exchange"] for part in [*document["ops"], *document["outputs"]] if part["exchange"]]
        assert exchanges
        for exchange in exchanges:
            (tmp_path / "p.ex").write_text(exchange["program"])
            result = einc("exprog", "simulate", tmp_path / "p.ex", "-m", "dgx-v100", "--json", *ideal).json()
            assert result["completion_ms"] == exchange["completion_ms"]


def test_the_next_best_cut_is_no_worse_than_any_other(plan: Path, einc: Callable[..., Any]) -> None:
    """Against the candidates themselves, with the repartition that they would cause."""
    document = einc("explain", plan, "--all-specs", "--json").json()
    ops = document["ops"]
    produced = {op["name"]: distinct([spec["outputs"][0] for spec in op["specs"]]) for op in ops}
    needed = {op["inputs"][0]: distinct([spec["inputs"][0] for spec in op["specs"]]) for op in ops[1:]}
    size = {"act": 5000, "hidden": 5000, "y": 1200}
    for op in ops:
        costs = {}
        for candidate in op["candidates"]:
            cost = candidate["cost"]["join"] + candidate["cost"]["aggregation"]
            source = op["inputs"][0]
            if source in produced and distinct(candidate["inputs"][0]) != produced[source]:
                cost += size[source]
            if op["name"] in needed and distinct(candidate["outputs"][0]) != needed[op["name"]]:
                cost += size[op["name"]]
            costs[str(candidate["intervals"])] = cost
        now = costs.pop(str(op["intervals"]))
        assert op["next_best"]["more"] == min(costs.values()) - now
        assert costs[str(op["next_best"]["intervals"])] == min(costs.values())


def distinct(blocks: list[Any]) -> set[str]:
    return set(map(str, blocks))


def test_a_model_is_compiled_first(plan: Path, einc: Callable[..., Any]) -> None:
    options = (*FFN, "-m", "dgx-v100", "--selector", "random", "--schedule", "naive")
    assert einc("explain", MODELS / "ffn.ein", *options, "--json").out == einc("explain", plan, "--json").out
    result = einc("explain", plan, "-m", "dgx-a100")
    assert result.code == 2
    assert "a plan already" in result.err
    assert einc("explain", plan, "-D", "tokens=3").code == 2


def test_the_plan_explains_itself_elsewhere(
    plan: Path, start: Callable[..., Any], einc: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "p.bin").write_bytes(plan.read_bytes())
    out, _ = start("explain", "p.bin", cwd=tmp_path, env={"LC_ALL": "C"}).communicate(timeout=300)
    assert out.decode("ascii") == einc("explain", plan).out
    assert "\x1b" not in out.decode()


def test_the_text_shows_everything_that_was_decided(plan: Path, einc: Callable[..., Any]) -> None:
    text = einc("explain", plan).out
    document = einc("explain", plan, "--json").json()
    for op in document["ops"]:
        assert f"{op['name']} = {op['op']}({', '.join(op['inputs'])})" in text
        assert f"+ join {op['cost']['join']:,}" in text
    assert text.count("next best: ") == 3
    assert "moves nothing between sites" in text
    assert f"{document['total_cost']:,} elements" in text


def test_one_operator_to_the_last_block(plan: Path, einc: Callable[..., Any]) -> None:
    text = einc("explain", plan, "--op", "y", "--all-specs").out
    assert text.count("  site ") == 8
    assert "its exchange program" in text
    assert "could be" in text
    assert [op["name"] for op in einc("explain", plan, "--op", "y", "--json").json()["ops"]] == ["y"]
    result = einc("explain", plan, "--op", "hiden")
    assert result.code == 2
    assert "did you mean 'hidden'?" in result.err


def test_two_plans_are_compared(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    best = tmp_path / "best.bin"
    options = ("-m", "dgx-v100", "--selector", "eindecomp")
    assert einc("compile", MODELS / "ffn.ein", *FFN, *options, "-o", best).code == 0
    text = einc("explain", plan, "--against", best).out
    assert "paper's cost" in text
    assert "cut in A" in text
    assert "every operator is cut alike" in einc("explain", best, "--against", best).out
    document = einc("explain", plan, "--against", best, "--json").json()
    assert document["against"]["total_cost"] < document["total_cost"]
    assert einc("explain", plan, "--against", "missing.bin").code == 2
    assert einc("explain", plan, "--against", best, "--op", "y").code == 2


def test_a_hundred_operators_stay_readable(einc: Callable[..., Any], tmp_path: Path) -> None:
    model = """\
model deep
dim n = 64
dim m = 64
input x0 : f32[n, m]
weight w0 : f32[m, m]
block layer(x, i) {
  weight w : f32[m, m] from "w.{i}"
  h = relu(matmul(x, w))
  return h
}
x = matmul(x0, w0)
repeat 50 as i { x = layer(x, i) }
y = softmax(x)
output y
"""
    (tmp_path / "deep.ein").write_text(model)
    assert (
        einc(
            "compile",
            tmp_path / "deep.ein",
            "-m",
            "dgx-a100",
            "--selector",
            "eindecomp",
            "--schedule",
            "naive",
            "-o",
            tmp_path / "deep.bin",
        ).code
        == 0
    )
    result = einc("explain", tmp_path / "deep.bin")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert len(lines) < 150
    assert max(map(len, lines)) <= 120
    assert len(einc("explain", tmp_path / "deep.bin", "--json").json()["ops"]) >= 100


def test_idle_sites_are_shown(einc: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "m.ein").write_text("model m\ndim n = 3\ninput x : f32[n]\ny = exp(x)\noutput y\n")
    text = einc("explain", tmp_path / "m.ein", "-m", "dgx-a100").out
    assert "3 of 8 sites work; idle: " in text


@pytest.mark.parametrize("layers", [1, 20])
def test_launches_add_up_to_the_predicted_time(tmp_path: Path, einc: Callable[..., Any], layers: int) -> None:
    """A step of one layer, and one of so many that the plan says one for many, whose sites read weights ahead."""
    path = tmp_path / "step.bin"
    sizes = {"n_layers": layers, "batch": 5, "cache": 300, "vocab": 6000, "d_model": 3072, "d_ff": 6144, "heads_q": 24}
    definitions = [part for name, size in sizes.items() for part in ("-D", f"{name}={size}")]
    pins = [part for pin in ("*.[qo]=heads_q/2", "*.[kv]=heads_kv/2", "*.gate=d_ff/2") for part in ("--pin", pin)]
    model = MODELS / "llama_decode.ein"
    einc("compile", model, *definitions, *pins, "-m", "dgx-h100", "--devices", "2", "-o", path)
    document = einc("explain", path, "--launches", "--json").json()
    rows = document["critical_launches"]
    parts = ("peak_ms", "launch_ms", "below_peak_ms", "ahead_ms")
    assert math.isclose(sum(row["times"] * row["ms"] for row in rows), document["predicted_ms"], rel_tol=1e-6)
    assert max(row["times"] for row in rows) == (1 if layers == 1 else layers - 5)
    for row in rows:
        assert math.isclose(sum(row[part] for part in parts), row["ms"])
        assert min(row["peak_ms"], row["launch_ms"], row["below_peak_ms"], -row["ahead_ms"]) >= 0
        assert (row["ahead_bytes"] > 0) == (row["ahead_ms"] < 0)
    assert any(row["kind"] == "transfer" for row in rows)
    assert any(row["ahead_bytes"] for row in rows)
    assert len(document["launches"]["early"]) >= sum(row["ahead_bytes"] > 0 for row in rows)
    text = einc("explain", path, "--launches").out.splitlines()
    assert text[0].startswith("critical path")
    assert text[-1].split()[:2] == ["all", str(sum(row["times"] for row in rows))]
    assert einc("explain", path, "--launches", "--all-specs").code == 2
