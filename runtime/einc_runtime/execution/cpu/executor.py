"""Runs a bundle on the cores of this machine: all sites in one process, one arena each, tasks in any allowed order.

Everything is prepared when the executor is made: tasks are rewritten, kernels are built for their views, and a kernel
that does not fit is refused. Each worker's own scratch memory, and the callables that use it, are made when the worker
first runs a task. The order of every sum depends only on the plan and the number of workers, so results are equal to
the bit from run to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import KernelFault, MissingFault, RuntimeFault, ValueFault
from einc_runtime.execution import task_errors
from einc_runtime.execution.base import TaskRecord
from einc_runtime.execution.cpu import thread_pool
from einc_runtime.execution.cpu.host import count_cores, peak_memory, require_memory, single_threaded_blas
from einc_runtime.execution.cpu.memory import (
    POISON_BYTE,
    HostMemory,
    PrepackedWeights,
    allocate_aligned,
    find_packed_weights,
    release_weights,
)
from einc_runtime.execution.cpu.messages import Carrier, Message
from einc_runtime.execution.cpu.program import CpuProgram, find_machine_calls
from einc_runtime.execution.cpu.scheduler import THREADS, ThreadScheduler
from einc_runtime.execution.cpu.task_kernels import TaskKernels
from einc_runtime.execution.cpu.thread_pool import RankedTaskGraph
from einc_runtime.execution.facts import CpuFacts, ExecutionFacts, HostMemoryFacts
from einc_runtime.execution.rewrites import (
    MAX_COALESCED_BYTES,
    KernelTime,
    RewriteOptions,
    RewrittenTask,
    find_merged_states,
    order_channels,
    rewrite,
    separate_results,
)
from einc_runtime.execution.shared_buffers import SharedBuffers, list_shared
from einc_runtime.kernels.base import Kernel, Run
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import libraries, onednn
from einc_runtime.kernels.processor import find_level
from einc_runtime.plan.ranks import RankPart
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import Bundle, Region
from einc_runtime.plan.states import STATE


class CpuExecutor:
    """See `execution.base.Executor`.

    `workers` defaults to one per core. Without `rewrites`, every task is run as it stands in the plan, for comparison,
    and without `join_maps`, products and the maps of their results stay apart.
    `common` is memory that it shares with executors of other plans. `scheduler` makes the threads, and `allocate` the
    memory of arenas and the kernels' scratch space, in bytes. For tests: `poison` fills memory with NaNs
    before each run, and `ranks` replaces the order in which ready tasks start, highest first.

    Where other processes run the rest of the plan, `part` says what this one runs, and `carry` makes what carries the
    messages of tasks. `note_task` is told the position of each task before it runs.
    """

    name = "cpu"
    notes = ()
    closed = False

    def __init__(
        self,
        bundle: Bundle,
        workers: int | None = None,
        *,
        rewrites: bool = True,
        join_maps: bool = True,
        common: SharedBuffers | None = None,
        poison: bool = False,
        ranks: Sequence[float] | None = None,
        scheduler: ThreadScheduler = THREADS,
        allocate: Callable[[int], Array] = allocate_aligned,
        part: RankPart | None = None,
        carry: Callable[[Mapping[int, Message]], Carrier] | None = None,
        note_task: Callable[[int], None] | None = None,
    ) -> None:
        find_level()  # before anything else: the environment may ask for one that there is not
        if rewrites:
            bundle = order_channels(bundle)
            bundle = separate_results(bundle) if join_maps else bundle
        self.bundle, self._poison = bundle, poison
        self._scheduler, self._allocate = scheduler, allocate
        self.workers = workers or count_cores()
        self._part = RankPart.of_all(len(bundle.memory), self.workers) if part is None else part
        self._note_task = note_task
        self._memory = HostMemory(bundle, shared=rewrites, common=common, allocate=allocate, sites=self._part.sites)
        self._common, self._keys = common, {} if common is None else dict(list_shared(bundle))
        merge_states = rewrites and common is None and part is None  # else others have states of their own beside these
        self._tasks, self._kernels = self._prepare_tasks(rewrites, join_maps, merge_states)
        if merge_states:
            self._memory.lay_over(find_merged_states(bundle, [item.task for item in self._tasks]))
        costs = [kernel.nanoseconds for kernel in self._kernels]
        chosen = None if ranks is None else [ranks[item.origin] for item in self._tasks]
        self._graph = RankedTaskGraph.of([item.task.after for item in self._tasks], costs, chosen)
        self._program: CpuProgram | None = None
        self._may_have_program = rewrites and ranks is None and carry is None
        self._seeks_program = False
        self._scratch_size = max((kernel.scratch for kernel in self._kernels), default=0)
        require_memory(self._scratch_size * self.workers, "the kernels' scratch space")
        packing = self._kernels if rewrites and (common is None or common.prepack) else []
        replaced: list[Array] = []
        if packing and common is None:  # shared weights have readers that are not known here
            replaced = find_packed_weights(self._memory, [item.task for item in self._tasks], packing)
        self._prepacked = PrepackedWeights(packing, replaced, _fill_with_poison if poison else release_weights)
        if common is not None:
            common.watchers.add(self._prepacked)
        self._carrier = None if carry is None else carry(self._list_messages())
        compiler.rest()
        onednn.rest()
        self._scratch: list[Array | None] = [None] * self.workers
        self._bound: list[list[Run | None]] = [[None] * len(self._tasks) for _ in range(self.workers)]

    def _prepare_tasks(
        self, rewrites: bool, join_maps: bool, merge_states: bool
    ) -> tuple[tuple[RewrittenTask, ...], list[Kernel]]:
        kernels = TaskKernels(self.bundle, self._memory)
        kernel_of_task: dict[int, Kernel] = {}
        times: dict[object, KernelTime] = {}

        def estimate(item: RewrittenTask) -> KernelTime:
            alone = kernels.leave_map(item)
            form = kernels.describe_form(alone)
            if form not in times:  # kernels of other layers take as long, and most are prepared in parts
                kernel = kernels.prepare(alone)
                times[form] = KernelTime(kernel.nanoseconds, kernel.is_stream)
                if alone is item:
                    kernel_of_task[item.origin] = kernel
            return times[form]

        options = RewriteOptions(
            enabled=rewrites,
            max_move_bytes=MAX_COALESCED_BYTES,
            workers=self._part.workers,
            estimate=estimate,
            merge_states=merge_states,
            join_maps=join_maps,
            devices=self._part.ranks,
            rank=self._part.rank,
        )
        tasks = rewrite(self.bundle, options)
        parts = Counter(item.origin for item in tasks)
        return tasks, [
            kernel_of_task[item.origin]
            if item.origin in kernel_of_task and parts[item.origin] == 1
            else kernels.prepare(item)
            for item in tasks
        ]

    def close(self) -> None:
        """Memory is released with the executor."""

    def facts(self) -> ExecutionFacts:
        memory = HostMemoryFacts(
            plan=sum(self.bundle.memory[site] for site in self._part.sites),
            scratch=self._scratch_size * self.workers,
            packed=self._prepacked.size,
            released=self._prepacked.replaced_size,
            process=peak_memory(),
        )
        cpu = CpuFacts(self.workers, len(self._tasks), memory, libraries.describe())
        return ExecutionFacts(messages=None if self._carrier is None else len(self._carrier.tasks), cpu=cpu)

    def holds(self, buffer: int) -> bool:
        return self._part.ranks[self.bundle.buffers[buffer].site] == self._part.rank

    def fill(self, buffer: int, values: Array) -> None:
        array = self._memory.buffers[buffer]
        if values is not array:  # else they were read there
            np.copyto(array, values, casting="unsafe")
        self._prepacked.mark_changed(array)
        if self._common is not None and buffer in self._keys:
            self._common.mark_loaded(self._keys[buffer], array)

    def memory_of(self, buffer: int) -> Array:
        return self._memory.buffers[buffer]

    def is_filled(self, buffer: int) -> bool:
        return self._common is not None and self._keys.get(buffer) in self._common.loaded

    def common_states(self) -> frozenset[Hashable] | None:
        if self._common is None:
            return None
        return frozenset(key for key in self._keys.values() if key[0] == STATE)

    def fetch(self, region: Region) -> Array | None:
        return self._memory.view(region)

    def fetch_own(self, region: Region) -> Array | None:
        return self._memory.view(region)

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        if self._poison:
            self._memory.poison()
        ran: list[TaskRecord] | None = None if records is None else []
        try:
            with self._enter_settings(records):
                if not self._prepacked.is_made:
                    self._seeks_program = self._may_have_program  # whose calls name the memory of layouts
                    self._prepacked.pack(self.workers, self._scheduler)
                program = self._find_program() if records is None else None
                seconds = thread_pool.run_tasks(
                    self._graph if program is None else program.begin(),
                    self.workers,
                    lambda worker: self._start_worker(worker, program),
                    ran,
                    self._scheduler,
                    self._carrier,
                    None if program is None else program.stop,
                )
        except BaseException as error:
            if self._carrier is not None:
                self._carrier.forget()
            if isinstance(error, thread_pool.TaskError):
                raise self._make_fault(error) from error.cause
            raise
        if records is not None:
            records += [(self._tasks[task].origin, worker, start, end) for task, worker, start, end in ran or ()]
        return 1e3 * seconds

    def _enter_settings(self, records: list[TaskRecord] | None) -> AbstractContextManager[None]:
        """What libraries need to hear before a run: nothing where all of it is machine code of ours."""
        program = self._program
        if program is None or program.needs_interpreter or records is not None or not self._prepacked.is_made:
            return _interpreter_settings()
        return onednn.one_thread() if program.calls_onednn else nullcontext()

    def _start_worker(self, worker: int, program: CpuProgram | None = None) -> thread_pool.RunTask:
        if program is None or program.needs_interpreter:
            np.seterr(all="ignore")  # of this thread: infinities and NaNs are results
        if program is None or program.needs_interpreter or program.calls_onednn:
            onednn.limit_threads(1)  # of this thread, too
        if self._scratch[worker] is None:
            self._scratch[worker] = self._allocate(self._scratch_size)
        if program is not None:
            return program.make_runner(worker)
        return (lambda task: self._bind(worker, task)()) if self._note_task is None else self._make_noted(worker)

    def _make_noted(self, worker: int) -> thread_pool.RunTask:
        note, tasks = self._note_task, self._tasks
        assert note is not None

        def run_task(task: int) -> None:
            note(tasks[task].origin)
            self._bind(worker, task)()

        return run_task

    def _bind(self, worker: int, number: int) -> Run:
        """What runs a task in a worker that has started."""
        run, scratch = self._bound[worker][number], self._scratch[worker]
        if run is None:
            assert scratch is not None
            kernel = self._kernels[number]
            run = kernel.bind(scratch)
            for bound in self._bound if kernel.scratch == 0 else [self._bound[worker]]:
                bound[number] = run  # without memory of its own, it is the same in every worker
        return run

    def _find_program(self) -> CpuProgram | None:
        """The tasks as they are run where none is recorded alone; None where no task is machine code."""
        if self._seeks_program:
            try:
                self._start_worker(0)
            except Exception as error:
                raise thread_pool.TaskError(-1, error) from error
            calls = [find_machine_calls(self._bind, 0, number) for number in range(len(self._tasks))]
            after = [item.task.after for item in self._tasks]
            has_machine_code = any(calls)
            self._program = (
                CpuProgram(self._graph, after, calls, self.workers, self._bind) if has_machine_code else None
            )
            self._seeks_program = False
        return self._program

    def _list_messages(self) -> dict[int, Message]:
        """The ends of messages that are tasks of this process."""
        messages = {}
        for number, item in enumerate(self._tasks):
            if item.peer is not None:
                (region,) = (*reads_of(item.task), *writes_of(item.task))
                order = self.bundle.tensors[self.bundle.buffers[region.buffer].tensor].order
                view = self._memory.view(region)
                in_memory_order = view.transpose(order) if order else view
                messages[number] = Message(item.origin, item.peer, in_memory_order, bool(writes_of(item.task)))
        return messages

    def _make_fault(self, error: thread_pool.TaskError) -> RuntimeFault:
        cause = task_errors.describe_error(error.cause)
        short = isinstance(error.cause, MemoryError | MissingFault)
        if error.task < 0:
            return (MissingFault if short else KernelFault)(f"a worker could not start: {cause}")
        item = self._tasks[error.task]
        fault = MissingFault if short else ValueFault if isinstance(error.cause, ValueFault) else KernelFault
        subject, where = task_errors.name_subject(self.bundle, item.task), task_errors.name_task(item.origin, item.task)
        data = f"; {task_errors.name_data(self.bundle, item.task)}" if fault is ValueFault else ""
        return fault(f"{subject} failed: {cause}{data}", where=where)


@contextmanager
def _interpreter_settings() -> Iterator[None]:
    """What calls of numpy and of libraries need: one of the workers is this thread."""
    with single_threaded_blas(), np.errstate():
        yield


def _fill_with_poison(weights: Array) -> None:
    weights.reshape(-1).view(np.uint8).fill(POISON_BYTE)
