"""More workers than sites: split kernels compute what whole ones do, in as many parts as are needed."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.rewrites import kernel_splitting
from einc_runtime.execution.rewrites.kernel_splitting import KernelTime, count_parts, split_kernel
from einc_runtime.plan.schema import KernelTask
from tests.support.compiled_plans import EVERYTHING, MODELS, close, compiled, everything, execute
from tests.support.handmade_plans import box


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(kernel_splitting, "MIN_PART_NS", 1e-3)
    monkeypatch.setattr(kernel_splitting, "MIN_STREAM_NS", 1e-3)


@pytest.mark.parametrize(
    ("kernels", "workers", "parts"),
    [(1, 1, 1), (1, 2, 2), (8, 2, 1), (3, 2, 2), (7, 2, 2), (5, 1, 1), (8, 16, 2), (1, 16, 16), (5, 16, 3), (72, 64, 4),
     (1, 1000, 64)],
)  # fmt: skip
def test_as_many_parts_as_keep_the_workers_busy(kernels, workers, parts):
    assert count_parts(kernels, workers, KernelTime(1e15)) == parts


def test_a_stream_has_parts_for_whole_rounds_of_all_workers(monkeypatch):
    monkeypatch.setattr(kernel_splitting, "MIN_STREAM_NS", 10.0)
    monkeypatch.setattr(kernel_splitting, "MIN_PART_NS", 8.0)
    counts = {time: count_parts(1, 2, KernelTime(time, is_stream=True)) for time in (7, 9, 19, 29, 49, 81, 1e9)}
    assert counts == {7: 0, 9: 1, 19: 2, 29: 2, 49: 4, 81: 8, 1e9: 8}  # two workers have a part each from 16 on
    assert count_parts(1, 1, KernelTime(1e9, is_stream=True)) == 1
    assert count_parts(4, 2, KernelTime(49, is_stream=True)) == 2
    assert count_parts(64, 2, KernelTime(49, is_stream=True)) == 1


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("sites", [1, 3])
def test_every_kernel_in_one_model(sites, workers):
    bundle = compiled(EVERYTHING, sites, "f32")
    a, found = execute(bundle, sites, workers)
    for output, expected in zip(found, everything(a), strict=True):
        close(output, expected, "f32")


@pytest.mark.parametrize("sites", [1, 2])
def test_parts_of_a_block_agree_with_the_plain_tasks_and_with_themselves(sites):
    sizes = {"seq_lens": [9, 14], "d_model": 24, "heads_q": 6, "heads_kv": 2, "d_head": 4, "d_ff": 40}
    bundle = compiled((MODELS / "llama_block.ein").read_text(), sites, "f32", **sizes)
    executor = CpuExecutor(bundle, 4)
    kernels = [task for task in executor._tasks if isinstance(task.task, KernelTask)]
    assert len(kernels) >= 3.5 * len(bundle.operations)
    _, (first,) = execute(bundle, 1, 4)
    for seed in range(2, 5):
        assert np.array_equal(execute(bundle, 1, 4)[1][0], first), seed
    plain = CpuExecutor(bundle, 4, rewrites=False)
    assert len(plain._tasks) <= len(bundle.tasks)
    _, (whole,) = execute(bundle, 1, 1)
    close(first, whole, "f32")


def test_parts_are_of_the_task_and_cover_it():
    bundle = compiled("model m\ndim n = 10\ninput x : f32[n, n]\ny = exp(x)\noutput y", 1)
    task = next(task for task in bundle.tasks if isinstance(task, KernelTask))
    parts = split_kernel(bundle.operations[0], task, 4)
    assert [part.writes[0].block for part in parts] == [
        box(rows, (0, 10)) for rows in ((0, 2), (2, 5), (5, 7), (7, 10))
    ]
    assert [part.reads[0].block for part in parts] == [part.writes[0].block for part in parts]
    assert {part.writes[0].buffer for part in parts} == {task.writes[0].buffer}
    assert split_kernel(bundle.operations[0], task, 1) == (task,)
    assert len(split_kernel(bundle.operations[0], task, 64)) == 10


def test_small_kernels_stay_whole(monkeypatch):
    monkeypatch.setattr(kernel_splitting, "MIN_PART_NS", 1e9)
    bundle = compiled(EVERYTHING, 1, "f32")
    executor = CpuExecutor(bundle, 4)
    assert len(executor._tasks) == sum(isinstance(task, KernelTask) for task in bundle.tasks)


def test_products_are_cut_by_rows_while_parts_have_many():
    """So that all parts multiply by the same matrix; few rows are not divided."""
    text = """
        model product
        dim t = 512
        dim d = 64
        dim n = 4096
        input x : f32[t, d]
        weight w : f32[n, d]
        y[t, n] = x[t, d] * w[n, d]
        output y
    """
    bundle = compiled(text, 1, "f32")
    (task,) = (task for task in bundle.tasks if isinstance(task, KernelTask))
    for parts, shape in ((2, (256, 4096)), (8, (64, 4096)), (16, (512, 256))):
        made = split_kernel(bundle.operations[0], task, parts)
        assert [part.writes[0].block.shape for part in made] == [shape] * parts
