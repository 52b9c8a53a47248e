"""MPI programs of others run beside our ranks, and neither notices: `make test-mpi`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.mpi_runs import (
    MPIEXEC,
    ROOT,
    command,
    compile_small,
    list_left,
    list_used,
    ranks_of,
    run,
)

FOREIGN = """
from mpi4py import MPI
import os, sys
world, rounds = MPI.COMM_WORLD, 0
while not world.allreduce(os.path.exists(sys.argv[1])):
    rounds += 1
    assert world.allreduce(rounds) == rounds * world.size
    if rounds == 10 and world.rank == 0:
        print(os.getpid(), flush=True)
if world.rank == 0:
    print("all rounds were right")
"""
LOADS = ("--inputs", "rand:0", "--weights", "rand:1")


@pytest.mark.parametrize("delays", [(0.0, 2.0), pytest.param((0.3, 0.6, 3.0), marks=pytest.mark.slow)])
def test_a_program_beside_ours_keeps_its_memory(delays, tmp_path):
    """Ours end by themselves, and are killed while they connect, and while they run; its segment has its name all the
    time, and another one can be opened by this name."""
    ffn = compile_small("ffn", tmp_path)
    end, before = tmp_path / "end", list_left()
    words = [str(MPIEXEC), "-n", "2", sys.executable, "-c", FOREIGN, str(end)]
    foreign = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        maps = Path(f"/proc/{int(foreign.stdout.readline())}/maps").read_text()
        (segment,) = set(re.findall(r"/dev/shm/mpich_shm_\w+$", maps, re.MULTILINE))
        run(command("run", ffn, *LOADS, "--ranks", 2))
        assert Path(segment).exists()
        for delay in delays:
            words = command("run", ffn, *LOADS, "--repeat", 10**6, "--ranks", 4)
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
            while len(ranks := ranks_of(ffn)) < 4:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(delay)
            os.kill(ranks[1], signal.SIGKILL)
            assert process.communicate(timeout=60)[0] == b""
            assert process.returncode == 69
            assert Path(segment).exists()
            assert Path(segment).name in list_used()
            assert list_left() <= before
    finally:
        end.touch()
        out, error = foreign.communicate(timeout=60)
    assert (foreign.returncode, out.decode(), error) == (0, "all rounds were right\n", b"")
    assert list_left() <= before
