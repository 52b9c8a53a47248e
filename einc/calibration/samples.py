"""Runs plans of the probes and times their tasks, in rounds, until the time is over."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from einc.calibration.fit import Sample
from einc.calibration.models import Probe
from einc.machines.model import Machine
from einc.predict.cores import list_run_tasks
from einc.predict.costs import TaskCost, TaskKind
from einc_runtime.dtypes import Array
from einc_runtime.execution.trace import Trace
from einc_runtime.plan.peer_sums import find_peer_sums
from einc_runtime.plan.schema import Bundle, Tensor

if TYPE_CHECKING:
    from einc_runtime.execution.session import Session

MAX_SAMPLE_ROUNDS = 12
MAX_DRAWN = 1 << 22
"""Values of a tensor that are drawn one by one."""

Phase = Callable[[str], None]
Clock = Callable[[], float]


class Runner(Protocol):
    """Runs one plan. `run` returns the times of its tasks, and `replay` only the milliseconds of the whole."""

    def run(self) -> Trace: ...

    def replay(self) -> float: ...

    def close(self) -> None: ...


StartRunner = Callable[[Bundle], Runner]


class SessionRunner:
    """Runs a plan in a session, with random inputs and weights."""

    def __init__(self, session: Session) -> None:
        self._session = session
        tensors = [tensor for tensor in session.bundle.tensors if tensor.kind != "value"]
        session.load_all((tensor.name, make_data(tensor)) for tensor in tensors)

    @staticmethod
    def start(bundle: Bundle, backend: str) -> SessionRunner:
        """The runner of a plan on a backend of the runtime. On CPUs, products and maps are timed apart."""
        from einc_runtime.execution.cpu.executor import CpuExecutor
        from einc_runtime.execution.session import Session

        executor = CpuExecutor(bundle, join_maps=False) if backend == "cpu" else None
        return SessionRunner(Session(bundle, backend, executor=executor))

    def run(self) -> Trace:
        self._session.execute(trace=True)
        trace = self._session.trace
        assert trace is not None
        return trace

    def replay(self) -> float:
        return self._session.execute()

    def close(self) -> None:
        self._session.close()


def make_data(tensor: Tensor) -> Array:
    """Random values; those of a large tensor repeat, as drawing them would take longer than all that is measured."""
    from einc_runtime.execution.data.random_arrays import make_random_array

    if math.prod(tensor.shape) <= MAX_DRAWN:
        return make_random_array(tensor, 0)
    part = make_random_array(msgspec.structs.replace(tensor, shape=(MAX_DRAWN,)), 0)
    return np.resize(part, tensor.shape)


@dataclass(frozen=True, slots=True)
class TimedTask:
    """A task that ran once in every round, and the milliseconds that it took in each."""

    cost: TaskCost
    times: tuple[float, ...]

    @property
    def ms(self) -> float:
        return float(np.median(self.times))


@dataclass(frozen=True, slots=True)
class Measurements:
    """The tasks that were timed; `start_ms`: what starting one takes, the median of the gaps between two of a worker.

    `left_out` counts the probes for which there was no time.
    """

    tasks: tuple[TimedTask, ...]
    start_ms: float
    rounds: int
    left_out: int

    @property
    def samples(self) -> list[Sample]:
        """Those that occupy a site."""
        return [
            Sample(task.cost.task, task.cost.precision, task.cost.flops, task.cost.size, task.ms)
            for task in self.tasks
            if task.cost.kind is not TaskKind.TRANSFER
        ]

    @property
    def transfers(self) -> list[tuple[int, int, int, float]]:
        """Those between two sites: source, target, bytes and milliseconds."""
        return [
            (task.cost.site, task.cost.target, task.cost.size, task.ms)
            for task in self.tasks
            if task.cost.kind is TaskKind.TRANSFER
        ]


@dataclass(frozen=True, slots=True)
class _TimedPlan:
    costs: dict[int, TaskCost]
    runner: Runner
    traces: list[Trace]


def compile_probe(probe: Probe, machine: Machine) -> Bundle:
    """A plan of a probe with random cuts, for all sites of a machine."""
    from einc.frontend import build as read_model
    from einc.graph.fuse import fuse
    from einc.logical.optimize import optimize
    from einc.physical.build import build
    from einc.physical.records import emit

    graph = fuse(read_model(probe.text, "probe.ein", probe.definitions, None, probe.dtype))
    plan = optimize(graph, len(machine.sites), selector="random", seed=probe.seed)
    return emit(build(plan, machine), machine, tuple(range(len(machine.sites))), "naive")


def measure_probes(
    probes: Sequence[Probe],
    machines: Sequence[Machine],
    start: StartRunner,
    seconds: float,
    phase: Phase = lambda _: None,
    clock: Clock = time.monotonic,
) -> Measurements:
    """Times the tasks of the probes' plans for each of some machines, in rounds over all plans.

    There is one round at least, and no more begin when `seconds` are over. Plans are made in the order of the probes;
    those that are not made in half of the time are left out.
    """
    begin = clock()
    plans: list[_TimedPlan] = []
    try:
        for number, probe in enumerate(probes):
            if plans and clock() - begin > seconds / 2:
                break
            phase(f"preparing plan {number + 1} of {len(probes)}")
            plans += [_start_plan(compile_probe(probe, machine), machine, start) for machine in machines]
        rounds = 0
        while rounds < MAX_SAMPLE_ROUNDS and (not rounds or clock() - begin < seconds):
            rounds += 1
            phase(f"measuring, round {rounds}: {min(1.0, (clock() - begin) / seconds):.0%} of the time")
            for plan in plans:
                plan.traces.append(plan.runner.run())
    finally:
        for plan in plans:
            plan.runner.close()
    tasks = [task for plan in plans for task in _list_times(plan)]
    gaps = [gap for plan in plans for trace in plan.traces for gap in _list_gaps(trace)]
    start_ms = float(np.median(gaps)) if gaps else 0.0
    left_out = len(probes) - len(plans) // len(machines)
    return Measurements(tuple(tasks), start_ms, rounds, left_out)


def _start_plan(bundle: Bundle, machine: Machine, start: StartRunner) -> _TimedPlan:
    """A plan that has run once: the first run prepares weights. Tasks that the executor cuts are not timed, and none of
    sums that are read where other GPUs have them, whose kernels wait for each other."""
    runner = start(bundle)
    runner.run()
    tasks = list_run_tasks(bundle, machine)
    parts = Counter(tasks.origins)
    sums = find_peer_sums(bundle, bundle.tasks, tasks.launches) if machine.cores is None else ()
    waiting = {number for peer_sum in sums for number in (*peer_sum.tasks, *peer_sum.moves)}
    once = {
        origin: cost
        for origin, cost in zip(tasks.origins, tasks.costs, strict=True)
        if parts[origin] == 1 and cost.kind is not TaskKind.FENCE and origin not in waiting
    }
    return _TimedPlan(once, runner, [])


def _list_times(plan: _TimedPlan) -> Iterator[TimedTask]:
    times: dict[int, list[float]] = {}
    for trace in plan.traces:
        for run in trace.runs:
            times.setdefault(run.task, []).append(run.end_ms - run.start_ms)
    for position, task_times in sorted(times.items()):
        if position in plan.costs and len(task_times) == len(plan.traces):
            yield TimedTask(plan.costs[position], tuple(task_times))


def _list_gaps(trace: Trace) -> Iterator[float]:
    """The milliseconds between the end of a task and the start of the next one of the same worker."""
    ended: dict[int, float] = {}
    for run in sorted(trace.runs, key=lambda run: run.start_ms):
        if run.worker is not None:
            if run.worker in ended:
                yield max(0.0, run.start_ms - ended[run.worker])
            ended[run.worker] = run.end_ms
