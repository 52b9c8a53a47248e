"""Runs one rank's part of a plan by an executor of either kind, and talks to the other ranks around it.

All ranks call the methods of their executors in one order, as they run one program. The executor of the part exchanges
messages with the others while it runs; here are what each rank holds, results for rank 0, times, and records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.execution.base import Executor, TaskRecord
from einc_runtime.execution.facts import ExecutionFacts
from einc_runtime.execution.ranks.carrier import Arrivals, as_bytes
from einc_runtime.execution.ranks.links import RankLinks, wait_for
from einc_runtime.plan.schema import Bundle, Region

RECORD = struct.Struct("<qqdd")


def bring_to_first(
    links: RankLinks,
    arrivals: Arrivals,
    owner: int,
    number: int,
    *,
    read: Callable[[], Array],
    make: Callable[[], Array],
) -> Array | None:
    """What `read` returns on the rank `owner`, on rank 0; None on all others. `make` returns dense memory for it. It is
    sent when rank 0 asks for it: so that knows what is on the way, and holds nothing that it does not wait for."""
    if owner == links.rank == 0:
        return read()
    if links.rank == owner:
        data = np.ascontiguousarray(read())
        wait_for(links, [links.receive(0, number, np.zeros(1, np.uint8))])
        wait_for(links, [links.send(0, number, as_bytes(data))])
    elif links.rank == 0:
        data = make()
        arrivals.expect(owner, data.nbytes)
        question = links.send(owner, number, np.zeros(1, np.uint8))
        wait_for(links, [question, links.receive(owner, number, as_bytes(data))])
        arrivals.end(owner, data.nbytes)
        return data
    return None


def share_times(
    links: RankLinks,
    milliseconds: float,
    local_records: Sequence[TaskRecord],
    records: list[TaskRecord] | None,
    workers: int,
) -> float:
    """The longest time of all ranks. Where there are `records`, those of all ranks are added; each rank has so many
    workers."""
    times = [struct.unpack("<d", text) for text in links.share(struct.pack("<d", milliseconds))]
    if records is not None:
        for rank, text in enumerate(links.share(b"".join(RECORD.pack(*record) for record in local_records))):
            records += [
                (task, rank * workers + worker, start, end) for task, worker, start, end in RECORD.iter_unpack(text)
            ]
    return float(max(times)[0])


class RankExecutor:
    """See `execution.base.Executor`. `cpu_part` and `cuda_part` make one.

    `part` runs this rank's part of `bundle`, whose buffers and tasks have their numbers in the plan. `owners` has the
    rank of every site. `lanes` is how many workers or streams a rank has in records of tasks, the same for all ranks.
    `arrivals` is what is on the way to this rank, for whoever watches whether the others are alive. `note_begin` is
    called when an execution begins, by parts whose tasks nobody sees.
    """

    def __init__(
        self,
        bundle: Bundle,
        part: Executor,
        links: RankLinks,
        owners: Sequence[int],
        arrivals: Arrivals,
        lanes: int,
        note_begin: Callable[[], None] | None = None,
    ) -> None:
        self.bundle, self.part, self.arrivals = bundle, part, arrivals
        self._links, self._owners, self._lanes, self._note_begin = links, owners, lanes, note_begin

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def notes(self) -> tuple[str, ...]:
        return self.part.notes

    @property
    def closed(self) -> bool:
        return self.part.closed

    def close(self) -> None:
        self.part.close()

    def facts(self) -> ExecutionFacts:
        return replace(self.part.facts(), ranks=self._links.size)

    def owner_of(self, buffer: int) -> int:
        """The rank that has a buffer in its memory."""
        return self._owners[self.bundle.buffers[buffer].site]

    def holds(self, buffer: int) -> bool:
        return self.owner_of(buffer) == self._links.rank

    def fill(self, buffer: int, values: Array) -> None:
        if self.holds(buffer):
            self.part.fill(buffer, values)

    def is_filled(self, buffer: int) -> bool:
        return not self.holds(buffer) or self.part.is_filled(buffer)

    def memory_of(self, buffer: int) -> Array | None:
        return self.part.memory_of(buffer) if self.holds(buffer) else None

    def common_states(self) -> frozenset[Hashable] | None:
        return self.part.common_states()

    def fetch(self, region: Region) -> Array | None:
        """The values of a region on rank 0; None on all others."""
        dtype = storage_dtype(self.bundle.tensors[self.bundle.buffers[region.buffer].tensor].dtype)
        return bring_to_first(
            self._links,
            self.arrivals,
            self.owner_of(region.buffer),
            region.buffer,
            read=lambda: self._read(region),
            make=lambda: np.empty(region.block.shape, dtype),
        )

    def fetch_own(self, region: Region) -> Array | None:
        return self._read(region) if self.holds(region.buffer) else None

    def _read(self, region: Region) -> Array:
        values = self.part.fetch_own(region)
        assert values is not None, "the part holds the buffers of its sites"
        return values

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        """As all executors do; the milliseconds and the records are those of all ranks. Their clocks start together."""
        self._links.meet()
        if self._note_begin is not None:
            self._note_begin()
        local_records: list[TaskRecord] | None = None if records is None else []
        milliseconds = self.part.execute(local_records)
        return share_times(self._links, milliseconds, local_records or (), records, self._lanes)
