"""Programs of the CPU: the order of their tasks, their workers, and runs that fail or are interrupted."""

from __future__ import annotations

import random

import numpy as np
import pytest

from einc_runtime.execution.cpu import thread_pool
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cpu.program import CpuProgram, find_machine_calls, order_tasks
from einc_runtime.execution.cpu.thread_pool import RankedTaskGraph
from einc_runtime.execution.session import Session
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import onednn
from tests.support.compiled_plans import MODELS, compiled
from tests.support.plan_arrays import arrays_of

PRODUCTS = """
model products
dim t = 70
dim k = 90
dim n = 80
dim m = 50
input  x : f32[t, k]
weight a : f32[n, k]
weight b : f32[m, n]
h[t, n] = x[t, k] * a[n, k]
g = gelu(h)
y[t, m] = g[t, n] * b[m, n]
output y
"""

needs_compiler = pytest.mark.skipif(not compiler.is_available(), reason="nothing compiles kernels here")


def drawn(seed, count=90):
    rng = random.Random(seed)
    after = [tuple(sorted(rng.sample(range(i), min(i, rng.randrange(4))))) for i in range(count)]
    return after, [rng.choice([1.0, 3e3, 2e4, 1e6, 7e6]) for _ in after]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_an_order_has_every_task_behind_all_that_it_waits_for(seed, workers):
    after, nanoseconds = drawn(seed)
    order = order_tasks(RankedTaskGraph.of(after, nanoseconds), workers)
    place = {task: number for number, task in enumerate(order)}
    assert sorted(place) == list(range(len(after)))
    assert all(place[one] < place[task] for task, earlier in enumerate(after) for one in earlier)


def test_an_order_begins_with_long_chains_and_starts_tasks_when_workers_are_free():
    #        0 -> 3 -> 4 is the longest chain; 1 and 2 wait for nothing
    graph = RankedTaskGraph.of([(), (), (), (0,), (3,)], [1e6, 5e6, 2e6, 3e6, 3e6])
    assert order_tasks(graph, 1) == [0, 3, 1, 4, 2]
    assert order_tasks(graph, 2) == [0, 1, 3, 4, 2]
    assert order_tasks(RankedTaskGraph.of([], []), 3) == []


def run(program, workers):
    graph = program.begin()
    thread_pool.run_tasks(graph, workers, program.make_runner)


@needs_compiler
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_tasks_of_the_interpreter_run_once_in_an_order_that_is_allowed(workers):
    after, nanoseconds = drawn(9)
    ended = []

    def bind(worker, task):
        assert 0 <= worker < workers

        def run_task():
            assert set(after[task]) <= set(ended)
            ended.append(task)

        return run_task

    program = CpuProgram(RankedTaskGraph.of(after, nanoseconds), after, [None] * len(after), workers, bind)
    for _ in range(2):
        ended.clear()
        run(program, workers)
        assert sorted(ended) == list(range(len(after)))


@needs_compiler
def test_the_task_that_fails_is_named_and_the_program_runs_again():
    after, nanoseconds = drawn(3)
    failing = {40}

    def bind(_, task):
        def run_task():
            if task in failing:
                raise KeyError(task)

        return run_task

    program = CpuProgram(RankedTaskGraph.of(after, nanoseconds), after, [None] * len(after), 3, bind)
    with pytest.raises(thread_pool.TaskError) as caught:
        run(program, 3)
    assert caught.value.task == 40
    assert isinstance(caught.value.cause, KeyError)
    failing.clear()
    run(program, 3)
    failing.add(70)
    with pytest.raises(thread_pool.TaskError, match="task 70"):
        run(program, 3)


@needs_compiler
def test_an_interrupt_ends_all_workers_and_leaves_a_program_that_runs():
    def bind(_, task):
        def run_task():
            ran.append(task)
            if task == 30:
                raise KeyboardInterrupt

        return run_task

    ran = []
    after = [(max(0, n - 3),) if n else () for n in range(400)]
    program = CpuProgram(RankedTaskGraph.of(after, [1e6] * 400), after, [None] * 400, 2, bind)
    with pytest.raises(KeyboardInterrupt):
        run(program, 2)
    assert len(ran) < 100


@pytest.mark.sampled(2)
@needs_compiler
@pytest.mark.parametrize(("sites", "workers", "calls"), [(1, 1, False), (1, 3, False), (3, 2, True)])
def test_a_program_gives_the_bits_of_its_tasks_one_by_one(sites, workers, calls):
    sizes = {"n_layers": 6, "d_model": 96, "heads_q": 6, "heads_kv": 3, "d_head": 16, "d_ff": 160, "vocab": 70}
    text = (MODELS / "llama_decode.ein").read_text()
    bundle = compiled(text, sites, "f32", **sizes, cache=37, batch=3)
    executor = CpuExecutor(bundle, workers, poison=True)
    session = Session(bundle, executor=executor)
    session.load_all(arrays_of(bundle, 5))
    bits = []
    for trace in (False, True, False):
        session.execute(trace=trace)
        bits.append(session.offload("logits").tobytes())
    assert executor._program is not None
    called = sum(executor._program._called)
    assert called < 0.7 * len(executor._tasks)
    assert (called > 0) == calls == executor._program.needs_interpreter
    assert len(set(bits)) == 1
    assert np.isfinite(np.frombuffer(bits[0], "f4")).all()


@needs_compiler
@pytest.mark.skipif(not onednn.is_available(), reason="oneDNN is not installed, or not for this processor")
def test_products_of_onednn_need_no_interpreter(monkeypatch):
    monkeypatch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 0)
    bundle = compiled(PRODUCTS, 1, "f32")
    executor = CpuExecutor(bundle, 2, poison=True)
    session = Session(bundle, executor=executor)
    for seed in (4, 5):
        arrays = arrays_of(bundle, seed)
        session.load_all(arrays)
        session.execute()
        found = session.offload("y").tobytes()
        session.execute(trace=True)
        assert session.offload("y").tobytes() == found
        assert executor._program is not None
        assert executor._program.calls_onednn
        assert not executor._program.needs_interpreter


@needs_compiler
def test_an_interrupt_while_calls_are_looked_for_stays_one():
    def bind(_, task):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_machine_calls(bind, 0, 7)


@needs_compiler
def test_a_task_that_cannot_be_bound_is_named():
    def bind(_, task):
        if task == 7:
            raise MemoryError
        return lambda: None

    assert find_machine_calls(bind, 0, 6) is None
    with pytest.raises(thread_pool.TaskError) as caught:
        find_machine_calls(bind, 0, 7)
    assert caught.value.task == 7
    assert isinstance(caught.value.cause, MemoryError)
