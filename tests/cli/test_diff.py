"""`einc diff`: equal plans, every kind of change, layers in one row, and the exit code of `diff`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from einc.cli.main import main
from einc_runtime.plan.codec import decode, encode

MODEL = """
model layers
param n = 3
dim rows = 12
dim width = 8
dim inner = 6
dim out = 10
input x : f32[rows, width]
weight w_last : f32[width, out]
block layer(x, i) {
  weight w : f32[width, inner]
  weight v : f32[inner, width]
  up = matmul(x, w)
  return matmul(up, v)
}
repeat n as i { x = layer(x, i) }
y = matmul(x, w_last)
output y
"""


def build(folder: Path, name: str, text: str, *options: str) -> Path:
    (folder / "layers.ein").write_text(text, encoding="utf-8")
    path = folder / f"{name}.bin"
    fixed = ["-m", "dgx-v100", "--schedule", "naive", "--selector", "eindecomp", "-o", str(path)]
    assert main(["compile", str(folder / "layers.ein"), *fixed, *options]) == 0
    return path


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plans")
    rows = ("--devices", "4", "--pin", "x.*=rows/4", "--pin", "y=rows/4")
    four = (*rows, "--pin", "layer.*.up=rows/4")
    return {
        "a": build(folder, "a", MODEL, *four),
        "commented": build(folder, "commented", f"# a comment\n{MODEL}", *four),
        "pinned": build(folder, "pinned", MODEL, *rows, "--pin", "layer.*.up=inner/2"),
        "deeper": build(folder, "deeper", MODEL, *four, "-D", "n=4"),
        "wider": build(folder, "wider", MODEL, "--devices", "3", "--pin", "*=rows/3"),
    }


def test_equal_plans_end_with_0(plans: dict[str, Path], einc: Callable[..., Any], tmp_path: Path) -> None:
    same = einc("diff", plans["a"], plans["commented"])
    assert (same.code, same.out) == (0, f"{plans['a']} and {plans['commented']} are the same plan\n")
    bundle = decode(plans["a"].read_bytes())
    (tmp_path / "other.bin").write_bytes(encode(msgspec.structs.replace(bundle, producer="einc 0.0.9")))
    document = einc("diff", plans["a"], tmp_path / "other.bin", "--json").json()
    assert document["equal"]
    assert (document["a"]["producer"], document["b"]["producer"]) == (bundle.producer, "einc 0.0.9")


def test_other_cuts_stand_in_one_row_for_equal_layers(plans: dict[str, Path], einc: Callable[..., Any]) -> None:
    result = einc("diff", plans["a"], plans["pinned"], "--json")
    assert (result.code, result.err) == (1, "")
    document = result.json()
    ups = [entry for entry in document["operators"] if entry["names"][0].endswith(".up") and "cut" in entry["fields"]]
    assert sorted(name for entry in ups for name in entry["names"]) == [f"layer.{i}.up" for i in range(3)]
    assert max(len(entry["names"]) for entry in ups) >= 2
    assert all(entry["change"] == "changed" for entry in ups)
    assert {entry["b"]["pin"] for entry in ups} == {"inner/2"}
    explained = [einc("explain", plans[name], "--json").json() for name in ("a", "pinned")]
    quantities = {row["quantity"]: (row["a"], row["b"]) for row in document["quantities"]}
    for name, key in (("predicted_ms", "predicted_ms"), ("cost", "total_cost")):
        assert quantities[name] == tuple(document[key] for document in explained)
    moved = [sum(p["moves"]["bytes"] for p in [*document["ops"], *document["outputs"]]) for document in explained]
    assert quantities["comm_bytes"] == tuple(moved)
    assert moved[0] != moved[1]
    text = einc("diff", plans["a"], plans["pinned"]).out
    assert "layer.*.up (x" in text
    assert "\x1b" not in text, "no colours in a pipe"


def test_added_and_removed_operators(plans: dict[str, Path], einc: Callable[..., Any]) -> None:
    for first, second, change in (("a", "deeper", "added"), ("deeper", "a", "removed")):
        document = einc("diff", plans[first], plans[second], "--json").json()
        named: dict[str, list[str]] = {entry["change"]: [] for entry in document["operators"]}
        for entry in document["operators"]:
            named[entry["change"]] += entry["names"]
        assert sorted(named[change]) == ["layer.3.up", "x.3"]
        tensors = [name for entry in document["tensors"] for name in entry["names"] if entry["change"] == change]
        assert sorted(tensors) == ["layer.3.v", "layer.3.w"]
        text = einc("diff", plans[first], plans[second]).out
        assert f"2 {change}" in text


def test_other_numbers_of_sites(plans: dict[str, Path], einc: Callable[..., Any]) -> None:
    document = einc("diff", plans["a"], plans["wider"], "--json").json()
    assert {row["name"]: (row["a"], row["b"]) for row in document["header"]}["devices"] == (4, 3)
    assert sorted(name for entry in document["operators"] for name in entry["names"]) == sorted(
        ["y", *(f"layer.{i}.up" for i in range(3)), *(f"x.{i}" for i in range(3))]
    )


def test_a_reproducible_plan_is_told(plans: dict[str, Path], einc: Callable[..., Any], tmp_path: Path) -> None:
    options = ("--devices", "3", "--pin", "*=rows/3", "--reproducible")
    result = einc("diff", plans["wider"], build(tmp_path, "bits", MODEL, *options), "--json")
    document = result.json()
    assert (result.code, document["header"]) == (1, [{"name": "reproducible", "a": False, "b": True}])
    assert (document["a"]["reproducible"], document["b"]["reproducible"]) == (False, True)
    assert "reproducible: no -> yes" in einc("diff", plans["wider"], tmp_path / "bits.bin").out


def test_a_change_of_tasks_alone_is_told(plans: dict[str, Path], einc: Callable[..., Any], tmp_path: Path) -> None:
    bundle = decode(plans["a"].read_bytes())
    highest = max(range(len(bundle.buffers)), key=lambda k: bundle.buffers[k].offset)
    buffers = list(bundle.buffers)
    buffers[highest] = msgspec.structs.replace(buffers[highest], offset=buffers[highest].offset + 4096)
    moved = msgspec.structs.replace(bundle, buffers=tuple(buffers))
    grown = tuple(size + 4096 for size in bundle.memory)
    (tmp_path / "moved.bin").write_bytes(encode(msgspec.structs.replace(moved, memory=grown)))
    (tmp_path / "grown.bin").write_bytes(encode(msgspec.structs.replace(bundle, memory=grown)))
    result = einc("diff", tmp_path / "grown.bin", tmp_path / "moved.bin")
    assert (result.code, "tasks, buffers or their order are not" in result.out) == (1, True)


def test_what_is_no_plan_is_not_called_different(plans: dict[str, Path], einc: Callable[..., Any]) -> None:
    assert einc("diff", plans["a"], "missing.bin").code == 2
    assert einc("diff", plans["a"], __file__).code == 65
