"""What is read ahead makes a product faster by what memory could send while its site waited, and no more."""

from __future__ import annotations

import pytest

from einc.machines.load import load_machine
from einc.predict.costs import CACHE_SPEED, EarlyBytes, TaskCost, TaskKind, compute_occupied_ms, count_cached
from einc.predict.timeline import time_tasks
from einc_runtime.plan.early_reads import CACHE_PART
from einc_runtime.plan.work import ProductWork

MACHINE = load_machine("dgx-h100")
SITE = MACHINE.sites[0]
LAUNCH_MS = MACHINE.kernel_latency_us * 1e-3
CACHE = CACHE_PART * 50e6  # an H100 has 50 MB


def product(size, after=(), early=None):
    work = ProductWork(1, 8, size // 16384, 8192)
    return TaskCost(TaskKind.KERNEL, 0, after, size, 0, "bf16", task="contract", work=work, early=early)


def test_as_much_is_cached_as_memory_sends_and_the_cache_holds():
    early = EarlyBytes(60_000_000, 0, 0)
    rate = SITE.sustained_gbs * 1e6
    assert count_cached(early, LAUNCH_MS, SITE, 2.0) == 0
    assert count_cached(early, LAUNCH_MS + 0.003, SITE, 2.0) == pytest.approx(0.003 * rate, abs=1)
    assert count_cached(early._replace(between=10**6), LAUNCH_MS + 0.003, SITE, 2.0) == pytest.approx(
        0.003 * rate - 10**6, abs=1
    )
    assert count_cached(early, 1.0, SITE, 2.0) == pytest.approx(CACHE, abs=1)
    assert count_cached(early._replace(size=5000), 1.0, SITE, 2.0) == 5000


@pytest.mark.parametrize("name", ["mi300x-8", "dgx-v100-paper"])
def test_other_gpus_read_nothing_ahead(name):
    machine = load_machine(name)
    assert count_cached(EarlyBytes(10**8, 0, 0), 1.0, machine.sites[0], machine.kernel_latency_us) == 0


def test_what_is_cached_takes_the_rate_of_the_cache_at_least():
    size = 21_000_000
    uncached, most = (compute_occupied_ms(product(size), SITE, 2.0, cached) for cached in (0, 20_000_000))
    assert LAUNCH_MS + size / (CACHE_SPEED * SITE.sustained_gbs * 1e6) <= most < uncached
    large = 117_000_000  # memory decides, which has fewer bytes to send
    times = [compute_occupied_ms(product(large), SITE, 2.0, cached) for cached in (0, 20_000_000)]
    assert times[0] - times[1] == pytest.approx(20_000_000 / (SITE.sustained_gbs * 1e6), rel=0.15)


def test_a_plan_waits_for_a_transfer_and_reads_meanwhile():
    early = EarlyBytes(100_000_000, 0, 0)
    move = TaskCost(TaskKind.TRANSFER, 1, (), 1_000_000, target=0, task="transfer")
    first = product(16_384_000)
    plans = [(first, move._replace(after=(0,)), product(117_000_000, (0, 1), read)) for read in (None, early)]
    plain, ahead = (time_tasks(plan, MACHINE) for plan in plans)
    waited = ahead.starts[2] - ahead.ends[0]
    assert waited == pytest.approx(MACHINE.transfer_latency_us * 1e-3 + 1_000_000 / 356.4e6)
    cached = count_cached(early, waited, SITE, 2.0)
    assert cached > 10_000_000
    saved = plain.predicted_ms - ahead.predicted_ms
    assert saved == pytest.approx(
        compute_occupied_ms(plans[1][2], SITE, 2.0) - compute_occupied_ms(plans[1][2], SITE, 2.0, cached)
    )
