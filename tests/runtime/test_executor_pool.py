"""The pool: order, failures, interrupts, fences, tiny and large tasks, any number of workers."""

from __future__ import annotations

import _thread
import random
import threading
import time
from dataclasses import dataclass

import pytest

from runtime.executors import pool
from runtime.executors.schedule import TaskGraph


@dataclass
class Task:
    after: tuple[int, ...]


def random_graph(seed, count=200, nanoseconds=None):
    rng = random.Random(seed)
    tasks = [Task(tuple(sorted(rng.sample(range(i), min(i, rng.randrange(4)))))) for i in range(count)]
    return tasks, TaskGraph.of(afters(tasks), nanoseconds or [rng.choice([1.0, 1e6]) for _ in tasks])


def afters(tasks):
    return [task.after for task in tasks]


def never(_):
    return False


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_every_task_runs_once_after_its_predecessors(workers, seed):
    tasks, graph = random_graph(seed)
    ended, lock = [], threading.Lock()

    def start_worker(_):
        def run(number):
            with lock:
                assert all(earlier in ended for earlier in tasks[number].after if earlier % 7)
            if number % 13 == 0:
                time.sleep(0.0005)
            with lock:
                ended.append(number)

        return run

    records = []
    pool.run(graph, workers, start_worker, lambda number: number % 7 == 0, records)
    assert sorted(ended) == [n for n in range(len(tasks)) if n % 7]
    assert sorted(record[0] for record in records) == sorted(ended)
    times = {number: (start, end) for number, _, start, end in records}
    for number in times:
        for earlier in ancestors(tasks, number):  # also through tasks that only order others
            if earlier in times:
                assert times[earlier][1] <= times[number][0]


def ancestors(tasks, number):
    found, pending = set(), list(tasks[number].after)
    while pending:
        earlier = pending.pop()
        if earlier not in found:
            found.add(earlier)
            pending += tasks[earlier].after
    return found


def test_one_worker_takes_the_most_urgent_task_first():
    tasks = [Task(()) for _ in range(6)] + [Task((2,)), Task((6,))]
    graph = TaskGraph.of(afters(tasks), [1e4, 3e4, 1e4, 2e4, 1e4, 1e4, 5e4, 1e4])
    order = []
    pool.run(graph, 1, lambda _: order.append, never)
    assert order == [2, 6, 1, 3, 0, 4, 5, 7]  # the chain 2, 6, 7 is the longest; then 1


def test_given_ranks_replace_the_critical_path():
    tasks = [Task(()) for _ in range(5)]
    order = []
    pool.run(TaskGraph.of(afters(tasks), [1.0] * 5, [3, 1, 4, 1.5, 9]), 1, lambda _: order.append, never)
    assert order == [4, 2, 0, 3, 1]


def test_an_empty_graph_and_one_of_fences_only_end():
    pool.run(TaskGraph.of([], []), 2, lambda _: lambda _: None, never)
    tasks = [Task((i - 1,) if i else ()) for i in range(20000)]
    pool.run(TaskGraph.of(afters(tasks), [0.0] * len(tasks)), 2, lambda _: lambda _: None, lambda _: True)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_error_stops_everything_and_leaves_no_thread(workers):
    tasks, graph = random_graph(3)
    before = threading.active_count()
    ran = []

    def start_worker(_):
        def run(number):
            ran.append(number)
            if number == 50:
                raise ZeroDivisionError("boom")

        return run

    with pytest.raises(pool.TaskError) as caught:
        pool.run(graph, workers, start_worker, never)
    assert caught.value.task == 50
    assert isinstance(caught.value.cause, ZeroDivisionError)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert len(ran) < len(tasks)
    assert threading.active_count() == before


def test_a_worker_that_cannot_start_is_reported():
    def start_worker(worker):
        raise MemoryError("no scratch")

    with pytest.raises(pool.TaskError) as caught:
        pool.run(random_graph(1)[1], 2, start_worker, never)
    assert isinstance(caught.value.cause, MemoryError)


def test_an_interrupt_stops_the_workers_after_their_present_task():
    tasks = [Task(()) for _ in range(1000)]
    before = threading.active_count()
    ran = []

    def start_worker(_):
        def run(number):
            ran.append(number)
            if len(ran) == 5:
                _thread.interrupt_main()
            time.sleep(0.01)

        return run

    with pytest.raises(KeyboardInterrupt):
        pool.run(TaskGraph.of(afters(tasks), [1e6] * 1000), 2, start_worker, never)
    assert len(ran) < 50
    assert threading.active_count() == before


def test_little_time_is_spent_per_task():
    tasks = [Task(tuple(range(i // 8 * 8 - 8, i // 8 * 8)) if i >= 8 else ()) for i in range(4000)]
    graph = TaskGraph.of(afters(tasks), [100.0] * len(tasks))
    seconds = min(pool.run(graph, 2, lambda _: lambda _: None, never) for _ in range(5))
    assert seconds / len(tasks) < 50e-6  # some 2 microseconds on an idle machine
