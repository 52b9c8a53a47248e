"""How ranks that are started here are watched until all are connected; with processes of the test, and without MPI."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from einc_runtime.cli import launching, ranks
from einc_runtime.environment import RANKS
from einc_runtime.execution.ranks import mpi

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(launching, "CONNECT_POLL_SECONDS", 0.02)
    path = tmp_path / "board"
    path.write_bytes(bytes(3 * ranks.ENTRY.size))
    return path


@pytest.fixture
def started(board):
    """Three processes as a launcher of MPI starts them."""
    environments = [os.environ | {"PMI_RANK": str(rank), RANKS: str(board)} for rank in range(3)]
    processes = [subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE) for environment in environments]
    for process in processes:
        process.stdout.readline()
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def say(board, *entries):
    board.write_bytes(b"".join(ranks.ENTRY.pack(*entry) for entry in entries))


def watch(process, board):
    silent = []
    launching._watch_connecting(process, board, threading.Event(), silent)
    return silent


def test_ranks_that_are_connected_are_left_alone(board, started):
    say(board, *((process.pid, ranks.CONNECTED + rank) for rank, process in enumerate(started)))
    assert watch(started[0], board) == []
    assert [process.poll() for process in started] == [None] * 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes and their variables are seen in /proc")
def test_the_rank_that_is_stopped_is_named_and_all_end(board, started):
    os.kill(started[1].pid, signal.SIGSTOP)
    while not launching.is_stopped(started[1].pid):
        time.sleep(0.01)
    say(board, (started[0].pid, ranks.CONNECTING), (started[1].pid, ranks.CONNECTING), (0, 0))
    (fault,) = watch(started[0], board)
    assert (fault.where, fault.exit_code) == ("rank 1", 69)
    assert fault.message.endswith("its process is stopped")
    assert [process.wait(5) for process in started] == [-signal.SIGKILL] * 3


def test_a_rank_that_says_nothing_is_named_before_those_that_connect(board, started, monkeypatch):
    monkeypatch.setattr(launching, "find_marked", lambda mark: {})  # as where there is no /proc
    say(board, (started[0].pid, ranks.CONNECTING), (started[1].pid, 4), (0, 0))
    (fault,) = watch(started[0], board)
    assert (fault.where, fault.message.rpartition("; ")[2]) == ("rank 2", "it has not begun to")
    assert started[0].wait(5) == -signal.SIGKILL
    say(board, *((process.pid, ranks.CONNECTING) for process in started))
    (fault,) = watch(started[0], board)
    assert (fault.where, fault.message.rpartition("; ")[2]) == ("rank 0", "it tries")


def test_each_rank_that_comes_gives_the_others_more_time(board, started, monkeypatch):
    monkeypatch.setattr(launching, "CONNECT_SECONDS", 0.8)

    def come():
        entries = [(0, 0)] * 3
        for rank in range(3):
            time.sleep(0.3)
            entries[rank] = started[rank].pid, ranks.CONNECTED
            say(board, *entries)

    thread = threading.Thread(target=come)
    thread.start()
    assert watch(started[0], board) == []
    thread.join()


def test_a_rank_says_in_its_own_place_that_it_connects(board, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    ranks._note_connecting(str(board))
    entries = list(ranks.ENTRY.iter_unpack(board.read_bytes()))
    assert entries == [(0, 0), (os.getpid(), ranks.CONNECTING), (0, 0)]
    monkeypatch.setenv("PMI_RANK", "3")  # there is no such place
    ranks._note_connecting(str(board))
    ranks._note_connecting(str(board.parent / "missing"))
    assert list(ranks.ENTRY.iter_unpack(board.read_bytes())) == entries


def test_launchers_say_the_rank_in_the_environment():
    assert mpi.read_rank({"OMPI_COMM_WORLD_RANK": "12"}) == 12
    assert mpi.read_rank({"PMI_RANK": "zero", "PMIX_RANK": "2"}) == 2
    assert mpi.read_rank({"PMI_SIZE": "2"}) is None
