"""The pool of threads: order, failures, interrupts, tiny and large tasks, any number of workers."""

from __future__ import annotations

import _thread
import itertools
import os
import queue
import random
import threading
import time
import weakref

import pytest

from einc_runtime.execution.cpu import scheduler, thread_pool
from einc_runtime.execution.cpu.host import count_cores, find_core
from einc_runtime.execution.cpu.scheduler import THREADS, SystemThreads
from einc_runtime.execution.cpu.thread_pool import RankedTaskGraph


def random_graph(seed, count=200, nanoseconds=None):
    rng = random.Random(seed)
    after = [sorted(rng.sample(range(i), min(i, rng.randrange(4)))) for i in range(count)]
    return after, RankedTaskGraph.of(after, nanoseconds or [rng.choice([1.0, 1e6]) for _ in after])


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_every_task_runs_once_after_its_predecessors(workers, seed):
    after, graph = random_graph(seed)
    ended, lock = [], threading.Lock()

    def start_worker(_):
        def run(number):
            with lock:
                assert all(earlier in ended for earlier in after[number])
            if number % 13 == 0:
                time.sleep(0.0005)
            with lock:
                ended.append(number)

        return run

    records = []
    thread_pool.run_tasks(graph, workers, start_worker, records)
    assert sorted(ended) == list(range(len(after)))
    assert sorted(record[0] for record in records) == sorted(ended)
    times = {number: (start, end) for number, _, start, end in records}
    for number in times:
        assert all(times[earlier][1] <= times[number][0] for earlier in after[number])


def test_one_worker_takes_the_most_urgent_task_first():
    graph = RankedTaskGraph.of([()] * 6 + [(2,), (6,)], [1e4, 3e4, 1e4, 2e4, 1e4, 1e4, 5e4, 1e4])
    order = []
    thread_pool.run_tasks(graph, 1, lambda _: order.append)
    assert order == [2, 6, 1, 3, 0, 4, 5, 7]  # the chain 2, 6, 7 is the longest; then 1


def test_given_ranks_replace_the_critical_path():
    order = []
    thread_pool.run_tasks(RankedTaskGraph.of([()] * 5, [1.0] * 5, [3, 1, 4, 1.5, 9]), 1, lambda _: order.append)
    assert order == [4, 2, 0, 3, 1]


@pytest.fixture
def no_thread_stays():
    """Soon after a run, all threads wait for the next one, or are gone."""
    before = _thread._count() - len(THREADS._parked)
    yield
    for _ in range(10_000):
        if _thread._count() - len(THREADS._parked) <= before:
            return
        time.sleep(0.01)
    pytest.fail("a thread has not ended")


def test_an_empty_graph_only_ends():
    assert thread_pool.run_tasks(RankedTaskGraph.of([], []), 2, lambda _: lambda _: None) >= 0


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_error_stops_everything(workers, no_thread_stays):
    after, graph = random_graph(3)
    ran = []

    def start_worker(_):
        def run(number):
            ran.append(number)
            if number == 50:
                raise ZeroDivisionError("boom")
            time.sleep(0.01 if 50 in ran else 0)

        return run

    with pytest.raises(thread_pool.TaskError) as caught:
        thread_pool.run_tasks(graph, workers, start_worker)
    assert caught.value.task == 50
    assert isinstance(caught.value.cause, ZeroDivisionError)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert len(ran) < len(after)
    waiting = {number for number, earlier in enumerate(after) if 50 in earlier}
    assert waiting
    assert not waiting & {*ran}


def test_a_worker_that_cannot_start_is_reported():
    def start_worker(worker):
        raise MemoryError("no scratch")

    with pytest.raises(thread_pool.TaskError) as caught:
        thread_pool.run_tasks(random_graph(1)[1], 2, start_worker)
    assert isinstance(caught.value.cause, MemoryError)


def test_an_interrupt_stops_the_workers_after_their_present_task(no_thread_stays):
    ran = []

    def start_worker(_):
        def run(number):
            ran.append(number)
            if len(ran) == 5:
                _thread.interrupt_main()
            time.sleep(0.01)

        return run

    with pytest.raises(KeyboardInterrupt):
        thread_pool.run_tasks(RankedTaskGraph.of([()] * 1000, [1e6] * 1000), 2, start_worker)
    assert len(ran) < 1000


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("taken", range(1, 12))
def test_an_interrupt_right_after_taking_the_lock_releases_it(workers, taken, monkeypatch, no_thread_stays):
    """As Ctrl-C does between the lock's being taken and the block that gives it back."""
    caller = threading.get_ident()

    class Interrupted(threading.Condition):
        times = 0

        def __enter__(self):
            super().__enter__()
            if threading.get_ident() == caller:
                self.times += 1
                if self.times == taken:
                    raise KeyboardInterrupt
            return True

    monkeypatch.setattr(threading, "Condition", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread_pool.run_tasks(
            RankedTaskGraph.of([()] * 1000, [1e6] * 1000), workers, lambda _: lambda _: time.sleep(0.001)
        )


@pytest.mark.parametrize("workers", [1, 2])
def test_the_lock_is_taken_once_per_task_and_no_thread_is_woken_for_tiny_tasks(workers, monkeypatch):
    taken, woken = itertools.count(), []

    class Counted(threading.Condition):
        def __enter__(self):
            next(taken)
            return super().__enter__()

        def notify(self, n=1):
            woken.append(n)
            super().notify(n)

        def notify_all(self):  # when all is done
            super().notify(len(self._waiters))

    monkeypatch.setattr(threading, "Condition", Counted)
    after = [tuple(range(i // 8 * 8 - 8, i // 8 * 8)) if i >= 8 else () for i in range(400)]
    thread_pool.run_tasks(RankedTaskGraph.of(after, [100.0] * len(after)), workers, lambda _: lambda _: None)
    least = 2 + len(after) + 1  # to begin, to stop, when a task ends, and for who has none yet
    assert least <= next(taken) <= least + 3 * (workers - 1)  # others also say that they work, and that they do no more
    assert woken == []


def test_one_worker_needs_no_other_thread_and_takes_interrupts():
    seen = set()

    def start_worker(_):
        seen.add(threading.get_ident())
        return lambda number: _thread.interrupt_main() if number == 3 else time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        thread_pool.run_tasks(RankedTaskGraph.of([()] * 1000, [1e6] * 1000), 1, start_worker)
    assert seen == {threading.get_ident()}


def test_a_thread_whose_function_has_returned_runs_the_next_one():
    threads, told = SystemThreads(), queue.SimpleQueue()

    def tell(number):
        told.put((number, threading.get_ident()))

    found = []
    for number in range(20):
        threads.start(tell, number)
        found.append(told.get(timeout=10))
        while not threads._parked:
            time.sleep(0.001)
    assert [number for number, _ in found] == list(range(20))
    assert len({thread for _, thread in found}) == 1


def test_threads_that_run_beside_each_other_are_as_many_as_are_started():
    threads, both = SystemThreads(), threading.Barrier(3)
    for _ in range(3):
        threads.start(both.wait, 10)
        threads.start(both.wait, 10)
        both.wait(10)
        while len(threads._parked) < 2:
            time.sleep(0.001)
    threads.forget()
    threads.start(both.wait, 10)
    threads.start(both.wait, 10)
    both.wait(10)


def test_a_thread_that_waits_keeps_nothing_alive():
    threads, held = SystemThreads(), Held()
    gone = weakref.ref(held)
    threads.start(lambda _: None, held)
    del held
    while not threads._parked:
        time.sleep(0.001)
    assert gone() is None


@pytest.mark.skipif(find_core() is None or count_cores() < 2, reason="no other core, or the system does not say")
def test_a_thread_wakes_on_another_core_than_the_one_that_wakes_it(monkeypatch):
    cores, set_cores = os.sched_getaffinity(0), os.sched_setaffinity
    core, threads, told, said = min(cores), SystemThreads(), queue.SimpleQueue(), []
    monkeypatch.setattr(scheduler, "find_core", lambda: core)
    threads.start(lambda: told.put(threading.get_native_id()))
    number = told.get(timeout=10)
    while not threads._parked:
        time.sleep(0.001)

    def record(thread, allowed):
        said.append((thread, allowed))
        set_cores(thread, allowed)

    monkeypatch.setattr(os, "sched_setaffinity", record)
    threads.start(lambda: told.put(os.sched_getaffinity(0)))
    assert told.get(timeout=10) == cores
    assert said == [(number, cores - {core}), (0, cores)]


class Held:
    """Something large that a task has."""
