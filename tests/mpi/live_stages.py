"""Plans with pipeline stages in several processes, over a real MPI: the bits of one process and of the plan without
stages; and whichever rank is killed, all end. `make test-mpi`."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.support.mpi_runs import (
    ROOT,
    command,
    list_left,
    mpiexec,
    processes_of,
    ranks_of,
    run,
    wait_for_tasks,
)

END_SECONDS = 5.0
SIZES = {"n_layers": 4, "batch": 4, "length": 5, "d_model": 36, "heads_q": 6, "heads_kv": 3, "d_head": 6, "d_ff": 44}
LOADS = ("--inputs", "rand:3", "--weights", "rand:1")


def compile_llama(target, sites, *words):
    sizes = [item for key, value in {**SIZES, "vocab": 53}.items() for item in ("-D", f"{key}={value}")]
    how = ("-m", "dgx-h100", "--devices", sites, "--schedule", "naive", "--dtype", "f32", *sizes)
    run(command("compile", ROOT / "models" / "llama.ein", *how, *words, "-o", target))
    return target


def shape(stages, microbatches, replicas=1):
    return ("--stages", stages, "--microbatches", microbatches, "--replicas", replicas)


def read_results(target, words):
    run([*words, "-o", target])
    return {name: array.tobytes() for name, array in np.load(target).items()}


@pytest.mark.parametrize(
    ("sites", "stages", "microbatches"), [(4, 4, 4), pytest.param(2, 2, 4, marks=pytest.mark.slow)]
)
def test_stages_have_the_bits_of_the_plan_without_them(sites, stages, microbatches, tmp_path):
    """Of the same micro-batches on one site, in one process."""
    plan = compile_llama(tmp_path / "stages.bin", sites, *shape(stages, microbatches))
    single = compile_llama(tmp_path / "single.bin", 1, *shape(1, microbatches))
    expected = read_results(tmp_path / "single.npz", command("run", single, *LOADS))
    assert read_results(tmp_path / "one.npz", command("run", plan, *LOADS)) == expected
    for ranks in range(2, sites + 1):
        assert read_results(tmp_path / f"{ranks}.npz", mpiexec(ranks, "run", plan, *LOADS)) == expected
    proved = run(command("verify", plan, "--ranks")).stdout
    assert re.search(rb"messages match \(at most [\d,]+\), and none waits", proved)


def test_reproducible_stages_have_the_bits_of_any_plan(tmp_path):
    plan = compile_llama(tmp_path / "stages.bin", 4, *shape(2, 2), "--reproducible")
    undivided = compile_llama(tmp_path / "undivided.bin", 1, "--reproducible")
    expected = read_results(tmp_path / "undivided.npz", command("run", undivided, *LOADS))
    assert read_results(tmp_path / "4.npz", mpiexec(4, "run", plan, *LOADS)) == expected


@pytest.fixture(scope="module")
def four_stages(tmp_path_factory):
    return compile_llama(tmp_path_factory.mktemp("stages") / "plan.bin", 4, *shape(4, 4))


@pytest.mark.parametrize("victim", [0, 3, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (1, 2))])
def test_whichever_rank_is_killed_all_end(four_stages, victim, tmp_path, monkeypatch):
    """At a seeded moment while the stages run."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = list_left()
    words = command("run", four_stages, *LOADS, "--repeat", 10**6, "--ranks", 4)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    limit = time.monotonic() + 60
    while len(ranks := ranks_of(four_stages)) < 4:
        assert time.monotonic() < limit
        time.sleep(0.01)
    wait_for_tasks(tmp_path)
    time.sleep(random.Random(victim).uniform(0, 1.0))
    os.kill(sorted(ranks)[victim], signal.SIGKILL)
    begin = time.monotonic()
    out, err = process.communicate(timeout=60)
    seconds = time.monotonic() - begin
    assert process.returncode == 69, err
    assert out == b""
    assert b"ended by signal 9" in err
    assert seconds < END_SECONDS
    assert processes_of(four_stages) == []
    assert list(tmp_path.iterdir()) == []
    assert list_left() <= before
