"""Runs one rank's part of a plan on the cores that the rank has, and exchanges messages with the other ranks.

All ranks call the methods of their executors in one order, as they run one program. Every task computes what it does in
one process: kernels are cut in as many parts, and the views that they read have the same values. So the results have
the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.cpu import thread_pool
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cpu.host import count_cores
from einc_runtime.execution.cpu.program import CpuProgram
from einc_runtime.execution.facts import ExecutionFacts
from einc_runtime.execution.ranks.carrier import Message, MessageCarrier
from einc_runtime.execution.ranks.gathering import bring_to_first, share_times
from einc_runtime.execution.ranks.links import RankLinks
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.kernels.numpy import libraries
from einc_runtime.plan.ranks import RankPart, Shares, assign_sites
from einc_runtime.plan.regions import reads_of, region_bytes, writes_of
from einc_runtime.plan.schema import AnyTask, Bundle, KernelTask, Region

FLOPS_PER_NS, BYTES_PER_NS, MESSAGE_NS = 50.0, 10.0, 20_000.0
"""Rough figures, which decide only in which order tasks start that are ready."""


class RankExecutor(CpuExecutor):
    """See `execution.base.Executor`. All ranks make one from the same bundle, at the same time.

    `workers` defaults to this rank's share of the machine's cores, `total` to the cores of all machines. `note_task` is
    told the position of each task before it runs. `common` is memory that this rank's executors of other plans have,
    too. `shares` says how many sites each rank has; the default is evenly. Raises PlanFault where the plan has fewer
    sites than there are ranks, or the shares do not fit.
    """

    def __init__(
        self,
        bundle: Bundle,
        links: RankLinks,
        workers: int | None = None,
        *,
        total: int | None = None,
        note_task: Callable[[int], None] | None = None,
        common: SharedBuffers | None = None,
        shares: Shares | None = None,
        poison: bool = False,
    ) -> None:
        self._links, self._note_task = links, note_task
        ranks = assign_sites(len(bundle.memory), links.size, shares)
        cores = count_cores()
        if total is None:
            cores_of = links.share(str(Fraction(cores, links.neighbours)).encode())
            total = max(1, int(sum(Fraction(one.decode()) for one in cores_of)))
        mine = json.dumps(libraries.decide() if links.rank == 0 else {})
        libraries.decide_alike(json.loads(links.share(mine.encode())[0]))
        self.part = RankPart(ranks, links.rank, total)
        workers = workers or max(1, cores // links.neighbours)
        super().__init__(bundle, workers, common=common, ranks=measure_chains(bundle), poison=poison)
        self._messages = MessageCarrier(links, self._list_messages())
        self.carrier = self._messages
        self.arrivals = self._messages.arrivals

    def _list_messages(self) -> dict[int, Message]:
        messages = {}
        for place, item in enumerate(self._tasks):
            if item.peer is not None:
                (region,) = (*reads_of(item.task), *writes_of(item.task))
                view = self._in_memory_order(region)
                messages[place] = Message(item.origin, item.peer, view, bool(writes_of(item.task)))
        return messages

    def _in_memory_order(self, region: Region) -> Array:
        tensor = self.bundle.tensors[self.bundle.buffers[region.buffer].tensor]
        view = self._memory.view(region)
        return view.transpose(tensor.order) if tensor.order else view

    def holds(self, buffer: int) -> bool:
        """Whether a buffer is in the memory of this rank."""
        return self.owner_of(buffer) == self._links.rank

    def is_filled(self, buffer: int) -> bool:
        return not self.holds(buffer) or super().is_filled(buffer)

    def facts(self) -> ExecutionFacts:
        facts = super().facts()
        assert self.part is not None
        assert facts.cpu is not None
        memory = replace(facts.cpu.memory_bytes, plan=sum(self.bundle.memory[site] for site in self.part.sites))
        cpu = replace(facts.cpu, memory_bytes=memory)
        return ExecutionFacts(self._links.size, len(self._messages.tasks), cpu=cpu)

    def fill(self, buffer: int, values: Array) -> None:
        if self.holds(buffer):
            super().fill(buffer, values)

    def fetch(self, region: Region) -> Array | None:
        """The values of a region on rank 0; None on all others."""
        owner = self.owner_of(region.buffer)
        if owner == self._links.rank == 0:
            return super().fetch(region)
        order = self.bundle.tensors[self.bundle.buffers[region.buffer].tensor].order
        shape = region.block.shape
        dtype = self._memory.buffers[region.buffer].dtype
        data = bring_to_first(
            self._links,
            self.arrivals,
            owner,
            region.buffer,
            read=lambda: np.ascontiguousarray(self._in_memory_order(region)),
            make=lambda: np.empty([shape[dim] for dim in order] if order else shape, dtype),
        )
        return data.transpose(np.argsort(order)) if data is not None and order else data

    def fetch_own(self, region: Region) -> Array | None:
        """The values of a region that is in the memory of this rank, else None."""
        return super().fetch(region) if self.holds(region.buffer) else None

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        """As all executors do; the milliseconds and the records are those of all ranks. Their clocks start together."""
        self._links.meet()
        own: list[TaskRecord] | None = None if records is None else []
        try:
            milliseconds = super().execute(own)
        except BaseException:
            self._messages.forget()
            raise
        return share_times(self._links, milliseconds, own or (), records, self.workers)

    def _start_worker(self, worker: int, program: CpuProgram | None = None) -> thread_pool.RunTask:
        run_task, note, tasks = super()._start_worker(worker, program), self._note_task, self._tasks
        if note is None:
            return run_task

        def run_noted_task(place: int) -> None:  # there is no program: others wait for single tasks
            note(tasks[place].origin)
            run_task(place)

        return run_noted_task

    def owner_of(self, buffer: int) -> int:
        """The rank that has a buffer in its memory."""
        assert self.part is not None
        return self.part.ranks[self.bundle.buffers[buffer].site]


def measure_chains(bundle: Bundle) -> list[float]:
    """For every task of a plan, roughly the time from its start to the end of the plan: what other ranks wait for
    starts first."""
    rest = [0.0] * len(bundle.tasks)
    for number in range(len(bundle.tasks) - 1, -1, -1):
        task = bundle.tasks[number]
        rest[number] += _estimate(bundle, task)
        for earlier in task.after:
            rest[earlier] = max(rest[earlier], rest[number])
    return rest


def _estimate(bundle: Bundle, task: AnyTask) -> float:
    if isinstance(task, KernelTask):
        function = bundle.operations[task.operation].functions[task.function]
        return function.flops / FLOPS_PER_NS + function.traffic / BYTES_PER_NS
    size = sum(region_bytes(bundle, region) for region in writes_of(task))
    return MESSAGE_NS + size / BYTES_PER_NS
