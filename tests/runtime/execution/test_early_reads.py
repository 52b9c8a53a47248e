"""Weights that are read into the cache while a GPU waits for others: which ones, when, and that nothing waits for
them."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.execution.cuda.events import schedule_events
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.preparation import rewrite_for_devices
from einc_runtime.execution.cuda.streams import StepKind, schedule_steps
from einc_runtime.execution.ranks.part import take_part
from einc_runtime.execution.session import Session
from einc_runtime.kernels.gpu import GpuArray, GpuTarget
from einc_runtime.kernels.triton.early_read import PROGRAM_BYTES, build_early_read
from einc_runtime.plan.early_reads import find_early_reads
from tests.support.cuda_fake import FakeDriver
from tests.support.launch_cases import PartByPart, Sequences, compile_cut_step, compile_step, run_twice, step_arrays


@pytest.fixture(scope="module")
def cut_step():
    return compile_cut_step(3)


def name_reads(bundle, reads):
    """The products, what comes before the wait, what comes between, and the weights; of site 0."""
    names = [
        (*(bundle.tasks[number].serves for number in (read.after, *read.between, read.task)),
         *(bundle.tensors[bundle.buffers[region.buffer].tensor].name for region in read.regions))
        for read in reads
        if bundle.tasks[read.task].site == 0
    ]  # fmt: skip
    return sorted(names)


def test_products_after_an_exchange_read_ahead(cut_step):
    names = name_reads(cut_step, find_early_reads(cut_step, cut_step.tasks))
    assert ("layer.0.o", "layer.0.r", "layer.0.gate", "layer.0.w_gate", "layer.0.w_up") in names
    assert any(row[0] == "layer.0.down" and row[-1] == "head" for row in names)
    assert not find_early_reads(compile_step(1, "f32"), compile_step(1, "f32").tasks)


def test_the_same_on_gpus_that_read_each_others_memory_and_on_ranks(cut_step):
    expected = name_reads(cut_step, find_early_reads(cut_step, cut_step.tasks))
    tasks = rewrite_for_devices(cut_step, range(3))
    assert name_reads(cut_step, find_early_reads(cut_step, tasks)) == expected
    part = take_part(cut_step, (0, 1, 2), 0)
    tasks = rewrite_for_devices(part.bundle, range(1), is_part=True)
    assert name_reads(cut_step, find_early_reads(part.bundle, tasks, part.messages)) == expected


def test_nothing_waits_for_what_is_read_ahead(cut_step):
    tasks = rewrite_for_devices(cut_step, range(3))
    schedule = schedule_steps(cut_step, tasks, range(3), ())
    early = [number for number, step in enumerate(schedule.steps) if step.kind is StepKind.EARLY]
    assert len(early) == len(find_early_reads(cut_step, tasks)) > 3
    assert not any(number in step.after for step in schedule.steps for number in early)
    for number in early:
        step = schedule.steps[number]
        (before,) = step.after
        product = next(n for n, s in enumerate(schedule.steps) if s.task == step.task and s.kind is StepKind.TASK)
        assert before < number < product
    assert schedule_events(schedule.steps, schedule.streams).last_waits  # the end of the capture does
    shared = schedule_steps(cut_step, tasks, (0, 0, 1), ())
    assert {shared.streams[s.stream].device for s in shared.steps if s.kind is StepKind.EARLY} == {1}


def test_results_are_the_same(cut_step):
    arrays = step_arrays(cut_step, 5)
    results = []
    for devices in (range(3), (0, 0, 0)):
        driver = FakeDriver(3, seed=2)
        kernels = PartByPart(driver)
        with Session(
            cut_step, executor=CudaExecutor(cut_step, list(devices), driver=driver, kernels=kernels)
        ) as session:
            results.append(run_twice(session, arrays))
        assert bool(kernels.early_bytes) == (devices != (0, 0, 0))
        assert not driver.leaks()
    for name, values in results[0].items():
        np.testing.assert_array_equal(values, results[1][name])


def test_the_first_bytes_of_every_view_as_many_as_fit():
    views = [GpuArray(4096, (300, 512), (1024, 2), "f16", 0), GpuArray(1 << 30, (700, 512), (1024, 2), "f16", 0)]
    small = GpuArray(1 << 40, (8,), (2,), "f16", 0)
    crossed = GpuArray(1 << 41, (300, 256), (1024, 2), "f16", 0)
    (first, second) = build_early_read([*views, small, crossed], 512 << 10).steps
    size = 300 * 1024 + 700 * 1024 + 16
    assert (first.grid, second.grid) == (300 * 1024 * (512 << 10) // size // PROGRAM_BYTES, 11)
    assert first.source == second.source
    assert (first.arguments, second.arguments) == ((4096,), (1 << 30,))
    every = build_early_read(views, 1 << 30).steps
    assert [launch.grid for launch in every] == [300 * 1024 // PROGRAM_BYTES, 700 * 1024 // PROGRAM_BYTES]
    assert build_early_read(views, 0) is None
    assert build_early_read([small], 1 << 30) is None


def test_gpus_of_amd_and_those_without_a_known_cache_read_nothing_ahead():
    views = [GpuArray(4096, (300, 512), (1024, 2), "f16", 0)]
    for target in (GpuTarget.of("gfx942", 0), GpuTarget(0, "a GPU", (9, 0), 132)):
        assert Sequences().prepare_early_read(views, target) is None
    (launch,) = Sequences().prepare_early_read(views, GpuTarget(0, "a GPU", (9, 0), 132, cache_bytes=50 << 20)).steps
    assert launch.grid == 300 * 1024 // PROGRAM_BYTES
