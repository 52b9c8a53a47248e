"""Copy elision: no two tasks may touch the same bytes without an order between them, however memory is reused."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from einc_runtime.execution.rewrites import copy_elision
from einc_runtime.execution.rewrites.dependencies import find_dependencies
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AggregateTask, CopyTask, FenceTask, Region, TransferTask
from tests.support.compiled_plans import MODELS, compiled
from tests.support.handmade_plans import random_plan, two_site_plan
from tests.support.rewrite_cases import TOP, kernel, races, task_plan, whole


def elide_copies(bundle):
    """With all dependencies that are needed then."""
    tasks = copy_elision.elide_copies(bundle, bundle.tasks)
    return [
        msgspec.structs.replace(task, after=tuple(sorted({*task.after, *waits})))
        for task, waits in zip(tasks, find_dependencies(bundle, tasks), strict=True)
    ]


def transfers(tasks):
    return sum(isinstance(task, TransferTask) for task in tasks)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_no_races_and_the_same_tasks_otherwise(seed, reuse):
    bundle = random_plan(seed, sites=2 + seed % 5, operations=2 + seed % 4, reuse=reuse)
    assert not races(bundle, bundle.tasks)
    tasks = elide_copies(bundle)
    assert len(tasks) == len(bundle.tasks)
    for number, (old, new) in enumerate(zip(bundle.tasks, tasks, strict=True)):
        assert set(old.after) <= set(new.after)
        assert list(new.after) == sorted(set(new.after))
        assert all(earlier < number for earlier in new.after)
        assert type(old) is type(new) or (isinstance(old, TransferTask) and isinstance(new, FenceTask))
        assert isinstance(new, FenceTask) or writes_of(old) == writes_of(new)
    assert not races(bundle, tasks)


def test_most_transfers_are_removed():
    for reuse in (False, True):
        plans = [random_plan(seed, sites=5, operations=4, reuse=reuse) for seed in range(30)]
        before = sum(transfers(plan.tasks) for plan in plans)
        assert transfers([task for plan in plans for task in elide_copies(plan)]) < before / 2


def test_the_race_check_sees_a_missing_dependency():
    bundle = two_site_plan()
    tasks = list(bundle.tasks)
    tasks[-1] = msgspec.structs.replace(tasks[-1], after=())
    assert races(bundle, tasks)


def test_cases_one_by_one():
    """Buffers 0 and 1 are at the source, 2 and 3 where things are sent."""
    apart = [(0, 0, "scratch"), (0, 64, "scratch"), (1, 0, "scratch"), (1, 64, "scratch")]
    shared = [(0, 0, "scratch"), (0, 0, "scratch"), (1, 0, "scratch"), (1, 64, "scratch")]
    make = kernel([], [whole(0)], [])
    send = TransferTask(0, "v", (0,), read=whole(0), write=whole(2))
    use = kernel([whole(2)], [whole(3)], [1])

    tasks = elide_copies(task_plan(apart, [make, send, use]))
    assert isinstance(tasks[1], FenceTask)
    assert tasks[2].reads == (whole(0),)
    assert tasks[2].after == (0, 1)

    reuse = kernel([], [whole(1)], [1])  # overwrites the source once it is sent
    tasks = elide_copies(task_plan(shared, [make, send, use, reuse]))
    assert tasks[2].reads == (whole(0),)
    assert tasks[3].after == (0, 1, 2)  # and now waits for the reader
    tasks = elide_copies(task_plan(shared, [make, send, reuse, msgspec.structs.replace(use, after=(1,))]))
    assert tasks[1] == send  # stands before the reader, which might have to wait for it
    itself = kernel([whole(2)], [whole(1)], [1])
    assert elide_copies(task_plan(shared, [make, send, itself]))[1] == send  # would overwrite what it reads

    part = TransferTask(0, "v", (0,), read=Region(0, TOP), write=Region(2, TOP))
    gather = kernel([whole(2)], [whole(3)], [1])  # needs more than was sent
    assert elide_copies(task_plan(apart, [make, part, gather]))[1] == part
    result = [(0, 0, "scratch"), (0, 64, "scratch"), (1, 0, "result"), (1, 64, "scratch")]
    bundle = task_plan(result, [make, send])
    output = msgspec.structs.replace(two_site_plan().outputs[0], tensor=0, regions=(whole(2),))
    assert elide_copies(msgspec.structs.replace(bundle, outputs=(output,)))[1] == send

    relay = TransferTask(1, "v", (1,), read=whole(2), write=whole(3))
    last = kernel([whole(3)], [whole(1)], [2])
    tasks = elide_copies(task_plan(apart, [make, send, relay, last]))
    assert transfers(tasks) == 0
    assert tasks[3].reads == (whole(0),)

    inside = AggregateTask(1, "v", (1,), aggregation="sum", reads=(whole(2), whole(3)), writes=(whole(2),))
    after = kernel([whole(2)], [whole(3)], [2])
    tasks = elide_copies(task_plan(apart, [make, send, inside, after]))
    assert tasks[2].reads == (whole(0), whole(3))
    assert tasks[3].reads == (whole(2),)
    copy = CopyTask(1, "v", (1,), reads=(Region(2, TOP),), writes=(Region(3, TOP),))
    tasks = elide_copies(task_plan(apart, [make, send, copy]))
    assert tasks[2].reads == (Region(0, TOP),)


@pytest.mark.parametrize(("name", "sites"), [*itertools.product(["ffn", "chain_a", "chain_d"], [4, 7])])
def test_compiled_plans_have_no_races(name, sites):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    small = {"ffn": (("tokens", "8"), ("d_model", "10"), ("d_ff", "12"))}.get(name, (("scale", "1500"),))
    options = CompileOptions(machine="host", selector="eindecomp", devices=sites, definitions=small, dtype="f32")
    bundle = compile_model((MODELS / f"{name}.ein").read_text(), name, options).bundle
    assert not races(bundle, bundle.tasks)
    tasks = elide_copies(bundle)
    assert transfers(tasks) < transfers(bundle.tasks)
    assert not races(bundle, tasks)


def test_aggregations_read_what_lies_on_devices_that_they_reach():
    bundle = compiled((MODELS / "chain_a.ein").read_text(), 4, "f32", scale=300)
    devices = [0, 0, 1, 1]
    kinds = [type(task).__name__ for task in bundle.tasks]
    assert kinds.count("AggregateTask") > 4
    apart = copy_elision.elide_copies(bundle, bundle.tasks, devices)
    one_way = copy_elision.elide_copies(bundle, bundle.tasks, devices, [(0, 1)])
    both = copy_elision.elide_copies(bundle, bundle.tasks, devices, [(0, 1), (1, 0)])
    counts = [sum(isinstance(task, TransferTask) for task in tasks) for tasks in (both, one_way, apart)]
    assert counts[0] < counts[1] < counts[2]
    for task in one_way:
        own = devices[task.site]
        for region in reads_of(task):
            other = devices[bundle.buffers[region.buffer].site]
            reaches = isinstance(task, AggregateTask) and (own, other) == (0, 1)
            assert own == other or isinstance(task, TransferTask) or reaches
