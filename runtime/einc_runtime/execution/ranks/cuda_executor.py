"""Runs one rank's part of a plan on its GPUs, as one captured graph, and exchanges messages over NCCL inside of it.

MPI only starts the ranks, tells them which GPUs there are, and brings results to rank 0. All ranks call the methods of
their executors in one order, as they run one program. Every kernel reads what it reads in one process, where each site
has a GPU of its own, and is the same code: so the results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.lanes import Lanes, MessageEnd
from einc_runtime.execution.cuda.nccl import Communicators, Nccl
from einc_runtime.execution.facts import ExecutionFacts
from einc_runtime.execution.ranks.carrier import Arrivals
from einc_runtime.execution.ranks.gathering import bring_to_first, share_times
from einc_runtime.execution.ranks.gpus import RankGpus, agree_on_gpus
from einc_runtime.execution.ranks.links import RankLinks
from einc_runtime.execution.ranks.part import take_part
from einc_runtime.kernels.gpu import Kernels
from einc_runtime.plan.ranks import Shares, assign_sites
from einc_runtime.plan.schema import Bundle, FenceTask, Region

if TYPE_CHECKING:
    from einc_runtime.kernels.cuda.tuning import Tuning


class CudaRankExecutor:
    """See `execution.base.Executor`, and `CudaExecutor` for the arguments. All ranks make one from the same bundle, at
    the same time.

    `devices` gives every site of the plan the device that it has on its rank; without it, each site has a GPU of its
    own. `shares` says how many sites each rank has; the default is evenly. Raises PlanFault where the plan has fewer
    sites than there are ranks, or the shares do not fit, and MissingFault where GPUs or NCCL are missing.
    """

    name = "cuda"

    def __init__(
        self,
        bundle: Bundle,
        links: RankLinks,
        devices: Sequence[int] | None = None,
        *,
        no_peer: str = "stage",
        tunings: Sequence[Tuning] = (),
        shares: Shares | None = None,
        note_task: Callable[[int], None] | None = None,
        driver: Driver | None = None,
        kernels: Kernels | None = None,
        nccl: Nccl | None = None,
    ) -> None:
        self.bundle, self._links, self._note_task = bundle, links, note_task
        self._ranks = assign_sites(len(bundle.memory), links.size, shares)
        driver = _load_driver() if driver is None else driver
        nccl = _load_nccl(driver) if nccl is None else nccl
        self.gpus = agree_on_gpus(links, driver, self._ranks, devices)
        self._part = take_part(bundle, self._ranks, links.rank)
        ends = {
            task: MessageEnd(self.gpus.gpus[site], not _sends(self._part.bundle, task))
            for task, site in self._part.messages.items()
        }
        self._versions = {"nccl": str(nccl.version())}
        self._own = CudaExecutor(
            self._part.bundle,
            self.gpus.devices,
            no_peer=no_peer,
            tunings=tunings,
            driver=driver,
            kernels=kernels,
            lanes=Lanes(bundle, ends, partial(_join, links, nccl, self.gpus, self._part.sites)),
        )
        self.arrivals = Arrivals()
        facts = self._own.facts().cuda
        assert facts is not None
        streams = links.share(b"%d" % facts.graph.streams)
        self._streams = max(map(int, streams))  # in records of tasks, they are numbered through all ranks
        tasks = self._part.bundle.tasks
        self._first = next((n for n, task in enumerate(tasks) if not isinstance(task, FenceTask)), None)

    def owner_of(self, buffer: int) -> int:
        """The rank that has a buffer in its memory."""
        return self._ranks[self.bundle.buffers[buffer].site]

    def holds(self, buffer: int) -> bool:
        """Whether a buffer is on a GPU of this rank."""
        return self.owner_of(buffer) == self._links.rank

    def is_filled(self, buffer: int) -> bool:
        return not self.holds(buffer) or self._own.is_filled(buffer)

    def memory_of(self, buffer: int) -> None:
        return None

    def common_states(self) -> frozenset[Hashable] | None:
        return self._own.common_states()

    def fill(self, buffer: int, values: Array) -> None:
        if self.holds(buffer):
            self._own.fill(buffer, values)

    def fetch(self, region: Region) -> Array | None:
        """The values of a region on rank 0; None on all others."""
        dtype = storage_dtype(self.bundle.tensors[self.bundle.buffers[region.buffer].tensor].dtype)
        return bring_to_first(
            self._links,
            self.arrivals,
            self.owner_of(region.buffer),
            region.buffer,
            read=lambda: np.ascontiguousarray(self._own.fetch(region)),
            make=lambda: np.empty(region.block.shape, dtype),
        )

    def fetch_own(self, region: Region) -> Array | None:
        """The values of a region that is on a GPU of this rank, else None."""
        return self._own.fetch(region) if self.holds(region.buffer) else None

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        """As all executors do; the milliseconds and the records are those of all ranks, which start together."""
        self._links.meet()
        if self._note_task is not None and self._first is not None:
            self._note_task(self._first)  # nobody sees which task of a graph runs
        own: list[TaskRecord] | None = None if records is None else []
        milliseconds = self._own.execute(own)
        return share_times(self._links, milliseconds, own or (), records, self._streams)

    def facts(self) -> ExecutionFacts:
        facts = self._own.facts().cuda
        assert facts is not None
        devices = tuple(
            replace(device, sites=tuple(self._part.sites[site] for site in device.sites)) for device in facts.devices
        )
        versions = dict(sorted({**facts.versions, **self._versions}.items()))
        cuda = replace(facts, devices=devices, versions=versions, notes=self.notes)
        return ExecutionFacts(self._links.size, len(self._part.messages), cuda=cuda)

    @property
    def notes(self) -> tuple[str, ...]:
        several = len(set(self.gpus.devices)) > 1
        advice = "a rank for each GPU is safer: NCCL's guide says that graphs over several GPUs may wait forever"
        return (*self._own.notes, advice) if several else self._own.notes

    @property
    def closed(self) -> bool:
        return self._own.closed

    def close(self) -> None:
        self._own.close()


def _sends(bundle: Bundle, task: int) -> bool:
    return bool(bundle.tasks[task].reads)  # type: ignore[union-attr]


def _join(links: RankLinks, nccl: Nccl, found: RankGpus, sites: Sequence[int]) -> Communicators:
    """Rank 0 makes NCCL's id; MPI brings it to all."""
    identity = links.share(nccl.make_id() if links.rank == 0 else b"")[0]
    gpus = dict(sorted((device, found.gpus[site]) for device, site in zip(found.devices, sites, strict=True)))
    return nccl.join(identity, found.count, gpus)


def _load_driver() -> Driver:
    from einc_runtime.execution.cuda.cupy_driver import CupyDriver

    return CupyDriver()


def _load_nccl(driver: Driver) -> Nccl:
    from einc_runtime.execution.cuda.cupy_nccl import CupyNccl

    return CupyNccl(driver)
