"""Text from a decoder in several processes, over a real MPI: `make test-mpi`.

Tokens are those of one process and logits have its bits, for 1 to 8 ranks; and nothing is left of the ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.mpi_runs import (
    MPIEXEC,
    ROOT,
    command,
    list_left,
    mpiexec,
    processes_of,
    ranks_of,
    run,
)

STORIES = ROOT / "models" / "stories"
STEPS, SITES = 16, 8
PROMPTS = ("Mia the fox", "Otto", "One day Tom the frog finds")


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


def generate(plans, *more):
    return ("generate", STORIES, *PROMPTS, "--sites", SITES, "--max-tokens", STEPS, "--plans", plans, *more)


@pytest.fixture(scope="module")
def expected(plans):
    document = json.loads(run(command(*generate(plans, "--json"))).stdout)
    assert [len(sequence["tokens"]) for sequence in document["sequences"]] == [STEPS] * 3
    assert "ranks" not in document
    return document["sequences"]


@pytest.mark.parametrize("count", [2, 4, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 8))])
def test_tokens_are_those_of_one_process(plans, expected, count, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = list_left()
    started = json.loads(run(command(*generate(plans, "--ranks", count, "--json"))).stdout)
    assert started["sequences"] == expected
    assert started.get("ranks", 1) == count
    assert not any(plan["compiled"] for plan in started["plans"])
    text = run(mpiexec(count, *generate(plans))).stdout.decode()
    assert text == "".join(f"[{number}] {sequence['text']}\n" for number, sequence in enumerate(expected, 1))
    assert list_left() <= before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [8, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 2, 4))])
def test_logits_have_the_bits_of_one_process(plans, count, tmp_path):
    words = [sys.executable, "-m", "tests.mpi.decode_logits", str(plans)]
    run([*words, str(tmp_path / "one.npy"), str(SITES), str(STEPS)])
    run([str(MPIEXEC), "-n", str(count), *words, str(tmp_path / "all.npy"), str(SITES), str(STEPS)])
    alone, several = np.load(tmp_path / "one.npy"), np.load(tmp_path / "all.npy")
    assert alone.shape[0] == STEPS + 1
    assert alone.tobytes() == several.tobytes()


def test_one_prompt_is_read_from_standard_input_and_printed_as_it_is_made(plans):
    words = command("generate", STORIES, "-", "--sites", SITES, "--plans", plans)
    done = [
        subprocess.run([*words, *more], input=b"Mia the owl", capture_output=True, cwd=ROOT, timeout=120)
        for more in ((), ("--ranks", "4"))
    ]
    assert done[0].stdout.decode() == (STORIES / "owl.txt").read_text()
    assert done[1].stdout == done[0].stdout


def test_one_site_for_each_rank_unless_something_else_is_said(plans):
    words = ("generate", STORIES, "Otto", "--max-tokens", "2", "--plans", plans, "--json", "--ranks")
    assert json.loads(run(command(*words, 2)).stdout)["sites"] == 2
    refused = run(command(*words, 3, "--sites", 2), 65).stderr.decode()
    assert "3 ranks cannot share the 2 sites of the plan" in refused
    assert refused.count("einc: ") == 1


def children_of(process):
    results = []
    for task in os.listdir(f"/proc/{process}/task"):
        results += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
    return results


VICTIMS = {
    "rank": "ended by signal 9",
    "launcher": "was ended by signal 9",
    "proxy": "the launcher",
    "command": "",
}


QUICK = {"rank": 3.0, "launcher": 0.0, "proxy": 3.0, "command": 0.0}


@pytest.mark.parametrize(
    ("victim", "delay"),
    [
        pytest.param(victim, delay, marks=() if QUICK[victim] == delay else pytest.mark.slow)
        for victim in VICTIMS
        for delay in (0.0, 0.7, 3.0)
    ],
)
def test_nothing_is_left_of_processes_that_are_killed(plans, victim, delay, tmp_path, monkeypatch):
    """A rank, one of MPICH's own processes, or the command: while ranks start, and while they make text."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before, mark = list_left(), f"{victim} {delay}"
    more = ("--sites", SITES, "--plans", plans, "--max-tokens", 200, "--temperature", 3, "--ranks", 4)
    words = command("generate", STORIES, mark, *more)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    limit = time.monotonic() + 60
    while len(ranks := ranks_of(mark)) < 4:
        assert time.monotonic() < limit
        time.sleep(0.01)
    (launcher,) = children_of(process.pid)
    (proxy,) = children_of(launcher)
    time.sleep(delay)
    os.kill({"rank": ranks[2], "launcher": launcher, "proxy": proxy, "command": process.pid}[victim], signal.SIGKILL)
    begin = time.monotonic()
    _, error = process.communicate(timeout=60)
    while processes_of(mark):
        assert time.monotonic() < begin + 10
        time.sleep(0.01)
    if victim == "command":  # what it cannot remove any more, the next one removes
        run(command(*generate(plans, "--ranks", 2)))
    else:
        assert process.returncode == 69, error
        said = [line for line in error.decode().splitlines() if line.startswith("einc: ") and "compiled" not in line]
        assert len(said) == 1, error
        assert VICTIMS[victim] in error.decode()
        assert list(tmp_path.iterdir()) == []
    assert list_left() <= before


@pytest.mark.parametrize(
    "start", [mpiexec, lambda count, *more: command(*more, "--ranks", count)], ids=["mpiexec", "ranks"]
)
def test_nothing_is_left_of_connected_ranks_even_if_all_are_killed(plans, start):
    """Nobody can remove anything then: the names of the segments are gone before."""
    before, mark = list_left(), "all at once"
    more = ("--sites", SITES, "--plans", plans, "--max-tokens", 200, "--temperature", 3)
    words = start(4, "generate", STORIES, mark, *more)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, bufsize=0)
    assert process.stdout.read(1)  # the first characters of a text
    used = set()
    for rank in ranks_of(mark):
        used |= set(re.findall(r"/dev/shm/(mpich_shm_\w+)", Path(f"/proc/{rank}/maps").read_text()))
    assert len(used) == 1
    assert not used & set(os.listdir("/dev/shm"))
    for number in {process.pid, *processes_of(mark)}:
        with contextlib.suppress(ProcessLookupError):  # the others may have ended it
            os.kill(number, signal.SIGKILL)
    process.communicate()
    begin = time.monotonic()
    while processes_of(mark):
        assert time.monotonic() < begin + 10
        time.sleep(0.01)
    assert list_left() <= before
