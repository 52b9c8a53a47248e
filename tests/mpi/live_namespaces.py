"""Plans in two network namespaces with four ranks each, over a real MPI: `make test-mpi`, as root with iproute2.

Ranks of one namespace talk through memory, and those of two through their ports, as on two machines.
"""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from tests.support.mpi_runs import MPIEXEC, ROOT, command, compile_small, list_left, run
from tests.testbed.network import Unsupported
from tests.testbed.star import star

LOADS = ("--inputs", "rand:3", "--weights", "rand:1")
MODELS = (
    "chain_a",
    "llama_decode",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "ffn", "llama", "moe")),
)


@pytest.fixture(scope="module")
def two():
    try:
        with star(2) as built:
            yield built
    except Unsupported as reason:
        pytest.skip(f"no network namespaces here: {reason}")


def run_in(spaces, *arguments):
    """In namespaces whose processes have as many cores together as this one has."""
    words = [*spaces.mpiexec(str(MPIEXEC), 4), *command(*arguments)]
    done = subprocess.run(words, capture_output=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.decode()


def count_received(spaces):
    """The bytes that the ports of all namespaces have received."""
    read = ("cat", "/sys/class/net/nic/statistics/rx_bytes")
    return [int(subprocess.check_output(["ip", "netns", "exec", name, *read])) for name in spaces.names]


def test_ranks_are_on_two_machines(two):
    program = "import sys; from einc_runtime.execution.ranks import mpi; m = mpi.connect(); "
    program += "print(m.share(b'%d of %d' % (m.neighbours, m.size))) if m.rank == 0 else m.share(b'%d' % m.neighbours)"
    words = [*two.mpiexec(str(MPIEXEC), 4), command()[0], "-c", program]
    done = subprocess.run(words, capture_output=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == str([b"4 of 8", *[b"4"] * 7]).encode(), done


@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="namespaces have one core each: as many as this process")
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_bits_of_one_process(two, name, tmp_path):
    plan, before = compile_small(name, tmp_path), list_left()
    run(command("run", plan, *LOADS, "-o", tmp_path / "one.npz"))
    received = count_received(two)
    text = run_in(two, "run", plan, *LOADS, "-o", tmp_path / "all.npz")
    assert "on the cpu, 8 sites" in text
    assert min(np.subtract(count_received(two), received)) > 20_000
    alone, several = np.load(tmp_path / "one.npz"), np.load(tmp_path / "all.npz")
    assert sorted(alone) == sorted(several)
    for key in alone:
        assert alone[key].tobytes() == several[key].tobytes(), key
    assert list_left() <= before
