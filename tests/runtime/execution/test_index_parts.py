"""Index programs in parts for several workers: each part reads its own halo, and no part runs along a running sum."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.rewrites import kernel_splitting
from einc_runtime.plan.schema import KernelTask
from tests.support.compiled_plans import close, compiled, execute

MODEL = """
model convolutions
dim n = 1
dim c = 4
dim y = 23
dim x = 9
input a : f32[n, c, y, x]
weight k : f32[c, c, 3, 3]
first[n, c, h = 23, w = 9] = a[n, j, h + r - 1, w + s - 1, outside = 0] * k[c, j, r, s]
second[n, c, h = 23, w = 9] = first[n, j, h + 2 * r - 2, w + s - 1, outside = 0] * k[c, j, r, s]
output pooled[n, c, p = 11, q = 4] = max[r = 3, s = 2](second[n, c, 2 * p + r, 2 * q + s])
output summed[n, c, i, w] = sum[j <= i](second[n, c, j, w])
"""


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_splitting, "MIN_PART_NS", 1e-3)


def convolve(a: np.ndarray, k: np.ndarray, dilation: int) -> np.ndarray:
    padded = np.pad(a, ((0, 0), (0, 0), (dilation, dilation), (1, 1)))
    high, wide = a.shape[2:]
    return sum(
        np.einsum("njyx,cj->ncyx", padded[:, :, dilation * r : dilation * r + high, s : s + wide], k[:, :, r, s])
        for r in range(3)
        for s in range(3)
    )


@pytest.mark.parametrize("sites", [1, 3])
@pytest.mark.parametrize("workers", [2, 5])
def test_parts_compute_the_whole(sites: int, workers: int) -> None:
    bundle = compiled(MODEL, sites, "f32")
    given, (pooled, summed) = execute(bundle, sites, workers)
    second = convolve(convolve(given["a"], given["k"], 1), given["k"], 2)
    windows = [second[:, :, r : r + 21 : 2, s : s + 7 : 2] for r in range(3) for s in range(2)]
    close(pooled, np.max(windows, 0), "f32")
    close(summed, np.cumsum(second, 2), "f32")


def test_no_part_is_cut_along_a_running_sum() -> None:
    bundle = compiled(MODEL, 1, "f32")
    tasks = [item.task for item in CpuExecutor(bundle, 5)._tasks if isinstance(item.task, KernelTask)]
    names = [bundle.operations[task.operation].kernel_attributes["aggregation"] for task in tasks]
    assert names.count("sum") == 5 * 3
    rows = [task.reads[0].block for task in tasks if task.reads[0].block.shape[2] < 23]
    assert rows, "some parts are cut along windows, and read their rows and the halo alone"
    running = [task for task in tasks if "#" in str(bundle.operations[task.operation].kernel_attributes["reads"])]
    assert all(task.writes[0].block.shape[2] == 23 for task in running)
