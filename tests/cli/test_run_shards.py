"""`einc run --shards`: one process writes one file and an index, and what cannot be is one error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open


def test_one_process_writes_one_file(einc: Callable[..., Any], tmp_path: Path) -> None:
    plan = tmp_path / "plan.bin"
    model = tmp_path / "m.ein"
    model.write_text("model m\ndim r = 5\ndim c = 3\ninput x : f32[r, c]\ny = x + x\noutput y\n")
    assert einc("compile", model, "-m", "host", "--devices", 2, "-o", plan).code == 0
    target = tmp_path / "y.safetensors"
    command = ["run", plan, "--inputs", "rand:1", "--shards"]
    assert einc(*command, "-o", target).code == 0
    assert einc(*command[:-1], "-o", tmp_path / "y.npy").code == 0
    with safe_open(tmp_path / "y-00001-of-00001.safetensors", "numpy") as opened:
        blocks = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    assert sum(block.nbytes for block in blocks.values()) == np.load(tmp_path / "y.npy").nbytes
    for arguments, code, message in (
        (["-o", tmp_path / "y.npy"], 2, "--shards writes one set of files"),
        ([], 2, "--shards writes one set of files"),
        (["-o", target, "--check"], 2, "leave out --check and --expect"),
        (["-o", tmp_path / "no" / "y.safetensors"], 73, "there is no such folder"),
    ):
        result = einc(*command, *arguments)
        assert (result.code, message in result.err) == (code, True), result
