"""The links over MPI, with an MPI that the test makes; tests of the real one are in `tests/mpi`."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.execution.naps import BRIEF_NAP, FIRST_NAP, LAST_NAP, Naps
from einc_runtime.execution.ranks import mpi


class Request:
    """Ends when the test says so; it is false when it has ended and was looked at, as mpi4py's are."""

    def __init__(self, looks=0):
        self.is_done, self.is_active, self.looks = False, True, looks

    def __bool__(self):
        return self.is_active

    def Test(self):
        self.looks -= 1
        return self.looks < 0


class Mpi:
    """One process alone, in which every message is started and none arrives by itself."""

    BYTE = COMM_TYPE_SHARED = TAG_UB = 0

    def __init__(self):
        self.COMM_WORLD, self.Request = self, self
        self.started, self.looked, self.barriers = [], 0, []

    def Dup(self):
        return self

    def Split_type(self, kind):
        return self

    def Free(self): ...

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def Get_attr(self, key):
        return 1 << 20

    def Isend(self, data, peer, tag):
        self.started.append(Request())
        return self.started[-1]

    Irecv = Isend

    def Ibarrier(self):
        self.barriers.append(Request(looks=20))
        return self.barriers[-1]

    def Testsome(self, requests):
        self.looked += 1
        active = [position for position, request in enumerate(requests) if request]
        ended = [position for position in active if requests[position].is_done]
        for position in ended:
            requests[position].is_active = False
        return ended if active else None


def test_one_look_serves_all_messages_and_all_their_parts(monkeypatch):
    monkeypatch.setattr(mpi, "MAX_MESSAGE", 10)
    made = Mpi()
    links = mpi.MpiLinks(made)
    handles = [
        links.send(0, 1, np.zeros(25, np.uint8)),
        links.receive(0, 2, np.zeros(0, np.uint8)),
        links.send(0, 3, np.zeros(10, np.uint8)),
    ]
    assert [len(parts) for parts in handles] == [3, 1, 1]
    assert links.test(handles) == []
    handles[0][1].is_done = handles[2][0].is_done = True
    assert links.test(handles) == [2]
    del handles[2]
    assert links.test(handles) == []
    for request in made.started:
        request.is_done = True
    assert links.test(handles) == [0, 1]
    assert made.looked == 4
    assert links.test([]) == []


def test_ranks_that_meet_wait_long_only_before_all_are_there(monkeypatch):
    paused = []
    monkeypatch.setattr(mpi, "Naps", lambda last=LAST_NAP: Naps(paused.append, last))
    made = Mpi()
    mpi.MpiLinks(made).meet()
    assert len(made.barriers) == 2
    assert len(paused) == 40
    assert paused[0] == paused[20] == FIRST_NAP
    assert max(paused[:20]) == pytest.approx(LAST_NAP)
    assert max(paused[20:]) == pytest.approx(BRIEF_NAP)
