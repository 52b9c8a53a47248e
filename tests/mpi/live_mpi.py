"""Plans in several processes, over a real MPI: `make test-mpi`.

Every model of `models/` gives the bits of one process, in 1 to 8; and however one of them ends, all end, with one
message, and leave nothing behind.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.support.mpi_runs import (
    ROOT,
    SMALL,
    command,
    compile_small,
    list_left,
    mpiexec,
    processes_of,
    ranks_of,
    run,
    wait_for_tasks,
)

END_SECONDS = 5.0


QUICK = ("bert", "llama", "moe")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SMALL]
)
def test_every_model_gives_the_bits_of_one_process(name, tmp_path):
    plan = compile_small(name, tmp_path)
    loads = ("--inputs", "rand:3", "--weights", "rand:1")
    run(command("run", plan, *loads, "-o", tmp_path / "one.npz"))
    expected = np.load(tmp_path / "one.npz")
    for count in (1, 2, 3, 8):
        target = tmp_path / f"{count}.npz"
        run(mpiexec(count, "run", plan, *loads, "-o", target))
        arrays = np.load(target)
        assert sorted(arrays) == sorted(expected)
        for key in expected:
            assert arrays[key].tobytes() == expected[key].tobytes(), (count, key)
    proved = re.search(
        rb"messages match \(at most ([\d,]+)\), and none waits", run(command("verify", plan, "--ranks")).stdout
    )
    assert int(proved[1].replace(b",", b"")) > 5 or name == "digits"  # which is computed on one site


@pytest.fixture(scope="module")
def ffn(tmp_path_factory):
    return compile_small("ffn", tmp_path_factory.mktemp("ffn"))


LOADS = ("--inputs", "rand:0", "--weights", "rand:1")


def test_ranks_are_started_here_and_one_of_them_reports(ffn, tmp_path):
    chain = compile_small("chain_a", tmp_path)
    done = run(command("run", chain, *LOADS, "--ranks", 4, "--json", "--check", "--trace", tmp_path / "t.json"))
    document = json.loads(done.stdout)
    assert document["ranks"] == 4
    assert document["messages"] > 0
    assert document["max_rel_error"] < 1e-5
    workers = {
        event["tid"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["ph"] == "X"
    }
    assert len(workers) >= 4
    printed = run(command("run", ffn, *LOADS, "--ranks", 2, "-o", "-")).stdout
    run(command("run", ffn, *LOADS, "-o", tmp_path / "y.npy"))
    assert printed == (tmp_path / "y.npy").read_bytes()


def test_sites_are_given_out_as_it_is_said(ffn, tmp_path):
    run(command("run", ffn, *LOADS, "-o", tmp_path / "y.npy"))
    expected = (tmp_path / "y.npy").read_bytes()
    for shares, ranks in (("3", 3), ("1,5,2", 3)):
        words = ("run", ffn, *LOADS, "--sites-per-rank", shares, "-o", "-")
        assert run(command(*words, "--ranks", ranks)).stdout == expected
        proved = run(command("verify", ffn, "--ranks", "--sites-per-rank", shares)).stdout.decode()
        assert re.search(r"in 3 processes with [\d, ]+ sites each, by their own tasks: \d+ messages", proved)
    assert run(mpiexec(3, *words)).stdout == expected
    refused = run(command("run", ffn, *LOADS, "--sites-per-rank", "4", "--ranks", 3), 65).stderr.decode()
    assert "3 ranks with 4 sites a rank do not share the 8 sites" in refused


def test_every_rank_writes_its_part_of_the_results(ffn, tmp_path):
    run(command("run", ffn, *LOADS, "-o", tmp_path / "y.npy"))
    run(command("run", ffn, *LOADS, "--shards", "-o", tmp_path / "y.safetensors", "--ranks", 4))
    index = json.loads((tmp_path / "y.safetensors.index.json").read_text())
    expected = np.load(tmp_path / "y.npy")
    joined, files = np.zeros_like(expected), set()
    for block, file in index["weight_map"].items():
        with safe_open(tmp_path / file, "numpy") as opened:
            ends = re.findall(r"(\d+):(\d+)", block)
            joined[tuple(slice(int(low), int(up)) for low, up in ends)] = opened.get_tensor(block)
        files.add(file)
    assert joined.tobytes() == expected.tobytes()
    assert len(files) > 1
    assert len(list(tmp_path.glob("y-*-of-00004.safetensors"))) == 4


def test_what_is_wrong_on_one_rank_is_said_once(ffn, tmp_path):
    four = tmp_path / "four.bin"
    words = [item for key, value in SMALL["ffn"].items() for item in ("-D", f"{key}={value}")]
    run(command("compile", ROOT / "models/ffn.ein", "-m", "host", "--devices", 4, *words, "-o", four))
    missing = (":", "-n", "1", *command("run", ffn, "--inputs", "rand:0", "--weights", tmp_path / "nothing.npz"))
    different = (":", "-n", "1", *command("run", four, *LOADS))
    for words, code, message in (
        (mpiexec(9, "run", ffn, *LOADS), 65, "9 ranks cannot share the 8 sites of the plan"),
        ([*mpiexec(2, "run", ffn, *LOADS), *missing], 2, "rank 2, "),
        ([*mpiexec(2, "run", ffn, *LOADS), *different], 65, "rank 2 has read another plan than rank 0"),
        (command("run", ffn, *LOADS, "--ranks", 9), 65, "9 ranks cannot share"),
    ):
        error = run(list(map(str, words)), code).stderr.decode()
        assert error.count("einc: ") == 1, error
        assert message in error


ENDINGS = {
    "stopped": (signal.SIGSTOP, 1),
    "killed": (signal.SIGKILL, 4),
    "stopped again": (signal.SIGSTOP, 3),
    **{f"killed again, {part} of 5": (signal.SIGKILL, 10) for part in (1, 2, 3, 4, 5)},
}
"""What happens to a rank, and how often: the slow ones kill it at 50 moments in all."""


@pytest.mark.parametrize(
    "ending", [pytest.param(name, marks=pytest.mark.slow if "again" in name else ()) for name in ENDINGS]
)
def test_when_one_rank_ends_all_end(ffn, ending, tmp_path, monkeypatch):
    """At seeded moments: half of them while the ranks start, connect and load, and half while they run. `pytest -rP`
    prints how long that took."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    number, moments = ENDINGS[ending]
    rng, before, seconds, begun = random.Random(ending), list_left(), [], 0
    for moment in range(moments):
        words = command("run", ffn, *LOADS, "--repeat", 10**6, "--ranks", 4)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        limit = time.monotonic() + 60
        while len(ranks := ranks_of(ffn)) < 4:
            assert time.monotonic() < limit
            time.sleep(0.01)
        if moment % 2 or number == signal.SIGSTOP:
            wait_for_tasks(tmp_path)
        time.sleep(rng.uniform(0, 2.0))
        os.kill(rng.choice(sorted(ranks)), number)
        begin = time.monotonic()
        out, err = process.communicate(timeout=60)
        seconds.append(time.monotonic() - begin)
        assert process.returncode == 69, (moment, out, err)
        assert out == b""
        assert err.decode().count("einc: ") == 1, err
        if number == signal.SIGSTOP:
            assert re.search(rb"has not answered for 4 seconds; it(s last task is task| has begun no task$)", err), err
        else:
            assert b"ended by signal 9" in err
        begun += b"in or after task" in err or b"its last task is" in err  # ranks tell each other twice a second
        assert seconds[-1] < END_SECONDS + (number == signal.SIGSTOP), seconds  # which takes 4 to notice
        assert processes_of(ffn) == []
        assert list(tmp_path.iterdir()) == []
        assert list_left() <= before
    assert begun >= moments // 2
    print(f"{moments} times {ending}, {begun} of them while running: all ended within {max(seconds):.2f} s")


HURRIED = (
    "import sys, einc_runtime.cli.launching as launching; launching.CONNECT_SECONDS = 4.0;"
    "from einc.cli.main import main; sys.exit(main())"
)


@pytest.mark.parametrize("moments", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_a_rank_that_is_stopped_before_all_are_connected_is_named(ffn, moments, tmp_path, monkeypatch):
    """At seeded moments while ranks start and connect; where all are connected by then, they notice by themselves."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rng, before, early = random.Random(moments), list_left(), 0
    for moment in range(moments):
        words = [sys.executable, "-c", HURRIED, *map(str, ("run", ffn, *LOADS, "--repeat", 10**6, "--ranks", 4))]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        limit = time.monotonic() + 60
        while len(ranks := ranks_of(ffn)) < 4:
            assert time.monotonic() < limit
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        os.kill(rng.choice(sorted(ranks)), signal.SIGSTOP)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (69, b""), (moment, out, err)
        assert err.decode().count("einc: ") == 1, err
        early += b"is not connected to the others, after 4 seconds" in err and b"its process is stopped" in err
        assert b"is not connected to the others" in err or b"has not answered for 4 seconds" in err, err
        assert processes_of(ffn) == []
        assert list(tmp_path.iterdir()) == []
        assert list_left() <= before
    assert early
    print(f"{early} of {moments} were stopped before all were connected")


def test_an_interrupt_ends_all(ffn, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = command("run", ffn, *LOADS, "--repeat", 10**6, "--ranks", 4)
    for delay in (0.0, 2.0):
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True
        )
        while len(ranks_of(ffn)) < 4:
            time.sleep(0.01)
        status = Path(f"/proc/{min(ranks_of(ffn))}/status").read_text().partition("SigBlk:")[2].split()[0]
        assert int(status, 16) & 1 << signal.SIGINT - 1  # else Python says where it is while it starts
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, (out, err)
        assert b"Traceback" not in err
        assert processes_of(ffn) == []
        assert list(tmp_path.iterdir()) == []


def test_without_a_launcher_or_mpi4py_one_line_says_what_to_install(ffn):
    bare = {**os.environ, "PATH": tempfile.gettempdir(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    script = (
        "import sys, einc_runtime.cli.launching as launching; launching._find_launcher = lambda: None;"
        "from einc.cli.main import main; sys.argv[1:] = sys.argv[1:]; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "run", str(ffn), *LOADS, "--ranks", "2"], capture_output=True, cwd=ROOT, env=bare
    )
    assert (done.returncode, b"there is no mpiexec" in done.stderr) == (69, True)
    assert done.stderr.rstrip().endswith(b"install 'mpi4py>=4.0' 'mpich>=4.2'")
    hidden = "import sys; sys.modules['mpi4py'] = None; from einc.cli.main import main; sys.exit(main())"
    alone = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", hidden, "run", str(ffn), *LOADS], capture_output=True, cwd=ROOT, env=alone
    )
    assert (done.returncode, done.stderr.rstrip().endswith(b"install 'mpi4py>=4.0'")) == (69, True)
