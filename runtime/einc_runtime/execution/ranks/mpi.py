"""RankLinks over MPI, through mpi4py. MPI has started the processes, and connects them.

Only point-to-point messages are used, and only those calls that do not wait, because most MPIs wait with a busy core.
Control messages have a communicator of their own, so that no number of a plan's message is taken for theirs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einc_runtime import environment
from einc_runtime.dtypes import Array
from einc_runtime.errors import MissingFault
from einc_runtime.execution.naps import BRIEF_NAP, LAST_NAP, Naps
from einc_runtime.installing import suggest_extra

MAX_MESSAGE = 1 << 30
"""Bytes of one MPI message: many MPIs count them in 32 bits. Longer messages are sent in parts."""

CONTROL = 1
"""The number of all control messages."""

SEGMENT = re.compile(r"/dev/shm/mpich_(?:shm|vci)_\w+$")
"""A segment of MPICH that has a name, as Linux shows it among the memory of a process."""


def is_started_by_mpi() -> bool:
    """Whether a launcher of MPI started this process and others.

    A shell in a job of a cluster often has these variables, too, with one process: nothing needs MPI there.
    """
    variables = environment.MPI_SIZE_OF.items()
    return any(environment.read(size) != "1" for rank, size in variables if environment.read(rank) is not None)


def read_rank(variables: Mapping[str, str]) -> int | None:
    """The rank of the process with these environment variables, which is known before it connects; None if no launcher
    of MPI started it."""
    return next((int(variables[name]) for name in environment.MPI_SIZE_OF if variables.get(name, "").isdecimal()), None)


def connect() -> MpiLinks:
    """The links of this process, which MPI started. Raises MissingFault without mpi4py, or where MPI has no threads."""
    environment.set_default(environment.MPICH_ABORTS, "1")  # MPICH: errors are reported by us
    try:
        from mpi4py import MPI
    except ImportError as error:  # whichever MPI it was, mpi4py alone is missing
        hint = suggest_extra("mpi", only="mpi4py")
        raise MissingFault(f"MPI started this process, but mpi4py cannot be used: {error}", hint=hint) from error
    except RuntimeError as error:
        hint = f"name the library of this MPI in MPI4PY_LIBMPI, or use MPICH: {suggest_extra('mpi', only='mpich')}"
        raise MissingFault(f"MPI started this process, but mpi4py cannot be used: {error}", hint=hint) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise MissingFault("this MPI cannot be used by several threads", hint="use an MPI with MPI_THREAD_MULTIPLE")
    return MpiLinks(MPI)


class MpiLinks:
    """See `links.RankLinks`."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._data, self._control = mpi.COMM_WORLD.Dup(), mpi.COMM_WORLD.Dup()
        self.rank: int = self._data.Get_rank()
        self.size: int = self._data.Get_size()
        machine = self._data.Split_type(mpi.COMM_TYPE_SHARED)
        self.neighbours: int = machine.Get_size()
        machine.Free()
        _remove_names_of_segments()  # no rank comes as far as this before all have left MPI's start
        self._limit: int = self._data.Get_attr(mpi.TAG_UB)
        self._told: list[tuple[Any, bytes]] = []  # control messages and their bytes, which must outlive them

    def send(self, peer: int, number: int, data: Array) -> list[Any]:
        return [self._data.Isend([part, self._mpi.BYTE], peer, self._tag(number)) for part in _divide(data)]

    def receive(self, peer: int, number: int, data: Array) -> list[Any]:
        return [self._data.Irecv([part, self._mpi.BYTE], peer, self._tag(number)) for part in _divide(data)]

    def test(self, handles: Sequence[list[Any]]) -> list[int]:
        flat = list(itertools.chain.from_iterable(handles))
        if not flat or self._mpi.Request.Testsome(flat) == []:  # one look at all: each lets MPI go on, which takes time
            return []
        return [position for position, parts in enumerate(handles) if not any(parts)]  # requests that ended are null

    def share(self, text: bytes) -> list[bytes]:
        lengths = np.zeros(self.size, np.int64)
        self._wait(self._data.Iallgather(np.array([len(text)], np.int64), lengths))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        texts = np.zeros(max(1, int(starts[-1])), np.uint8)
        target = [texts, (lengths, starts[:-1]), self._mpi.BYTE]
        self._wait(self._data.Iallgatherv([np.frombuffer(text, np.uint8), self._mpi.BYTE], target))
        return [texts[start:end].tobytes() for start, end in itertools.pairwise(starts)]

    def meet(self) -> None:
        # The first barrier may take long, and ranks leave it milliseconds apart, since they look for its messages
        # between naps. The second one takes no longer than its messages.
        self._wait(self._data.Ibarrier())
        self._wait(self._data.Ibarrier(), BRIEF_NAP)

    def tell(self, peer: int, text: bytes) -> None:
        self._told = [(request, data) for request, data in self._told if not request.Test()]
        self._told.append((self._control.Isend([text, self._mpi.BYTE], peer, CONTROL), text))

    def hear(self) -> list[tuple[int, bytes]]:
        heard = []
        status = self._mpi.Status()
        while (message := self._control.Improbe(self._mpi.ANY_SOURCE, CONTROL, status)) is not None:
            data = bytearray(status.Get_count(self._mpi.BYTE))
            message.Recv([data, self._mpi.BYTE])
            heard.append((status.Get_source(), bytes(data)))
        return heard

    def abort(self, code: int) -> None:
        self._mpi.COMM_WORLD.Abort(code)

    def close(self) -> None:
        self._wait(self._control.Ibarrier())
        self.hear()
        self._wait(self._control.Ibarrier())
        self._told.clear()

    def _tag(self, number: int) -> int:
        if number > self._limit:
            raise MissingFault(f"this MPI has numbers for {self._limit:,} messages, and the plan has more tasks")
        return number

    def _wait(self, request: Any, last_nap: float = LAST_NAP) -> None:
        naps = Naps(last=last_nap)
        while not request.Test():
            naps.take()


def _remove_names_of_segments() -> None:
    """Removes the names of the memory that MPICH shares on this machine, which all ranks have open by now. So Linux
    removes the memory with the last of them, however they end. MPICH does not mind if the names are gone."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for name in {match[0] for line in maps if (match := SEGMENT.search(line))}:
            with contextlib.suppress(OSError):
                os.unlink(name)


def _divide(data: Array) -> list[Array]:
    """An array of bytes in parts that MPI can count; at least one part."""
    return [data[start : start + MAX_MESSAGE] for start in range(0, max(1, data.size), MAX_MESSAGE)]
