"""The CPU executor on handmade plans: equal to whole arrays in any order, with poison; failures; memory."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from einc_runtime.errors import KernelFault, MissingFault, PlanFault
from einc_runtime.execution.cpu import host, task_kernels
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.rewrites import MAX_COALESCED_BYTES, KernelTime, RewriteOptions, rewrite
from einc_runtime.execution.session import Session
from einc_runtime.kernels.base import Kernel
from einc_runtime.plan.schema import FenceTask, Region
from tests.support.compiled_plans import compiled
from tests.support.handmade_plans import box, random_plan, reference, two_site_plan
from tests.support.plan_arrays import arrays_of

TOLERANCE = {"f32": 1e-5, "f64": 1e-12, "f16": 2e-2, "bf16": 1e-1, "i32": 0, "i64": 0}


def inputs_of(bundle, seed=0):
    return {name: a - 4 if a.dtype.kind == "i" else a for name, a in arrays_of(bundle, seed).items()}


def check(bundle, session, arrays):
    wide = {n: a.astype(np.int64 if a.dtype.kind == "i" else np.float64) for n, a in arrays.items()}
    expected = reference(bundle, wide)
    for tensor in session.outputs:
        found = session.offload(tensor.name)
        error = np.abs(found.astype("f8") - expected[tensor.name]).max()
        assert error <= TOLERANCE[tensor.dtype] * max(1, np.abs(expected[tensor.name]).max()), tensor.name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(12))
def test_plans_compute_what_whole_arrays_do(seed, dtype):
    bundle = random_plan(seed, sites=1 + seed % 8, operations=2 + seed % 4, reuse=seed % 2 == 1, dtype=dtype)
    session = Session(bundle, executor=CpuExecutor(bundle, 1 + seed % 3, poison=True, rewrites=seed % 4 != 3))
    arrays = inputs_of(bundle, seed)
    session.load_all(arrays)
    session.execute()
    check(bundle, session, arrays)
    changed = inputs_of(bundle, seed + 1000)  # again, with other inputs
    session.load_all(changed)
    session.execute()
    check(bundle, session, changed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_ready_tasks_gives_the_same_bits(seed):
    bundle = random_plan(seed, sites=6, operations=5, reuse=True)
    arrays, results = inputs_of(bundle), []
    rng = random.Random(seed)
    for workers, copies in ((1, True), (1, False), (2, False), (4, False)):
        ranks = [rng.random() for _ in bundle.tasks] if workers > 1 else None
        session = Session(bundle, executor=CpuExecutor(bundle, workers, rewrites=not copies, poison=True, ranks=ranks))
        session.load_all(arrays)
        for _ in range(3):
            session.execute()
            results.append([session.offload(tensor.name).tobytes() for tensor in session.outputs])
    assert all(result == results[0] for result in results)


LAYERS = """
model layers
dim tokens = 96
dim wide = 512
dim out = 512
input x : f32[tokens, wide]
block layer(x) {
    weight w : f32[out, wide]
    y[tokens, out] = x[tokens, wide] * w[out, wide]
    return y
}
repeat 3 as i { x = layer(x) }
output y = x
"""


def test_what_a_kernel_takes_is_found_out_once_for_all_layers(monkeypatch):
    bundle, prepared = compiled(LAYERS, 1), []
    prepare = task_kernels.TaskKernels.prepare
    monkeypatch.setattr(
        task_kernels.TaskKernels, "prepare", lambda self, item: prepared.append(item) or prepare(self, item)
    )
    executor = CpuExecutor(bundle, 2)
    assert len(executor._tasks) == 6  # each product in two parts
    assert len(prepared) == 6 + 1
    kernels = task_kernels.TaskKernels(bundle, executor._memory)

    def estimate(item):
        kernel = prepare(kernels, item)
        return KernelTime(kernel.nanoseconds, kernel.is_stream)

    options = RewriteOptions(workers=2, max_move_bytes=MAX_COALESCED_BYTES, estimate=estimate)
    assert rewrite(bundle, options) == executor._tasks


def test_poison_reaches_what_no_task_writes():
    """The check above can fail: without the tasks that fill them, results are NaNs."""
    bundle = two_site_plan()
    idle = tuple(FenceTask(t.site, t.serves, t.after) if i == 2 else t for i, t in enumerate(bundle.tasks))
    session = Session(bundle, executor=CpuExecutor(msgspec.structs.replace(bundle, tasks=idle), poison=True))
    session.load_all(inputs_of(bundle))
    session.execute()
    assert np.isnan(session.offload("y")).any()


def test_a_failing_kernel_is_named_and_the_session_lives_on(monkeypatch):
    bundle = two_site_plan()
    broken = [True]
    original = task_kernels.prepare

    def prepare(invocation):
        kernel = original(invocation)

        def bind(memory):
            run = kernel.bind(memory)

            def fail_or_run():
                if broken[0] and invocation.name == "contract":
                    raise FloatingPointError("a bit flipped")
                run()

            return fail_or_run

        return Kernel(bind, kernel.scratch, kernel.nanoseconds)

    monkeypatch.setattr(task_kernels, "prepare", prepare)
    session = Session(bundle)
    arrays = inputs_of(bundle)
    session.load_all(arrays)
    threads = threading.active_count()
    with pytest.raises(KernelFault, match=r"contract at site \d failed: FloatingPointError: a bit flipped") as caught:
        session.execute()
    assert "kernel for a" in caught.value.where
    assert isinstance(caught.value.__cause__, FloatingPointError)
    assert threading.active_count() == threads
    broken[0] = False
    session.execute()
    check(bundle, session, arrays)


def test_blas_threads_come_back_after_a_run():
    bundle = two_site_plan()
    session = Session(bundle)
    session.load_all(inputs_of(bundle))
    before = [library["num_threads"] for library in host._blas().info()]
    with host.single_threaded_blas():
        session.execute()  # as if another session ran meanwhile
        assert {library["num_threads"] for library in host._blas().info() if library["user_api"] == "blas"} == {1}
    assert [library["num_threads"] for library in host._blas().info()] == before


def test_blas_is_limited_by_whichever_thread_computes():
    def count():
        return [library["num_threads"] for library in host._blas().info() if library["user_api"] == "blas"]

    def enter():
        with host.single_threaded_blas():
            found.append(count())
        found.append(count())

    before, found = count(), []
    enter()
    for _ in range(2):
        other = threading.Thread(target=enter)
        other.start()
        other.join()
    enter()
    assert found == [[1] * len(before), before] * 4


def test_too_little_memory_is_an_error_before_anything_is_taken(monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 10_000)
    huge = msgspec.structs.replace(two_site_plan(), memory=(1 << 40, 1 << 20))
    with pytest.raises(MissingFault, match=r"1,024.00 GiB of memory, and 0.00 GiB are available") as caught:
        Session(huge, verify=False)
    assert caught.value.exit_code == 69
    monkeypatch.setattr(host, "available_memory", lambda: None)
    with pytest.raises(MissingFault, match="are not available"):
        Session(msgspec.structs.replace(two_site_plan(), memory=(1 << 49, 1 << 20)), verify=False)


def test_memory_and_cores_of_this_machine_are_known():
    assert 1 <= host.count_cores() <= 4096
    assert host.available_memory() is None or host.available_memory() > 1 << 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what a process held")
def test_a_process_does_not_count_what_the_one_that_started_it_held():
    size = 300 << 20
    taken = np.ones(size, np.uint8)
    program = "from einc_runtime.execution.cpu.host import peak_memory; print(peak_memory())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 1 << 20 < int(found) < size <= host.peak_memory()
    del taken


def test_what_cannot_be_proved_is_refused_at_load():
    bundle = two_site_plan()
    operations = [msgspec.structs.replace(op, kernel="fft") for op in bundle.operations]
    with pytest.raises(PlanFault, match="fft, where equation"):
        Session(msgspec.structs.replace(bundle, operations=tuple(operations)), verify=False)
    executor = CpuExecutor(bundle)
    with pytest.raises(PlanFault, match="outside its buffer"):
        executor.fetch(Region(0, box((0, 100), (0, 1))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_many_random_plans(seed):
    bundle = random_plan(seed + 100, sites=1 + seed % 8, operations=1 + seed % 7, reuse=seed % 2 == 0)
    rng = random.Random(seed)
    executor = CpuExecutor(bundle, 1 + seed % 4, poison=True, ranks=[rng.random() for _ in bundle.tasks])
    session = Session(bundle, executor=executor)
    arrays = inputs_of(bundle, seed)
    session.load_all(arrays)
    session.execute()
    check(bundle, session, arrays)
