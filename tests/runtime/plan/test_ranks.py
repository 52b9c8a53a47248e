"""The tasks of several processes: messages match, and what is wrong with them is found."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.execution.rewrites import RewriteOptions, rewrite
from einc_runtime.plan.ranks import RankPart, RankTask, assign_sites, prove_ranks, select_tasks
from einc_runtime.plan.schema import Block, CopyTask, FenceTask, Region, TransferTask
from tests.support.handmade_plans import random_plan
from tests.support.partitions import partitions


def tasks_of(bundle, ranks):
    options = [RewriteOptions(devices=ranks, rank=rank) for rank in range(max(ranks) + 1)]
    return [[RankTask(item.origin, item.task, item.peer) for item in rewrite(bundle, option)] for option in options]


@pytest.mark.parametrize(("sites", "ranks"), [(1, 1), (8, 3), (7, 7), (8, 2)])
def test_sites_are_shared_evenly_in_their_order(sites, ranks):
    assigned = assign_sites(sites, ranks)
    counts = [assigned.count(rank) for rank in range(ranks)]
    assert list(assigned) == sorted(assigned)
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1


def test_more_ranks_than_sites_are_refused():
    with pytest.raises(PlanFault, match="4 ranks cannot share the 3 sites"):
        assign_sites(3, 4)


@pytest.mark.parametrize(
    ("sites", "ranks", "shares", "expected"),
    [
        (8, 4, 2, (0, 0, 1, 1, 2, 2, 3, 3)),
        (7, 3, 3, (0, 0, 0, 1, 1, 1, 2)),
        (5, 3, (1, 3, 1), (0, 1, 1, 1, 2)),
        (5, 1, 9, (0, 0, 0, 0, 0)),
        (8, 3, 2, None),
        (8, 5, 2, None),
        (3, 2, (1, 1), None),
        (3, 2, (1, 3), None),
        (3, 3, (1, 2), None),
        (3, 3, (3, 0, 0), None),
    ],
)
def test_sites_are_shared_as_it_is_said(sites, ranks, shares, expected):
    if expected is not None:
        assert assign_sites(sites, ranks, shares) == expected
        return
    with pytest.raises(PlanFault, match=r"(do not|cannot) share the"):
        assign_sites(sites, ranks, shares)


def test_what_is_proved_for_one_site_on_each_rank_holds_for_every_assignment():
    bundle = random_plan(11, sites=5, operations=4, reuse=True)
    finest = tasks_of(bundle, range(5))
    messages = {item.position for items in finest for item in items if item.peer is not None}
    counts = []
    for ranks in partitions(5):
        tasks = tasks_of(bundle, ranks)
        counts.append(prove_ranks(bundle, tasks))
        assert {item.position for items in tasks for item in items if item.peer is not None} <= messages
    assert len(counts) == 52  # the fifth number of Bell
    assert (min(counts), max(counts)) == (0, len(messages))


def test_no_rank_waits_forever_whatever_sites_it_has():
    """Transfers between ranks are the messages, no matter which sites share one; all other tasks are on one rank."""
    rng, messages = random.Random(5), 0
    for seed in range(20):
        bundle = random_plan(seed, sites=2 + seed % 6, operations=2 + seed % 5, reuse=seed % 2 == 0)
        sites = len(bundle.memory)
        ranks = [rng.randrange(sites) for _ in range(sites)]
        ranks = [sorted(set(ranks)).index(rank) for rank in ranks]
        tasks = tasks_of(bundle, ranks)
        home = [ranks[buffer.site] for buffer in bundle.buffers]
        between = [
            number
            for number, task in enumerate(bundle.tasks)
            if isinstance(task, TransferTask) and home[task.read.buffer] != home[task.write.buffer]
        ]
        assert prove_ranks(bundle, tasks) == len(between)
        assert {item.position for items in tasks for item in items if item.peer is not None} == set(between)
        moves = (TransferTask, FenceTask) if len(set(ranks)) > 1 else (TransferTask, FenceTask, CopyTask)
        kept = [number for number, task in enumerate(bundle.tasks) if not isinstance(task, moves)]
        local = [item.position for items in tasks for item in items if item.peer is None]
        assert set(kept) <= set(local)
        assert len(local) == len(set(local))
        messages += len(between)
    assert messages > 100


def changed(tasks, find, change):
    """All tasks, with the first that is found replaced by others."""
    result, done = [], False
    for items in tasks:
        result.append([])
        for item in items:
            if not done and find(item):
                result[-1] += change(item)
                done = True
            else:
                result[-1].append(item)
    assert done
    return result


def test_every_flaw_is_found():
    bundle = random_plan(3, sites=4, operations=4, reuse=True)
    tasks = tasks_of(bundle, [0, 1, 2, 3])
    assert prove_ranks(bundle, tasks) > 3

    def is_send(item):
        return item.peer is not None and not item.task.writes

    def is_receive(item):
        return item.peer is not None and not item.task.reads

    def idle(item):
        return RankTask(item.position, FenceTask(0, "v", ()))

    def narrowed(item):
        (region,) = item.task.writes
        lower, upper = region.block.lower, region.block.upper
        smaller = Region(region.buffer, Block(lower, (lower[0], *upper[1:])))
        return [dataclasses.replace(item, task=msgspec.structs.replace(item.task, writes=(smaller,)))]

    def waiting(item):
        return [dataclasses.replace(item, task=msgspec.structs.replace(item.task, after=(10**6,)))]

    flaws = {
        "is received, and not sent": (is_send, lambda item: [idle(item)]),
        "is sent, and not received": (is_receive, lambda item: [idle(item)]),
        "has the message of another task": (is_send, lambda item: [item, item]),
        "goes from rank": (is_send, lambda item: [dataclasses.replace(item, peer=(item.peer + 1) % 4)]),
        "has other values at its two ends": (is_receive, narrowed),
        "waits for a task that is not before it": (is_receive, waiting),
        "comes after a later task": (
            lambda item: item.peer is None and item.position > 1,
            lambda item: [item, dataclasses.replace(item, position=0)],
        ),
    }
    for message, (find, change) in flaws.items():
        with pytest.raises(PlanFault, match=message):
            prove_ranks(bundle, changed(tasks, find, change))


def test_a_task_on_two_ranks_is_refused():
    bundle = random_plan(3, sites=2, operations=3, reuse=False)
    remote = next(number for number, buffer in enumerate(bundle.buffers) if buffer.site == 1)
    near = next(number for number, buffer in enumerate(bundle.buffers) if buffer.site == 0)
    regions = [Region(number, bundle.buffers[number].block) for number in (near, remote)]
    task = CopyTask(0, "v", (), reads=(regions[0],), writes=(regions[1],))
    with pytest.raises(PlanFault, match="memory of several ranks"):
        select_tasks(bundle, [task], [0, 1], 0)
    assert len(select_tasks(bundle, [task], [0, 0], 0)) == 1


def test_the_sites_of_a_rank():
    assert [RankPart((0, 0, 1, 2, 2), rank, 1).sites for rank in range(3)] == [(0, 1), (2,), (3, 4)]
