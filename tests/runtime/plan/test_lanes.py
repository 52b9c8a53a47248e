"""The order in which GPUs send and receive: it is proved for every assignment, and what is wrong with it is found."""

from __future__ import annotations

import dataclasses
import itertools
import random

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.execution.ranks.part import list_gpu_tasks
from einc_runtime.plan import lanes
from einc_runtime.plan.lanes import LaneStep, group_messages, order_lanes, prove_lanes
from einc_runtime.plan.schema import FenceTask
from tests.support.handmade_plans import random_plan
from tests.support.lane_interleavings import Interleavings, LaneNode
from tests.support.partitions import partitions


def lanes_of(bundle, ranks, gpus=None):
    """The tasks of all ranks, and their steps; each site has a GPU of its own, or as `gpus` says."""
    tasks = [list_gpu_tasks(bundle, ranks, rank) for rank in range(max(ranks) + 1)]
    return tasks, [order_lanes(bundle, items, gpus or range(len(ranks))) for items in tasks]


def replace_step(steps, number, **changes):
    return [dataclasses.replace(step, **changes) if n == number else step for n, step in enumerate(steps)]


def groups_of(items, steps):
    return [number for number, step in enumerate(steps) if items[step.places[0]].peer is not None]


def test_every_assignment_is_proved():
    """All 52 ways to give five sites to ranks, with a GPU for each site, or some that share one."""
    bundle = random_plan(11, sites=5, operations=4, reuse=True)
    rng, sizes = random.Random(2), set()
    for ranks in partitions(5):
        some = [(rank, rng.randrange(2)) for rank in ranks]
        numbers = {pair: number for number, pair in enumerate(sorted(set(some)))}
        for gpus in (range(5), [numbers[pair] for pair in some]):
            tasks, steps = lanes_of(bundle, ranks, gpus)
            messages = sum(item.peer is not None for items in tasks for item in items)
            assert prove_lanes(bundle, tasks, steps) == messages / 2
            sizes |= {len(step.places) for lane in steps for step in lane}
    assert max(sizes) > 1


def test_groups_are_what_is_adjacent_and_independent(monkeypatch):
    fence = FenceTask(0, "v", ())
    waits = [(), (), (1,), (), (3,), (3,), (), ()]
    tasks = [msgspec.structs.replace(fence, after=after) for after in waits]
    everywhere = dict.fromkeys(range(8), 0)
    assert group_messages(tasks, everywhere) == [(0, 1), (2, 3), (4, 5, 6, 7)]
    assert group_messages(tasks, everywhere | {1: 5, 6: 5}) == [(0,), (1,), (2, 3), (4, 5), (6,), (7,)]
    without = {
        position: 0 for position in range(8) if position not in (0, 4)
    }  # two fences, of which one waits for message 3
    assert group_messages(tasks, without) == [(1,), (2, 3), (5, 6, 7)]
    kernel = next(task for task in random_plan(3, sites=2, operations=3, reuse=False).tasks if task.site is not None and
                  not isinstance(task, FenceTask))  # fmt: skip
    tasks[6] = msgspec.structs.replace(kernel, after=())
    assert group_messages(tasks, {position: 0 for position in range(8) if position != 6}) == [
        (0, 1),
        (2, 3),
        (4, 5),
        (7,),
    ]
    monkeypatch.setattr(lanes, "MAX_GROUP_MESSAGES", 2)
    assert group_messages([fence] * 5, dict.fromkeys(range(5), 0)) == [(0, 1), (2, 3), (4,)]


def postpone(items, steps, first, second):
    """The steps with a group right after a later one, if all that a rank itself needs allows it; else None. Each group
    waits for the one that is now before it on its GPU."""
    members = {*steps[first].places}
    passed = [location for step in steps[first + 1 : second + 1] for location in step.places]
    if first >= second or any(members.intersection(items[position].task.after) for position in passed):
        return None
    order = [*range(first), *range(first + 1, second + 1), first, *range(second + 1, len(steps))]
    number = {old: new for new, old in enumerate(order)}
    lane, changed = {}, []
    for new, old in enumerate(order):
        step = steps[old]
        after = {number[earlier] for earlier in step.after if number[earlier] < new}
        if items[step.places[0]].peer is not None:
            after |= {lane[step.gpu]} if step.gpu in lane else set()
            lane[step.gpu] = new
        changed.append(dataclasses.replace(step, after=tuple(sorted(after))))
    return changed


def hangs(tasks, steps, seeds=12):
    """Whether some order that CUDA and NCCL allow never ends."""
    ends = [(items[location], step) for items, lane in zip(tasks, steps, strict=True) for step in lane
            for location in step.places if items[location].peer is not None]  # fmt: skip
    gpus = {(item.position, bool(item.task.writes)): step.gpu for item, step in ends}
    if any((position, not incoming) not in gpus for position, incoming in gpus):
        return True  # one end waits for the other one
    ranks = []
    for rank, (items, rank_steps) in enumerate(zip(tasks, steps, strict=True)):
        lane, last, counts, nodes = {}, {}, {}, []
        for number, step in enumerate(rank_steps):
            results = []
            for item_number in step.places:
                item = items[item_number]
                if item.peer is not None:
                    pair = gpus[item.position, False], gpus[item.position, True]
                    results.append(((*pair, counts.setdefault(pair, 0)), bool(item.task.writes)))
                    counts[pair] += 1
            queue, key = (lane, step.gpu) if results else (last, items[step.places[0]].task.site)
            after = {*step.after, *([queue[key]] if key in queue else [])}
            queue[key] = number
            nodes.append(LaneNode((rank, step.gpu), tuple(sorted(after)), tuple(results)))
        ranks.append(nodes)
    interleavings = Interleavings(ranks)
    return any(interleavings.find_hang(seed) for seed in range(seeds))


def replace_at(parts, number, part):
    return [part if n == number else member for n, member in enumerate(parts)]


def waiting_for_less(items, steps):
    """The steps with groups that wait for the data that they send, the memory that they write, and the group before
    them, and not for what else comes before them on their GPU."""
    step_of = {location: n for n, step in enumerate(steps) for location in step.places}
    lane, less = {}, []
    for number, step in enumerate(steps):
        after = set(step.after)
        if items[step.places[0]].peer is not None:
            after = {step_of[earlier] for location in step.places for earlier in items[location].task.after}
            after |= {lane[step.gpu]} if step.gpu in lane else set()
            lane[step.gpu] = number
        less.append(dataclasses.replace(step, after=tuple(sorted(after))))
    return less


def is_rejected(bundle, tasks, steps):
    try:
        prove_lanes(bundle, tasks, steps)
    except PlanFault:
        return True
    return False


def test_every_seeded_deadlock_is_rejected():
    """Groups in another order, groups that do not wait, and ends without another end: what hangs is not proved."""
    results = {"swapped": 0, "missing wait": 0, "unmatched": 0}
    for seed in range(10):
        bundle = random_plan(seed, sites=4, operations=4, reuse=seed % 2 == 0)
        ranks = (0, 1, 2, 3) if seed % 4 == 0 else (0, 0, 1, 1)
        tasks, steps = lanes_of(bundle, ranks)
        assert not hangs(tasks, steps)
        rng = random.Random(seed)
        for rank in range(max(ranks) + 1):
            groups = groups_of(tasks[rank], steps[rank])
            seeded = [("missing wait", tasks, waiting_for_less(tasks[rank], steps[rank]))]
            for number in groups:
                postponed = postpone(tasks[rank], steps[rank], number, rng.choice(groups))
                seeded += [("swapped", tasks, postponed)] if postponed else []
                position = steps[rank][number].places[-1]
                alone = dataclasses.replace(tasks[rank][position], peer=None)
                items = [alone if n == position else task for n, task in enumerate(tasks[rank])]
                seeded.append(("unmatched", replace_at(tasks, rank, items), steps[rank]))
            for kind, items, lane in seeded:
                flawed = replace_at(steps, rank, lane)
                if hangs(items, flawed):
                    results[kind] += 1
                    assert is_rejected(bundle, items, flawed), (seed, rank, kind)
    assert min(results.values()) > 0, results


def test_other_orders_are_refused_for_what_is_wrong_with_them():
    bundle = random_plan(5, sites=4, operations=5, reuse=False)
    tasks, steps = lanes_of(bundle, range(4))
    said = set()
    for rank in range(4):
        for pair in itertools.combinations(groups_of(tasks[rank], steps[rank]), 2):
            changed = postpone(tasks[rank], steps[rank], *pair)
            if changed is not None:
                try:
                    prove_lanes(bundle, tasks, [changed if r == rank else step for r, step in enumerate(steps)])
                except PlanFault as fault:
                    said.add(" ".join(word for word in fault.message.split() if not word.isdigit()))
    assert said == {"message is sent where message is received", "waits for itself, or for what does"}


def test_every_flaw_is_named():
    bundle = random_plan(3, sites=4, operations=4, reuse=True)
    tasks, steps = lanes_of(bundle, range(4))
    lane, items = steps[0], tasks[0]
    groups = groups_of(items, lane)
    last = next(number for number in reversed(groups) if lane[number].after)
    large = next((rank, n) for rank in range(4) for n in groups_of(tasks[rank], steps[rank])
                 if len(steps[rank][n].places) > 1)  # fmt: skip

    def waiting_for_its_own_group():
        rank, number = large
        first, second = steps[rank][number].places[:2]
        late = tasks[rank][second]
        late = dataclasses.replace(late, task=msgspec.structs.replace(late.task, after=(*late.task.after, first)))
        return [[late if (r, n) == (rank, second) else kept for n, kept in enumerate(task)] for r, task in
                enumerate(tasks)], steps  # fmt: skip

    def with_steps(changed, rank=0):
        return tasks, [changed if r == rank else step for r, step in enumerate(steps)]

    def merged():
        """The first task of a rank and its last one, which then waits for nothing, as one step."""
        free = dataclasses.replace(items[-1], task=msgspec.structs.replace(items[-1].task, after=()))
        both = LaneStep((0, len(items) - 1), lane[0].gpu, ())
        return [[*items[:-1], free], *tasks[1:]], [[both, *lane[1:-1]], *steps[1:]]

    flaws = {
        "is in no step": with_steps(lane[:-1]),
        "is in several steps": with_steps([*lane, lane[-1]]),
        "is in several steps, or is none": with_steps([*lane, LaneStep((10**6,), 0, ())]),
        "waits for a step that is not before it": with_steps(replace_step(lane, last, after=(last,))),
        "does not wait for task": with_steps(replace_step(lane, last, after=())),
        "waits for a message of its own group": waiting_for_its_own_group(),
    }
    for message, (changed_tasks, changed_steps) in flaws.items():
        with pytest.raises(PlanFault, match=message):
            prove_lanes(bundle, changed_tasks, changed_steps)
    with pytest.raises(PlanFault, match="is in a group, and no message"):
        prove_lanes(bundle, *merged())
    same = [[dataclasses.replace(step, gpu=0) for step in lane] for lane in steps]
    with pytest.raises(PlanFault, match="is sent by GPU 0 to itself"):
        prove_lanes(bundle, tasks, same)
