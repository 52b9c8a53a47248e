"""What ranks tell each other around a run, whatever runs their parts: results for rank 0, times, and records."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.ranks.carrier import Arrivals, as_bytes
from einc_runtime.execution.ranks.links import RankLinks, wait_for

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
