"""The range of a predicted time: errors of one kind add up, and those of several as squares."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from einc.machines.load import load_gpu, load_machine
from einc.machines.model import Machine
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.ranges import MOVING_ERROR, find_difference_error, find_moving_range, find_range, name_rates
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
    time_range = find_range(chain, times, MACHINE)
    assert time_range is not None
    low, high = time_range
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


def test_an_exchange_is_known_as_well_as_what_moves() -> None:
    assert find_moving_range(2.0, MACHINE) == pytest.approx((2.0 * (1 - MOVING_ERROR), 2.0 * (1 + MOVING_ERROR)))
    assert find_moving_range(2.0, load_machine("dgx-v100")) is None
    assert find_moving_range(None, MACHINE) is None


@pytest.mark.parametrize(
    ("machine", "rates"),
    [
        (MACHINE, "fitted"),
        (load_machine("dgx-v100"), "peak"),
        (load_machine("host", 4), "peak"),
        (replace(load_machine("host", 4), measured="some processor"), "measured"),
        (MACHINE.ideal(), "peak"),
        (replace(MACHINE, sites=(MACHINE.sites[0], replace(MACHINE.sites[1], gpu=None))), "peak"),
    ],
)
def test_rates_are_named_for_all_sites_together(machine: Machine, rates: str) -> None:
    assert name_rates(machine) == rates


def test_two_plans_differ_no_more_than_in_what_is_not_alike() -> None:
    """A kernel of another shape errs apart from the first; a shape that both have cancels; what moves errs alike."""
    gpu = MACHINE.sites[0].gpu
    assert gpu is not None
    error = gpu.products[0].error
    smaller = PRODUCT._replace(work=ProductWork(1, 512, 4096, 2048))
    changed = find_difference_error((PRODUCT, smaller), (3.0, 4.0), 1.5, MACHINE)
    assert changed == pytest.approx(math.sqrt((3 * error) ** 2 + (4 * error) ** 2 + (0.5 * MOVING_ERROR) ** 2))
    assert find_difference_error((PRODUCT, PRODUCT), (3.0, 3.0), -1.5, MACHINE) == pytest.approx(1.5 * MOVING_ERROR)
    assert find_difference_error((PRODUCT, smaller), (3.0, 4.0), 1.5, load_machine("dgx-v100", 2)) is None


def test_rates_that_data_sheets_say_were_not_measured() -> None:
    assert name_rates(MACHINE) == "fitted"
    sites = tuple(replace(site, gpu=load_gpu("h100-nvl")) for site in MACHINE.sites)
    assert name_rates(replace(MACHINE, sites=sites)) == "peak"
