"""The range of a predicted time: errors of one kind add up, and those of several as squares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.machines.load import load_machine
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.ranges import MOVING_ERROR, find_range
from einc.predict.timeline import time_tasks
from einc_runtime.plan.work import AttentionWork, ProductWork

PRODUCT = TaskCost(TaskKind.KERNEL, 0, (), 10**7, 10**10, "bf16", work=ProductWork(1, 1024, 2048, 2048))
ATTENTION = TaskCost(
    TaskKind.KERNEL, 0, (), 10**7, 10**10, "bf16", work=AttentionWork(16, 4, 2, 2048, 2048, 1 << 20, 128, 128)
)
MOVE = TaskCost(TaskKind.TRANSFER, 0, (), 10**8, target=1)
MACHINE = load_machine("dgx-h100", 2)


def deviate(*costs: TaskCost) -> tuple[float, list[float]]:
    """The half of the range of these tasks, one after the other, and their lengths."""
    chain = [cost._replace(after=(n - 1,) if n else ()) for n, cost in enumerate(costs)]
    times = time_tasks(chain, MACHINE)
    found = find_range(chain, times, MACHINE)
    assert found is not None
    low, high = found
    assert high - times.predicted_ms == pytest.approx(times.predicted_ms - low)
    return high - times.predicted_ms, [end - start for start, end in zip(times.starts, times.ends, strict=True)]


def test_errors_of_one_kind_add_up() -> None:
    gpu = MACHINE.sites[0].gpu
    assert gpu is not None
    error, (first, second, third) = deviate(PRODUCT, PRODUCT, PRODUCT)
    assert error == pytest.approx(gpu.products[0].error * (first + second + third))


def test_errors_of_several_kinds_add_up_as_squares() -> None:
    gpu = MACHINE.sites[0].gpu
    assert gpu is not None
    error, (product, attention, move) = deviate(PRODUCT, ATTENTION, MOVE)
    parts = (gpu.products[0].error * product, gpu.prefill[0].error * attention, MOVING_ERROR * move)
    assert error == pytest.approx(sum(part**2 for part in parts) ** 0.5)


def test_what_was_not_measured_has_no_range() -> None:
    sites = (MACHINE.sites[0], replace(MACHINE.sites[1], gpu=None))
    machine = replace(MACHINE, sites=sites)
    assert find_range([PRODUCT], time_tasks([PRODUCT], machine), machine) is None
