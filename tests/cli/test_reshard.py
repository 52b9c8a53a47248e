"""`einc reshard`: what it says, the plan that it writes, shards from one plan to the other, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

ROWS = {"moved_bytes", "predicted_ms", "naive_ms", "bound_ms", "bound_by", "ratio", "name", "dtype", "shape"}
FIELDS = {
    "model", "machine", "devices", "schedule", "moved_bytes", "predicted_ms", "predicted_range_ms", "rates",
    "bound_ms", "bound_by", "ratio", "memory_bytes", "tensors", "notes", "plan", "bytes",
}  # fmt: skip
DIMS = ("-D", "tokens=24", "-D", "d_model=21", "-D", "d_ff=29", "--selector", "eindecomp", "--dtype", "f32")


@pytest.fixture
def plans(einc: Callable[..., Any], tmp_path: Path) -> dict[int, Path]:
    einc("models", "copy", "ffn", "-o", tmp_path / "ffn.ein")
    results = {}
    for sites in (2, 3):
        results[sites] = tmp_path / f"{sites}.bin"
        words = ("compile", tmp_path / "ffn.ein", "-m", "dgx-a100", "--devices", sites, *DIMS, "-o", results[sites])
        assert einc(*words).code == 0
    return results


def test_document_and_text(einc: Callable[..., Any], plans: dict[int, Path], tmp_path: Path) -> None:
    target = tmp_path / "r.bin"
    document = einc("reshard", plans[2], plans[3], "-o", target, "--json").json()
    assert document.keys() == FIELDS
    assert all(row.keys() == ROWS for row in document["tensors"])
    assert (document["plan"], document["bytes"]) == (str(target), target.stat().st_size)
    assert document["moved_bytes"] == sum(row["moved_bytes"] for row in document["tensors"]) > 0
    assert document["ratio"] == document["predicted_ms"] / document["bound_ms"] >= 1
    again = tmp_path / "again.bin"
    text = einc("reshard", plans[2], plans[3], "-o", again).out
    assert again.read_bytes() == target.read_bytes()
    for words in ("w1", "move between the 3 sites of dgx-a100", "no way to move it takes less than", "for both plans"):
        assert words in text
    assert "nothing moves between the 2 sites" in einc("reshard", plans[2], plans[2]).out
    short = einc("reshard", plans[2], plans[3], "--time-limit", "1e-9", "--json").json()
    naive = einc("reshard", plans[2], plans[3], "--schedule", "naive", "--json").json()
    for row, simple, tensor in zip(short["tensors"], naive["tensors"], document["tensors"], strict=True):
        assert (row["bound_ms"], row["ratio"]) == (None, None)
        assert simple["predicted_ms"] == row["naive_ms"] == tensor["naive_ms"]
    for command in ("verify", "explain", "describe"):
        assert einc(command, target).code == 0


def test_shards_of_one_plan_become_those_of_another(
    einc: Callable[..., Any], plans: dict[int, Path], tmp_path: Path
) -> None:
    """Written by the first plan's layout, resharded twice, and read as a whole: the same bits."""
    weights = {"w1": (21, 29), "w2": (29, 21)}
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "w.npz", **{name: rng.standard_normal(shape, np.float32) for name, shape in weights.items()})
    source: Path = tmp_path / "w.npz"
    for number, (first, second) in enumerate(((2, 2), (2, 3), (3, 2))):
        plan, folder = tmp_path / f"r{number}.bin", tmp_path / f"s{number}"
        folder.mkdir()
        assert einc("reshard", plans[first], plans[second], "-o", plan).code == 0
        words = ("run", plan, "--weights", source, "--shards", "-o", folder / "model.safetensors")
        assert einc(*words).code == 0
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        with safe_open(folder / "model-00001-of-00001.safetensors", "numpy") as opened:
            assert sorted(index["weight_map"]) == sorted(opened.keys())
            sizes = [opened.get_tensor(name).nbytes for name in opened.keys()]  # noqa: SIM118
        assert index["metadata"]["total_size"] == sum(sizes)
        assert any("[" in name for name in index["weight_map"])
        source = folder
    run = ("run", plans[3], "--inputs", "rand:0", "-o")
    assert einc(*run, tmp_path / "a.npy", "--weights", tmp_path / "w.npz").code == 0
    assert einc(*run, tmp_path / "b.npy", "--weights", source).code == 0
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_what_cannot_be_resharded(einc: Callable[..., Any], plans: dict[int, Path], tmp_path: Path) -> None:
    narrow = tmp_path / "f16.bin"
    dims = (*DIMS[:-1], "f16")
    assert einc("compile", tmp_path / "ffn.ein", "-m", "dgx-a100", "--devices", 2, *dims, "-o", narrow).code == 0
    (tmp_path / "broken.bin").write_bytes(b"\0 no plan")
    for arguments, code, message in (
        ([plans[2], narrow], 65, "'w1' is a weight f32[21, 29] in the first plan and a weight f16[21, 29]"),
        ([plans[2], tmp_path / "no.bin"], 2, "there is no such file"),
        ([plans[2], tmp_path / "broken.bin"], 65, "broken.bin"),
        ([plans[2], plans[3], "-m", "no-such-machine"], 2, "no-such-machine"),
        ([plans[2], plans[3], "-o", plans[3]], 2, "3.bin"),
        ([plans[2], plans[3], "-o", "-", "--json"], 2, "which --json needs"),
        ([plans[2], plans[3], "-o", tmp_path / "no" / "r.bin"], 73, "no such"),
    ):
        result = einc("reshard", *arguments)
        assert (result.code, message in result.err) == (code, True), result
