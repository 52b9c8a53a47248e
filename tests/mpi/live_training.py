"""Training runs in several processes, over a real MPI: the bits of the same plan in one process. `make test-mpi`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.mpi_runs import command, require_mpi, run

TEXT = """model letters
dim batch = 3
dim length = 8
dim vocab = 11
dim width = 6
input ids : i64[batch, length]
input targets : i64[batch, length]
weight table : f32[vocab, width] from "wte.weight"
weight gain : f32[width]
weight square : f32[width, width]
x = embedding(reshape(ids, tokens=24), table)
h = tanh(matmul(rmsnorm(x, gain), square)) + x
logits[tokens, vocab] = h[tokens, width] * table[vocab, width]
output loss = cross_entropy(logits, reshape(targets, tokens=24))
"""


@pytest.fixture(scope="module", autouse=True)
def mpi():
    require_mpi()


@pytest.mark.parametrize("options", [(), ("--precision", "bf16", "--accumulate", "--recompute", "blocks")])
def test_ranks_train_to_the_bits_of_one_process(options, tmp_path):
    """Losses and the last checkpoint, also where the run is interrupted and goes on."""
    model, plan, tokens = tmp_path / "m.ein", tmp_path / "step.bin", tmp_path / "tokens.npy"
    model.write_text(TEXT)
    np.save(tokens, (np.cumsum(np.random.default_rng(0).integers(1, 3, 400)) % 11).astype("i4"))
    how = ("-m", "host", "--devices", 3, "--train", "loss", "--optimizer", "adamw", "--clip", 1, *options)
    run(command("compile", model, *how, "--selector", "eindecomp", "--schedule", "naive", "-o", plan))
    parts = ("--accumulate", 2) if options else ()
    found = []
    for name, more in (("single", ()), ("ranks", ("--ranks", 3))):
        words = ("train", plan, "--data", tokens, "--weights", "init:3", "--rate", 0.02, *parts, *more)
        ends = ("--checkpoints", tmp_path / name, "--losses", tmp_path / f"{name}.csv")
        for steps, resume in ((4, ()), (9, ("--resume",))):
            run(command(*words, *ends, "--steps", steps, *resume))
        last = (tmp_path / name / "step-00000009.safetensors").read_bytes()
        found.append((last, (tmp_path / f"{name}.csv").read_text()))
    assert found[0] == found[1]
    losses = [float(line.split(",")[1]) for line in found[0][1].splitlines()[1:]]
    assert len(losses) == 9
    assert losses[-1] < losses[0]
