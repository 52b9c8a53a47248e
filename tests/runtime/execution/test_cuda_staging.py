"""Transfers through the host's memory go in pieces over two buffers, and copies to the host wait for what runs."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from einc_runtime.execution.cuda import streams
from einc_runtime.execution.cuda.streams import StepKind, split_box
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_plans import agree, chain, cpu_results, on_fake
from tests.support.plan_arrays import arrays_of, outputs_of


@pytest.mark.parametrize("seed", range(40))
def test_pieces_tile_an_array_in_the_order_of_its_memory(seed):
    rng = random.Random(seed)
    shape = [rng.randint(1, 6) for _ in range(rng.randint(0, 4))]
    order, most = rng.sample(range(len(shape)), len(shape)), rng.choice([1, 2, 5, 12, 1000])
    numbers = np.arange(math.prod(shape)).reshape([shape[dim] for dim in order])
    numbers = numbers.transpose(np.argsort(order)) if shape else numbers  # each element's place in memory
    seen: list[int] = []
    for piece in split_box(shape, order, most):
        part = numbers[tuple(slice(*ends) for ends in piece)]
        assert 0 < part.size <= most
        assert part.max() - part.min() == part.size - 1  # one run
        seen += sorted(part.ravel().tolist())
    assert seen == list(range(numbers.size))


@pytest.mark.parametrize("order", [[], [1, 0]])
def test_pieces_are_as_large_as_may_be(order):
    sizes = [math.prod(end - start for start, end in piece) for piece in split_box((70, 33), order, 100)]
    assert sum(sizes) == 70 * 33
    assert len(sizes) == (math.ceil(70 / 3) if not order else math.ceil(33 / 1))


def test_a_staged_transfer_overlaps_its_pieces(monkeypatch):
    monkeypatch.setattr(streams, "MAX_STAGED_BYTES", 1 << 8)
    bundle, driver = chain(2), FakeDriver(2, unreachable={(0, 1), (1, 0)})
    session, executor, _ = on_fake(bundle, None, driver)
    plan = executor._plan
    steps = plan.schedule.steps
    assert max(plan.schedule.staging_bytes) <= 1 << 8
    by_task: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        if step.kind is StepKind.STAGE_OUT:
            by_task.setdefault(step.task, []).append(number)
    long = max(by_task.values(), key=len)
    assert len(long) > 4
    for one, other in pairwise(long):
        assert steps[one].staging != steps[other].staging  # the next one goes out while this one goes in
    arrays = arrays_of(bundle)
    session.load_all(arrays)
    for trace in (False, True, False):
        session.execute(trace=trace)
        agree(outputs_of(session), cpu_results(bundle, arrays))
    executor.close()
    assert not driver.leaks()


@pytest.mark.parametrize("seed", range(4))
def test_loading_and_fetching_wait_for_what_was_enqueued(seed):
    bundle, driver = chain(2), FakeDriver(2, seed=seed)
    session, executor, _ = on_fake(bundle, None, driver)
    first, second = arrays_of(bundle, 1), arrays_of(bundle, 2)
    session.load_all(first)
    session.execute()
    session.load_all(second)
    executor.enqueue()
    agree(outputs_of(session), cpu_results(bundle, second))  # not what the execution before had computed
    executor.enqueue()
    session.load_all(first)  # not while the second arrays are still read
    executor.wait()
    agree(outputs_of(session), cpu_results(bundle, second))
    executor.close()
