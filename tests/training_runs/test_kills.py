"""Runs that are killed at 20 random moments, and go on, end with the bits of one that was not, each of them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import einc as es
from einc_runtime.plan.codec import encode

KILLS = 20
TEXT = """model letters
dim batch = 4
dim length = 16
dim vocab = 23
dim width = 24
input ids : i64[batch, length]
input targets : i64[batch, length]
weight table : f32[vocab, width]
weight square : f32[width, width]
x = embedding(reshape(ids, tokens=64), table)
h = tanh(matmul(x, square)) + x
logits[tokens, vocab] = h[tokens, width] * table[vocab, width]
output loss = cross_entropy(logits, reshape(targets, tokens=64))
"""


def find_newest(parts: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return max((int(path.stem.removeprefix("step-")) for path in parts.glob("step-*.safetensors")), default=0)


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(tmp_path: Path) -> None:
    step = es.compile(TEXT, "host", 3, train="loss", optimizer="adamw", selector="eindecomp", schedule="naive")
    (tmp_path / "step.bin").write_bytes(encode(step.bundle))
    np.save(tmp_path / "tokens.npy", np.cumsum(np.random.default_rng(0).integers(1, 3, 5000)) % 23)
    words = "train step.bin --data tokens.npy --weights init:3 --rate 0.01 --steps 1200 --checkpoint-every 25 --resume"
    command = [sys.executable, "-m", "einc", *words.split()]
    subprocess.run([*command, "--checkpoints", "whole"], cwd=tmp_path, check=True)
    name = "step-00001200.safetensors"
    expected = (tmp_path / "whole" / name).read_bytes()
    generator = random.Random(1)
    for kill in range(KILLS):
        parts = tmp_path / f"parts-{kill}"
        process = subprocess.Popen([*command, "--checkpoints", parts.name], cwd=tmp_path)
        # Counted in what the run has done and not in seconds, so that it is killed before its end on any machine.
        last = 25 * generator.randrange(41)
        while process.poll() is None and find_newest(parts) < last:
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.05))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        subprocess.run([*command, "--checkpoints", parts.name], cwd=tmp_path, check=True)
        assert (parts / name).read_bytes() == expected
