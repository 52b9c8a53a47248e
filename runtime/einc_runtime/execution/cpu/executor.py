"""Runs a bundle on the host's cores: p sites in one process, one arena each, tasks dispatched by dependency.

Everything is prepared when the executor is made: kernels are built for their views and refused if they do not fit.
What a worker needs of its own (scratch memory, and callables that use it) is made when it first runs a task.
Every sum is added up in the order that the plan gives, so that results are equal to the bit from run to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import KernelFault, ValueFault
from einc_runtime.execution.base import Record
from einc_runtime.execution.cpu import pool
from einc_runtime.execution.cpu.arena import Arenas, aligned_bytes
from einc_runtime.execution.cpu.constants import Constants
from einc_runtime.execution.cpu.host import cores, most_memory, require_memory, single_threaded_blas
from einc_runtime.execution.cpu.schedule import TaskGraph
from einc_runtime.execution.rewrites.accumulation import add_up
from einc_runtime.execution.rewrites.copy_elision import forward
from einc_runtime.execution.rewrites.dependencies import dependencies
from einc_runtime.execution.rewrites.gather_deduplication import share
from einc_runtime.execution.rewrites.kernel_splitting import SMALLEST_NS, parts_wanted, split
from einc_runtime.execution.rewrites.move_coalescing import gather
from einc_runtime.execution.task_errors import place, preparing, subject, told
from einc_runtime.kernels.base import Invocation, JointInvocation, Kernel, Run
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.contract import build_added_contract
from einc_runtime.kernels.llvm.moves import build_moves
from einc_runtime.kernels.numpy.pieces import make_runner
from einc_runtime.kernels.registry import prepare, prepare_aggregate, prepare_joint_aggregation
from einc_runtime.plan.joint_aggregation import groups
from einc_runtime.plan.schema import (
    AggregateTask,
    AnyTask,
    Bundle,
    CopyTask,
    FenceTask,
    KernelTask,
    Region,
    TransferTask,
)


class CpuExecutor:
    """See `executors.base.Executor`.

    `workers` defaults to one per core; `copies` runs the tasks as they are, also those that can be spared where sites
    share one memory. For tests: `poison` fills memory with not-a-numbers before each run, `ranks` replaces the order in
    which ready tasks start, highest first.
    """

    name = "cpu"

    def __init__(
        self,
        bundle: Bundle,
        workers: int | None = None,
        *,
        copies: bool = False,
        poison: bool = False,
        ranks: Sequence[float] | None = None,
    ) -> None:
        self.bundle, self._poison = bundle, poison
        self.workers = workers or cores()
        self._arenas = Arenas(bundle, shared=not copies)
        self._groups = groups(bundle)
        tasks, self._added = (bundle.tasks, frozenset[int]()) if copies else self._spared()
        work = [*self._work(tasks, split_up=not copies)]
        self._numbers = [number for number, _, _ in work]
        self._tasks = [task for _, task, _ in work]
        self._kernels = [kernel for _, _, kernel in work]
        costs = [kernel.nanoseconds for kernel in self._kernels]
        chosen = None if ranks is None else [ranks[number] for number in self._numbers]
        self._graph = TaskGraph.of(dependencies(bundle, self._tasks), costs, chosen)
        self._scratch_size = max((kernel.scratch for kernel in self._kernels), default=0)
        require_memory(self._scratch_size * self.workers, "the kernels' scratch space")
        self._constants = Constants(() if copies else self._kernels)
        self._scratch: list[Array | None] = [None] * self.workers
        self._bound: list[list[Run | None]] = [[None] * len(self._tasks) for _ in range(self.workers)]

    def _spared(self) -> tuple[Sequence[AnyTask], frozenset[int]]:
        """The tasks without what need not be done where all sites share one memory, and which of them add."""
        forwarded = forward(self.bundle)
        summed, added = add_up(self.bundle, forwarded, self.workers, self._can_add)
        if added:  # sums of single copies are transfers now
            summed = forward(self.bundle, summed)
        return gather(self.bundle, share(self.bundle, summed)), added

    def _work(self, tasks: Sequence[AnyTask], split_up: bool) -> Iterator[tuple[int, AnyTask, Kernel]]:
        """What is to be done: the tasks but for fences, or their parts, each with its number and its kernel."""
        alike = Counter(map(_likeness, tasks))
        for number, task in enumerate(tasks):
            if isinstance(task, FenceTask):
                continue
            count = alike[_likeness(task)]
            kernel = self._prepared(number, task, count)
            parts: Sequence[AnyTask] = (task,)
            if isinstance(task, KernelTask) and split_up:
                wanted = min(parts_wanted(count, self.workers), int(kernel.nanoseconds / SMALLEST_NS))
                parts = split(self.bundle.operations[task.operation], task, wanted)
            if len(parts) == 1:
                yield number, task, kernel
            else:
                yield from ((number, part, self._prepared(number, part, count * len(parts))) for part in parts)

    def facts(self) -> dict[str, Any]:
        """Workers, tasks that are run, and bytes: of arenas, of scratch space, of weights laid out for kernels, and the
        most that the process has held."""
        scratch, packed = self._scratch_size * self.workers, self._constants.size
        memory = {"plan": sum(self.bundle.memory), "scratch": scratch, "packed": packed, "process": most_memory()}
        return {"workers": self.workers, "tasks": len(self._tasks), "memory_bytes": memory}

    def fill(self, buffer: int, values: Array) -> None:
        array = self._arenas.buffers[buffer]
        np.copyto(array, values, casting="unsafe")
        self._constants.changed(array)

    def fetch(self, region: Region) -> Array:
        return self._arenas.view(region)

    def execute(self, records: list[Record] | None = None) -> float:
        if self._poison:
            self._arenas.poison()
        try:
            with single_threaded_blas(), np.errstate():  # a worker is this thread
                self._constants.lay_out(self.workers)
                ran: list[Record] | None = None if records is None else []
                seconds = pool.run(self._graph, self.workers, self._start_worker, ran)
        except pool.TaskError as error:
            raise self._fault(error) from error.cause
        if records is not None:
            records += [(self._numbers[task], worker, start, end) for task, worker, start, end in ran or ()]
        return 1e3 * seconds

    def _start_worker(self, worker: int) -> pool.RunTask:
        np.seterr(all="ignore")  # of this thread: infinities and not-a-numbers are results
        scratch = self._scratch[worker]
        if scratch is None:
            scratch = self._scratch[worker] = aligned_bytes(self._scratch_size)
        bound, kernels = self._bound[worker], self._kernels

        def run_task(number: int) -> None:
            run = bound[number]
            if run is None:
                run = bound[number] = kernels[number].bind(scratch)
            run()

        return run_task

    def _can_add(self, task: KernelTask, target: Region) -> bool:
        if self.bundle.operations[task.operation].kernel != "contract":
            return False
        return build_added_contract(self._invocation(msgspec.structs.replace(task, writes=(target,)))) is not None

    def _prepared(self, number: int, task: AnyTask, alike: int) -> Kernel:
        with preparing(number, task), compiler.expect_alike(alike):
            return self._adding(task) if number in self._added else self._kernel(task)

    def _kernel(self, task: AnyTask) -> Kernel:
        views = self._arenas.views
        if isinstance(task, KernelTask):
            return prepare(self._invocation(task))
        if isinstance(task, AggregateTask):
            if len(task.writes) == 1:
                return prepare_aggregate(task.aggregation, views(task.reads), self._arenas.view(task.writes[0]))
            group = self._groups[self.bundle.buffers[task.writes[0].buffer].tensor]
            return prepare_joint_aggregation(
                JointInvocation(task.aggregation, views(task.reads), views(task.writes), group.dims)
            )
        if isinstance(task, TransferTask):
            return build_moves(views([task.read]), views([task.write]))
        assert isinstance(task, CopyTask)
        return build_moves(views(task.reads), views(task.writes))

    def _invocation(self, task: KernelTask) -> Invocation[Array]:
        operation, views = self.bundle.operations[task.operation], self._arenas.views
        blocks = ([region.block for region in regions] for regions in (task.reads, task.writes))
        return Invocation(operation.kernel, operation.kernel_attributes, views(task.reads), views(task.writes), *blocks)

    def _adding(self, task: AnyTask) -> Kernel:
        """A product that adds to its result; by a detour where its operands turn out not to be laid out for it."""
        assert isinstance(task, KernelTask)
        invocation = self._invocation(task)
        kernel = build_added_contract(invocation)
        if kernel is not None:
            return kernel
        target = invocation.output
        product = np.empty_like(target)
        kernel = prepare(invocation.on(invocation.inputs, [product]))

        def bind(memory: Array) -> Run:
            return make_runner([(kernel.bind(memory), []), (np.add, [target, product, target])])

        return Kernel(bind, kernel.scratch, kernel.nanoseconds)

    def _fault(self, error: pool.TaskError) -> KernelFault:
        if error.task < 0:
            return KernelFault(f"a worker could not start: {told(error.cause)}")
        task = self._tasks[error.task]
        fault = ValueFault if isinstance(error.cause, ValueFault) else KernelFault
        where = place(self._numbers[error.task], task)
        return fault(f"{subject(self.bundle, task)} failed: {told(error.cause)}", where=where)


def _likeness(task: AnyTask) -> tuple[object, ...]:
    """Equal for tasks that differ in their site and their part of the data only."""
    return (task.operation,) if isinstance(task, KernelTask) else (type(task), task.serves)
