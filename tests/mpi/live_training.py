"""Training runs in several processes, over a real MPI: the bits of the same plan in one process. `make test-mpi`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.mpi_runs import command, run
from tests.support.training_texts import LETTERS


@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "bf16", "--accumulate", "--recompute", "blocks"),
        pytest.param((), marks=pytest.mark.slow),
    ],
)
def test_ranks_train_to_the_bits_of_one_process(options, tmp_path):
    """Losses and the last checkpoint, also where the run is interrupted and goes on."""
    model, plan, tokens = tmp_path / "m.ein", tmp_path / "step.bin", tmp_path / "tokens.npy"
    model.write_text(LETTERS)
    np.save(tokens, (np.cumsum(np.random.default_rng(0).integers(1, 3, 400)) % 11).astype("i4"))
    how = ("-m", "host", "--devices", 3, "--train", "loss", "--optimizer", "adamw", "--clip", 1, *options)
    run(command("compile", model, *how, "--selector", "eindecomp", "--schedule", "naive", "-o", plan))
    parts = ("--accumulate", 2) if options else ()
    results = []
    for name, more in (("single", ()), ("ranks", ("--ranks", 3))):
        words = ("train", plan, "--data", tokens, "--weights", "init:3", "--rate", 0.02, *parts, *more)
        ends = ("--checkpoints", tmp_path / name, "--losses", tmp_path / f"{name}.csv")
        for steps, resume in ((4, ()), (9, ("--resume",))):
            run(command(*words, *ends, "--steps", steps, *resume))
        last = (tmp_path / name / "step-00000009.safetensors").read_bytes()
        results.append((last, (tmp_path / f"{name}.csv").read_text()))
    assert results[0] == results[1]
    losses = [float(line.split(",")[1]) for line in results[0][1].splitlines()[1:]]
    assert len(losses) == 9
    assert losses[-1] < losses[0]
