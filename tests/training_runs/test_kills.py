"""Runs that are killed at 20 random moments, and go on, end with the bits of one that was not, each of them."""

from __future__ import annotations

import random
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


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(tmp_path: Path) -> None:
    step = es.compile(TEXT, "host", 3, train="loss", optimizer="adamw", selector="eindecomp", schedule="naive")
    (tmp_path / "step.bin").write_bytes(encode(step.bundle))
    np.save(tmp_path / "tokens.npy", np.cumsum(np.random.default_rng(0).integers(1, 3, 5000)) % 23)
    words = "train step.bin --data tokens.npy --weights init:3 --rate 0.01 --steps 1200 --checkpoint-every 25 --resume"
    command = [sys.executable, "-m", "einc", *words.split()]
    started = time.monotonic()
    subprocess.run([*command, "--checkpoints", "whole"], cwd=tmp_path, check=True)
    took, generator, kills = time.monotonic() - started, random.Random(1), 0
    name = "step-00001200.safetensors"
    expected = (tmp_path / "whole" / name).read_bytes()
    for attempt in range(2 * KILLS):
        parts = tmp_path / f"parts-{attempt}"
        process = subprocess.Popen([*command, "--checkpoints", parts.name], cwd=tmp_path)
        try:
            process.wait(generator.uniform(0.2, 0.9) * took)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.wait()
        subprocess.run([*command, "--checkpoints", parts.name], cwd=tmp_path, check=True)
        assert (parts / name).read_bytes() == expected
        if kills == KILLS:
            return
    raise AssertionError(f"{kills} of {2 * KILLS} runs were killed before their end: give them more steps")
