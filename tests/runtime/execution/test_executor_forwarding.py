"""Spared transfers: no pair of tasks may touch the same bytes without an order, whatever memory is used again."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.rewrites import copy_elision
from einc_runtime.execution.rewrites.dependencies import dependencies
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AggregateTask, Buffer, CopyTask, FenceTask, KernelTask, Region, TransferTask
from tests.support.handmade_plans import Planner, box, random_plan, two_site_plan

MODELS = Path(__file__).parents[3] / "models"


@functools.lru_cache(4096)
def footprint(buffer, block):
    """The bytes of a block of a buffer in its site's arena, as numbers."""
    shape = [up - lo for lo, up in zip(buffer.block.lower, buffer.block.upper, strict=True)]
    elements = np.arange(int(np.prod(shape)) or 1).reshape(shape)
    key = tuple(
        slice(lo - first, up - first)
        for lo, up, first in zip(block.lower, block.upper, buffer.block.lower, strict=True)
    )
    return frozenset((buffer.site, buffer.offset + 4 * int(e)) for e in elements[key].ravel())


def races(bundle, tasks):
    """Pairs of tasks that touch the same bytes, one writing, with no path between them. Slow and plain."""
    before = []
    for task in tasks:
        before.append(set(task.after).union(*(before[earlier] for earlier in task.after)))

    def bytes_of(regions):
        return set().union(*(footprint(bundle.buffers[region.buffer], region.block) for region in regions))

    touched = [(bytes_of(reads_of(task)), bytes_of(writes_of(task))) for task in tasks]
    return [
        (i, j)
        for j in range(len(tasks))
        for i in range(j)
        if i not in before[j]
        and (touched[i][1] & touched[j][1] or touched[i][0] & touched[j][1] or touched[i][1] & touched[j][0])
    ]


def forward(bundle):
    """With all that has to be waited for."""
    tasks = copy_elision.forward(bundle)
    return [
        msgspec.structs.replace(task, after=tuple(sorted({*task.after, *waits})))
        for task, waits in zip(tasks, dependencies(bundle, tasks), strict=True)
    ]


def transfers(tasks):
    return sum(isinstance(task, TransferTask) for task in tasks)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_no_races_and_the_same_tasks_otherwise(seed, reuse):
    bundle = random_plan(seed, sites=2 + seed % 5, operations=2 + seed % 4, reuse=reuse)
    assert not races(bundle, bundle.tasks)
    tasks = forward(bundle)
    assert len(tasks) == len(bundle.tasks)
    for number, (old, new) in enumerate(zip(bundle.tasks, tasks, strict=True)):
        assert set(old.after) <= set(new.after)
        assert list(new.after) == sorted(set(new.after))
        assert all(earlier < number for earlier in new.after)
        assert type(old) is type(new) or (isinstance(old, TransferTask) and isinstance(new, FenceTask))
        assert isinstance(new, FenceTask) or writes_of(old) == writes_of(new)
    assert not races(bundle, tasks)


def test_most_transfers_are_spared():
    for reuse in (False, True):
        plans = [random_plan(seed, sites=5, operations=4, reuse=reuse) for seed in range(30)]
        before = sum(transfers(plan.tasks) for plan in plans)
        assert transfers([task for plan in plans for task in forward(plan)]) < before / 2


def test_the_race_check_sees_a_missing_dependency():
    bundle = two_site_plan()
    tasks = list(bundle.tasks)
    tasks[-1] = msgspec.structs.replace(tasks[-1], after=())
    assert races(bundle, tasks)


def plan_of(buffers, tasks, outputs=()):
    import random

    base = Planner(3, random.Random(0))
    tensor = base.tensor("v", (4, 4), "value", ("i", "j"))
    bundle = base.bundle()
    return msgspec.structs.replace(
        bundle,
        buffers=tuple(Buffer(site, offset, tensor, box((0, 4), (0, 4)), role) for site, offset, role in buffers),
        tasks=tuple(tasks),
        memory=(1 << 12,) * 3,
    )


WHOLE = box((0, 4), (0, 4))
TOP = box((0, 2), (0, 4))


def whole(buffer):
    return Region(buffer, WHOLE)


def kernel(reads, writes, after):
    return KernelTask(0, "v", tuple(after), operation=0, function=0, reads=tuple(reads), writes=tuple(writes))


def test_cases_one_by_one():
    """Buffers 0 and 1 are at the source, 2 and 3 where things are sent."""
    apart = [(0, 0, "scratch"), (0, 64, "scratch"), (1, 0, "scratch"), (1, 64, "scratch")]
    shared = [(0, 0, "scratch"), (0, 0, "scratch"), (1, 0, "scratch"), (1, 64, "scratch")]
    make = kernel([], [whole(0)], [])
    send = TransferTask(0, "v", (0,), read=whole(0), write=whole(2))
    use = kernel([whole(2)], [whole(3)], [1])

    tasks = forward(plan_of(apart, [make, send, use]))
    assert isinstance(tasks[1], FenceTask)
    assert tasks[2].reads == (whole(0),)
    assert tasks[2].after == (0, 1)

    reuse = kernel([], [whole(1)], [1])  # overwrites the source once it is sent
    tasks = forward(plan_of(shared, [make, send, use, reuse]))
    assert tasks[2].reads == (whole(0),)
    assert tasks[3].after == (1, 2)  # and now waits for the reader
    tasks = forward(plan_of(shared, [make, send, reuse, msgspec.structs.replace(use, after=(1,))]))
    assert tasks[1] == send  # stands before the reader, which might have to wait for it
    itself = kernel([whole(2)], [whole(1)], [1])
    assert forward(plan_of(shared, [make, send, itself]))[1] == send  # would overwrite what it reads

    part = TransferTask(0, "v", (0,), read=Region(0, TOP), write=Region(2, TOP))
    gather = kernel([whole(2)], [whole(3)], [1])  # needs more than was sent
    assert forward(plan_of(apart, [make, part, gather]))[1] == part
    result = [(0, 0, "scratch"), (0, 64, "scratch"), (1, 0, "result"), (1, 64, "scratch")]
    bundle = plan_of(result, [make, send])
    output = msgspec.structs.replace(two_site_plan().outputs[0], tensor=0, regions=(whole(2),))
    assert forward(msgspec.structs.replace(bundle, outputs=(output,)))[1] == send

    relay = TransferTask(1, "v", (1,), read=whole(2), write=whole(3))
    last = kernel([whole(3)], [whole(1)], [2])
    tasks = forward(plan_of(apart, [make, send, relay, last]))
    assert transfers(tasks) == 0
    assert tasks[3].reads == (whole(0),)

    inside = AggregateTask(1, "v", (1,), aggregation="sum", reads=(whole(2), whole(3)), writes=(whole(2),))
    after = kernel([whole(2)], [whole(3)], [2])
    tasks = forward(plan_of(apart, [make, send, inside, after]))
    assert tasks[2].reads == (whole(0), whole(3))
    assert tasks[3].reads == (whole(2),)
    copy = CopyTask(1, "v", (1,), reads=(Region(2, TOP),), writes=(Region(3, TOP),))
    tasks = forward(plan_of(apart, [make, send, copy]))
    assert tasks[2].reads == (Region(0, TOP),)


@pytest.mark.parametrize(("name", "sites"), [*itertools.product(["ffn", "chain_a", "chain_d"], [4, 7])])
def test_compiled_plans_have_no_races(name, sites):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    small = {"ffn": (("tokens", "8"), ("d_model", "10"), ("d_ff", "12"))}.get(name, (("scale", "1500"),))
    options = CompileOptions(machine="host", devices=sites, definitions=small, dtype="f32")
    bundle = compile_model((MODELS / f"{name}.ein").read_text(), name, options).bundle
    assert not races(bundle, bundle.tasks)
    tasks = forward(bundle)
    assert transfers(tasks) < transfers(bundle.tasks)
    assert not races(bundle, tasks)
