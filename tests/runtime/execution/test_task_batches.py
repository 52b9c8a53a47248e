"""Batches of tiny tasks: every task is in one, none waits in a circle, and large tasks stay alone."""

from __future__ import annotations

import itertools
import random

import pytest

from einc_runtime.execution.cpu import thread_pool
from einc_runtime.execution.cpu.batches import SHORT_NS, batch_tasks
from einc_runtime.execution.cpu.thread_pool import TINY_NS, RankedTaskGraph, TaskError


def drawn(seed, count=120):
    rng = random.Random(seed)
    after = [tuple(sorted(rng.sample(range(i), min(i, rng.randrange(4))))) for i in range(count)]
    return after, [rng.choice([1.0, 3000.0, TINY_NS, 0.9 * SHORT_NS, SHORT_NS, 1e6]) for _ in after]


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_batches_keep_every_dependency_and_have_no_circle(seed, workers):
    after, nanoseconds = drawn(seed)
    batches = batch_tasks(after, nanoseconds, workers)
    place = {task: number for number, part in enumerate(batches.members) for task in part}
    assert sorted(place) == list(range(len(after)))
    assert sum(map(len, batches.members)) == len(after)
    before = [set() for _ in batches.members]
    for number, part in enumerate(batches.members):
        needed = {place[one] for task in part for one in after[task]} - {number}
        assert set(batches.after[number]) <= needed
        for earlier in batches.after[number]:
            assert earlier < number
            before[number] |= {earlier} | before[earlier]
        assert needed <= before[number]
        assert all(part.index(one) < k for k, task in enumerate(part) for one in after[task] if one in part)
        assert batches.nanoseconds[number] == pytest.approx(sum(nanoseconds[task] for task in part))
    assert len(batches.members) < len(after) or not workers


def test_many_tiny_tasks_are_divided_among_the_workers_and_few_are_not():
    def sizes(count, each, workers):
        return [len(part) for part in batch_tasks([()] * count, [each] * count, workers).members]

    assert sizes(24, 12_000.0, 2) == [12, 12]
    assert sizes(24, 12_000.0, 5) == [5, 5, 4, 5, 5]
    assert sizes(8, 500.0, 2) == [8]
    assert sizes(8, 0.9 * SHORT_NS, 2) == [4, 4]
    assert sizes(3, SHORT_NS, 2) == [1, 1, 1]


def test_a_batch_that_alone_waits_for_another_one_is_a_part_of_it():
    #      0 -> 1 -> 2     3 waits for 0 and 2, 4 for 3 and, needlessly, 1; 5 and 6 wait for 4 and are long
    after = [(), (0,), (1,), (0, 2), (1, 3), (4,), (4,), (5, 6)]
    batches = batch_tasks(after, [1.0, 2.0, 1e6, 1.0, 1.0, 1e6, 1e6, 1.0], 2)
    assert batches.members == ((0, 1, 2, 3, 4), (5,), (6,), (7,))
    assert batches.after == ((), (0,), (0,), (1, 2))
    assert batches.nanoseconds == (5 + 1e6, 1e6, 1e6, 1.0)


def test_the_tasks_of_a_batch_run_in_their_order_and_are_timed_and_blamed_alone():
    graph = RankedTaskGraph.of([(), (0,)], [3.0, 1.0], None, [(0, 2, 3), (1,)])
    order, records = [], []
    thread_pool.run_tasks(graph, 1, lambda _: order.append, records)
    assert order == [record[0] for record in records] == [0, 2, 3, 1]
    assert all(one[3] <= other[2] for one, other in itertools.pairwise(records))

    def run(task):
        if task == 2:
            raise KeyError(task)

    with pytest.raises(TaskError) as caught:
        thread_pool.run_tasks(graph, 1, lambda _: run)
    assert caught.value.task == 2


def test_a_node_runs_as_one_where_a_worker_can_join_its_tasks_and_no_times_are_wanted():
    graph = RankedTaskGraph.of([(), (0,)], [3.0, 1.0], None, [(0, 2, 3), (1,)])
    order, nodes, records = [], [], []
    thread_pool.run_tasks(graph, 1, lambda _: order.append, join_worker=lambda _: nodes.append)
    assert (order, nodes) == ([], [0, 1])
    thread_pool.run_tasks(graph, 1, lambda _: order.append, records, join_worker=lambda _: nodes.append)
    assert (order, nodes) == ([0, 2, 3, 1], [0, 1])

    def run(node):
        raise TaskError(3, KeyError(node))

    with pytest.raises(TaskError) as caught:
        thread_pool.run_tasks(graph, 1, lambda _: order.append, join_worker=lambda _: run)
    assert caught.value.task == 3
    assert isinstance(caught.value.cause, KeyError)
