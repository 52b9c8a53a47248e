"""The plans that worlds run: small ones made by hand, and some of the compiler, each prepared once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cpu.program import CpuProgram
from einc_runtime.execution.cpu.thread_pool import RankedTaskGraph, RunTask
from einc_runtime.execution.session import Session
from einc_runtime.kernels.base import Kernel, Run
from einc_runtime.plan.codec import decode
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import Bundle
from tests.support.handmade_plans import random_plan, two_site_plan
from tests.support.plan_arrays import arrays_of
from tests.worlds.simulation import Finding, SimulatedScheduler

HANDMADE = 48
"""So many plans are made by hand; those after them take a while to compile."""

MODELS = (
    "dim i = 5; dim j = 6; dim k = 7\ninput x : f32[i, j]\nweight w : f32[j, k]\ny = relu(matmul(x, w))\noutput y\n",
    "dim i = 6; dim j = 9\ninput x : f32[i, j]\ny = softmax(x)\nz[j] = sum[i](y[i, j] * x[i, j])\noutput y, z\n",
    "dim i = 3; dim j = 8\ninput x : bf16[i, j]\nweight w : bf16[j]\ny = rmsnorm(x, w)\noutput y\n",
    "dim i = 4; dim j = 10\ninput x : f64[i, j]\ny[i] = max[j](x[i, j])\nz[j] = min[i](abs(x[i, j]))\noutput y, z\n",
    "dim i = 7; dim j = 4; dim k = 5; dim l = 3\ninput x : f32[i, j]\nweight v : f32[j, k]\nweight w : f32[k, l]\n"
    "h = gelu(matmul(x, v))\ny = matmul(h, w)\noutput y\n",
    "dim i = 5; dim j = 12\ninput x : i32[i, j]\ny[i] = sum[j](x[i, j])\nz = neg(x)\noutput y, z\n",
)


@functools.cache
def make_plan(number: int) -> Bundle:
    """One of `count_plans()` plans."""
    if number == 0:
        return two_site_plan()
    if number < HANDMADE:
        dtype = ("f32", "f32", "f64", "f16")[number % 4]
        return random_plan(number, 2 + number % 3, 1 + number % 4, reuse=number % 2 == 0, dtype=dtype)
    if number == count_plans() - 1:
        from tests.mutation.plans import make_plan as make_case

        return decode(make_case("tiles"))
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    model, sites = divmod(number - HANDMADE, 3)
    options = CompileOptions(machine="host", devices=2 + sites, selector="eindecomp")
    return compile_model("model m\n" + MODELS[model], "m.ein", options).bundle


def count_plans() -> int:
    return HANDMADE + 3 * len(MODELS) + 1


class SimulatedExecutor(CpuExecutor):
    """The executor, whose tasks take effect in a world: what a task writes is garbage from its begin to its end.

    A task either computes when it begins and publishes its results at its end, or computes at its end alone.
    """

    def __init__(self, bundle: Bundle, workers: int, scheduler: SimulatedScheduler, **options: object) -> None:
        super().__init__(bundle, workers, poison=True, scheduler=scheduler, **options)  # type: ignore[arg-type]
        self.world, self._may_have_program = scheduler, False
        self._runs: dict[int, RunTask] = {}
        self.written = [self._bits(writes_of(item.task)) for item in self._tasks]
        inputs = [self._bits(reads_of(item.task)) for item in self._tasks]
        self.adds = [
            any(np.may_share_memory(a, b) for a in reads for b in writes)
            for reads, writes in zip(inputs, self.written, strict=True)
        ]
        self.after = [item.task.after for item in self._tasks]
        self.open = False
        self.late: str | None = None  # what was done when the run was over
        self.failing: int | None = None  # the task that fails, counted from the first one to be run
        self.failure: type[BaseException] = MemoryError

    @property
    def kernels(self) -> Sequence[Kernel]:
        return self._kernels

    def _bits(self, regions: Sequence[object]) -> list[np.ndarray]:
        views = self._memory.views(regions)  # type: ignore[arg-type]
        for view in views:
            view.flags.writeable = True
        return [view.view(f"u{view.itemsize}") for view in views]

    def set_graph(
        self, after: Sequence[Sequence[int]], nanoseconds: Sequence[float], ranks: Sequence[float], *, program: bool
    ) -> None:
        """Says in which order tasks run: by ranks, or in a program whose workers leave each task to the interpreter."""
        self._graph, self._program = RankedTaskGraph.of(after, nanoseconds, ranks), None
        if program:
            calls = [None] * len(after)
            self._program = CpuProgram(self._graph, after, calls, self.workers, self._bind_here, spins=2, naps=0)

    def run_in_order(self) -> None:
        """All tasks one after the other, in the order of the plan, without threads."""
        self._memory.poison()
        run = super()._start_worker(0)
        for number in range(len(self._tasks)):
            run(number)

    def saved(self) -> list[np.ndarray]:
        """Copies of the bits of all outputs."""
        regions = [region for output in self.bundle.outputs for region in output.regions]
        return [bits.copy() for bits in self._bits(regions)]

    def _bind_here(self, worker: int, number: int) -> Run:
        return lambda: self._runs[worker](number)

    def _start_worker(self, worker: int, program: CpuProgram | None = None):  # type: ignore[no-untyped-def]
        run_task = super()._start_worker(worker)

        def run(number: int) -> None:
            self._require_open()
            if self.failing is not None:
                self.failing -= 1
                if self.failing < 0:
                    raise self.failure("this world has no more")
            self._take_effect(number, run_task)

        self._runs[worker] = run
        return run if program is None else program.make_runner(worker)

    def _require_open(self) -> None:
        if not self.open:
            self.late = "a task runs when the run is over"
            raise Finding(self.late)

    def _take_effect(self, number: int, run_task) -> None:  # type: ignore[no-untyped-def]
        written, step = self.written[number], self.world.step
        garbage = self.world.rng.randrange(1, 255)
        at_once = self.adds[number] or garbage & 1
        if at_once:
            run_task(number)
            results = [bits.copy() for bits in written]
        for bits in written:
            bits.fill(garbage)
        step()
        if garbage & 2:
            step()
        self._require_open()
        if any((bits != garbage).any() for bits in written):
            raise Finding(f"a race: task {number} writes where another task writes")
        if at_once:
            for bits, result in zip(written, results, strict=True):
                bits[...] = result
        else:
            run_task(number)


class PreparedPlan:
    """A plan with an executor for a number of workers, and the bits that it should give."""

    def __init__(self, number: int, workers: int, scheduler: SimulatedScheduler) -> None:
        self.bundle = make_plan(number)
        self.executor = SimulatedExecutor(self.bundle, workers, scheduler)
        self.session = Session(self.bundle, executor=self.executor)
        self.session.load_all(arrays_of(self.bundle, number))
        self.executor.run_in_order()
        self.expected = self.executor.saved()
        self._check_sequential_run(number)

    def _check_sequential_run(self, number: int) -> None:
        """The same bits as the plan gives on one real thread, prepared for as many workers."""
        plain = CpuExecutor(self.bundle, self.executor.workers)
        session = Session(self.bundle, executor=plain)
        session.load_all(arrays_of(self.bundle, number))
        session.execute()
        for output in self.bundle.outputs:
            for region in output.regions:
                if plain.fetch(region).tobytes() != self.executor.fetch(region).tobytes():
                    raise AssertionError(f"plan {number}: a run of threads differs from the tasks in their order")

    def differs(self) -> bool:
        return any(not np.array_equal(a, b) for a, b in zip(self.executor.saved(), self.expected, strict=True))


def drop_dependency(after: Sequence[Sequence[int]], task: int, position: int) -> list[tuple[int, ...]]:
    """The dependencies without one of them."""
    return [
        tuple(position_before for k, position_before in enumerate(earlier) if (number, k) != (task, position))
        for number, earlier in enumerate(after)
    ]
