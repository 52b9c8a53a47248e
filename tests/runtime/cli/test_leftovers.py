"""Segments of shared memory are removed when no process has them, and no others; with processes of the test alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from einc_runtime.cli import launching

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="segments have names on Linux alone")

HOLD = """
import mmap, sys
file = open(sys.argv[1], "r+b")
if sys.argv[2] == "mapped":
    memory = mmap.mmap(file.fileno(), 0)
    file.close()
print(flush=True)
sys.stdin.read()
"""
"""Has a segment open, or in its memory alone, until its input ends."""


@pytest.fixture
def shared(monkeypatch):
    folder = Path(tempfile.mkdtemp(dir=launching.SHARED_MEMORY_FOLDER))
    monkeypatch.setattr(launching, "SHARED_MEMORY_FOLDER", folder)
    yield folder
    shutil.rmtree(folder)


def make(folder, name):
    segment = folder / name
    segment.write_bytes(bytes(4096))
    return segment


@pytest.fixture
def hold():
    """Starts a process that has a segment, and waits until it has."""
    processes = []

    def start(segment, how="mapped", before=()):
        words = [*before, sys.executable, "-c", HOLD, str(segment), how]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        return process if process.stdout.readline() else None

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def end(process):
    process.communicate()
    assert process.returncode == 0


def remove(processes=()):
    with launching.removed(lambda: processes):
        pass


def test_what_no_process_has_is_removed(shared):
    for name in ("mpich_shm_2af_0", "mpich_vci_2af_0", "ucx_shm_posix_17"):
        make(shared, name)
    foreign = {make(shared, name) for name in ("mpich_shar_tmpx", "psm_17", "my_mpich_shm_1")}
    (shared / "mpich_shm_link").symlink_to(shared / "psm_17")
    remove()
    assert set(shared.iterdir()) == foreign | {shared / "mpich_shm_link"}


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_what_another_program_has_stays_until_it_ends(shared, hold, how):
    used, free = make(shared, "mpich_shm_1_0"), make(shared, "mpich_shm_2_0")
    process = hold(used, how)
    remove()
    assert (used.exists(), free.exists()) == (True, False)
    end(process)
    remove()
    assert not used.exists()


def test_what_a_program_has_that_cannot_be_seen_stays(shared, hold):
    """As in another container, which shares this folder, and not its processes."""
    used = make(shared, "mpich_shm_1_0")
    process = hold(used, before=("unshare", "--pid", "--fork", "--mount-proc")) if shutil.which("unshare") else None
    if process is None:
        pytest.skip("no other space of processes can be made here")
    hidden = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c")
    program = (
        "from pathlib import Path; from einc_runtime.cli import launching; import os, sys\n"
        "launching.SHARED_MEMORY_FOLDER = Path(sys.argv[1])\n"
        "with launching.removed(lambda: ()): print([p.name for p in Path('/proc').iterdir() if p.name.isdigit()])"
    )
    done = subprocess.run([*hidden, program, shared], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['1']"  # it sees itself alone
    assert used.exists()


def test_it_waits_for_processes_that_are_about_to_be_gone(shared, hold):
    segment = make(shared, "mpich_shm_1_0")
    process, looks = hold(segment), []

    def list_processes():
        looks.append(segment.exists())
        if len(looks) == 3:
            process.kill()
        return {process.pid}

    with launching.removed(list_processes):
        pass
    assert looks[:3] == [True] * 3
    assert not segment.exists()


def test_it_does_not_wait_forever(shared, hold, monkeypatch):
    monkeypatch.setattr(launching, "LAST_SECONDS", 0.1)
    used, free = make(shared, "mpich_shm_1_0"), make(shared, "mpich_shm_2_0")
    remove({hold(used).pid})
    assert (used.exists(), free.exists()) == (True, False)


def test_all_is_removed_after_an_error_too(shared):
    segment = make(shared, "mpich_shm_1_0")
    with pytest.raises(KeyboardInterrupt), launching.removed(lambda: ()):
        raise KeyboardInterrupt
    assert not segment.exists()
