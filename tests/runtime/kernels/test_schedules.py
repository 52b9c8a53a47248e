"""Schedules of machine code: threads run every task once, after all that it waits for, and tell what fails."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.errors import ValueFault
from einc_runtime.kernels.base import ANY_NUMBER, Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.schedules import WINDOW, CallError, CompiledSchedule, ThreadProgress
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.schema import Block

pytestmark = pytest.mark.skipif(not compiler.is_available(), reason="nothing compiles kernels here")


def bound(invocation):
    kernel = prepare(replace(invocation, repetitions=ANY_NUMBER))
    return kernel.bind(np.empty(kernel.scratch, np.uint8))


def mapped(program, *arrays):
    indices = ", ".join(["i"] * (len(arrays) - 1)) + " -> i"
    return bound(Invocation("map", {"program": program, "indices": indices}, arrays[:-1], arrays[-1:]))


def appended(cache, new, positions):
    blocks = [Block((0, 0, 0), array.shape) for array in (cache, new)]
    attributes = {"cache_lens": [cache.shape[1]], "new_lens": [new.shape[1]], "in_place": True}
    places = Block((0,), (2,))
    return bound(Invocation("append", attributes, [cache, new, positions], [cache], [*blocks, places], blocks[:1]))


def sums(seed, count=260):
    """Tasks that each add two results of earlier ones: what they wait for, their arrays and their calls."""
    rng = random.Random(seed)
    arrays = [np.zeros(37, "f4") for _ in range(count)]
    waits, calls = [()], [[]]
    for task in range(1, count):
        pair = [rng.randrange(max(0, task - 2 * WINDOW), task) for _ in range(2)]
        waits.append(tuple(sorted(set(pair))))
        calls.append([mapped("t0 = add x0 x1; t1 = mul t0 0.5", *(arrays[one] for one in pair), arrays[task])])
    return waits, arrays, calls


def run_thread(schedule, thread, run_called, seen):
    try:
        while progress := schedule.run(thread):
            seen.append(progress)
            if progress is ThreadProgress.CALLING:
                run_called(schedule.called_task(thread))
    except BaseException as error:
        seen.append(error)


def run_threads(schedule, threads, run_called=None):
    schedule.begin()
    seen = []
    others = [threading.Thread(target=run_thread, args=(schedule, n, run_called, seen)) for n in range(1, threads)]
    for other in others:
        other.start()
    run_thread(schedule, 0, run_called, seen)
    for other in others:
        other.join()
    return seen


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_every_task_runs_once_after_all_that_it_waits_for(threads, share):
    waits, arrays, calls = sums(threads)
    rng = random.Random(7)
    called = [task == 0 or rng.random() < share for task in range(len(waits))]
    schedule = CompiledSchedule(waits, called, [task % 50 == 49 for task in range(len(waits))], threads)
    for thread in range(threads):
        schedule.set_calls(thread, [[] if own else call for own, call in zip(called, calls, strict=True)])

    def run_called(task):
        counts[task] += 1
        for call in calls[task]:
            call()
        if not task:
            arrays[0][:] = start

    for start in (1.0, 3.0):
        counts = np.zeros(len(waits), int)
        for array in arrays:
            array.fill(np.nan)
        seen = run_threads(schedule, threads, run_called)
        assert all((array == start).all() for array in arrays)
        assert (counts == called).all()
        pauses = sum(not own for own in called[49::50])  # of the first thread, which runs all tasks where it is alone
        assert seen.count(ThreadProgress.CALLING) == sum(called)
        assert seen.count(ThreadProgress.PAUSED) in ([pauses] if threads == 1 else range(pauses + 1))


def test_a_thread_waits_for_a_task_of_another_one_and_takes_what_is_ready_behind_it():
    arrays = [np.full(9, 2.0, "f4") for _ in range(4)]
    calls = [[], [mapped("t0 = neg x0", *arrays[:2])], [mapped("t0 = neg x0", *arrays[2:])]]
    schedule = CompiledSchedule([(), (0,), ()], [True, False, False], [False] * 3, 2, spins=5, naps=0)
    for thread in range(2):
        schedule.set_calls(thread, calls)
    schedule.begin()
    assert schedule.run(0) is ThreadProgress.CALLING
    assert schedule.called_task(0) == 0
    assert [schedule.run(1) for _ in range(3)] == [ThreadProgress.WAITING] * 3
    assert (arrays[1][0], arrays[3][0]) == (2, -2)
    assert schedule.run(0) is ThreadProgress.ENDED
    assert arrays[1][0] == -2
    assert schedule.run(1) is ThreadProgress.ENDED


def test_a_run_that_is_left_can_be_begun_again():
    x, y = np.ones(9, "f4"), np.zeros(9, "f4")
    schedule = CompiledSchedule([(), (0,)], [True, False], [False] * 2, 1)
    schedule.set_calls(0, [[], [mapped("t0 = neg x0", x, y)]])
    for _ in range(3):
        schedule.begin()
        assert schedule.run(0) is ThreadProgress.CALLING
        assert not y.any()


@pytest.mark.parametrize("thread", [0, 1])
def test_only_the_first_thread_returns_after_long_tasks(thread):
    x, y = np.ones(9, "f4"), np.zeros(9, "f4")
    schedule = CompiledSchedule([()] * 3, [False] * 3, [True] * 3, 2)
    schedule.set_calls(thread, [[mapped("t0 = neg x0", x, y)]] * 3)
    schedule.begin()
    seen = [schedule.run(thread) for _ in range(1 if thread else 4)]
    assert seen == [*[ThreadProgress.PAUSED] * (0 if thread else 3), ThreadProgress.ENDED]


def test_a_schedule_that_is_stopped_starts_no_task_and_ends_threads_that_wait():
    x, y = np.ones(9, "f4"), np.zeros(9, "f4")
    schedule = CompiledSchedule([(), (0,)], [True, False], [False] * 2, 2, naps=1 << 30)
    for thread in range(2):
        schedule.set_calls(thread, [[], [mapped("t0 = neg x0", x, y)]])
    schedule.begin()
    assert schedule.run(0) is ThreadProgress.CALLING
    seen = []
    other = threading.Thread(target=lambda: seen.append(schedule.run(1)))
    other.start()
    schedule.stop()
    other.join(10)
    assert seen == [ThreadProgress.ENDED]
    assert schedule.run(0) is ThreadProgress.ENDED
    assert not y.any()


def test_a_call_that_fails_is_blamed_and_nothing_that_waits_for_it_runs():
    cache, new, positions = np.zeros((3, 5, 4), "f4"), np.ones((3, 2, 4), "f4"), np.array([1, 4])
    x, y, z = np.ones(9, "f4"), np.zeros(9, "f4"), np.zeros(9, "f4")
    calls = [[mapped("t0 = neg x0", x, y)], [mapped("t0 = abs x0", x, y), appended(cache, new, positions)]]
    calls.append([mapped("t0 = neg x0", x, z)])
    schedule = CompiledSchedule([(), (0,), (1,)], [False] * 3, [False] * 3, 2)
    for thread in range(2):
        schedule.set_calls(thread, calls)
    for wrong in (5, -1, 1 << 40, -(1 << 62)):
        positions[:], z[:], cache[:] = (0, wrong), 0, 0
        schedule.begin()
        with pytest.raises(CallError) as caught:
            schedule.run(1)
        assert caught.value.task == 1
        assert isinstance(caught.value.cause, ValueFault)
        assert f"a position is {wrong}; positions in its sequence of the cache are 0 to 4" in str(caught.value.cause)
        assert (y.min(), z.any(), cache.any()) == (1, False, False)
    positions[:] = (4, 4)
    assert run_threads(schedule, 2) == []
    assert z.max() == -1
    assert cache[:, 4].all()
    assert not cache[:, :4].any()
