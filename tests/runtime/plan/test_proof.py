"""The proof: it holds for plans that are right, and finds races, double counting and missing parts in others."""

import functools
import random

from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.errors import PlanFault
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import (
    ITEMSIZE,
    AggregateTask,
    CopyTask,
    FenceTask,
    KernelTask,
    Region,
    TransferTask,
)
from tests.support.changed_plans import appended, fault_of, with_task
from tests.support.handmade_plans import random_plan, reads_of, two_site_plan, writes_of
from tests.support.property_examples import examples

PLAN = two_site_plan()


def test_a_plan_of_all_kinds_of_tasks_is_proved():
    plan = appended(PLAN, FenceTask(0, "y", (10, 11)))
    assert {type(task) for task in plan.tasks} == {KernelTask, TransferTask, AggregateTask, CopyTask, FenceTask}
    prove(plan)


@examples(150)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 5), st.booleans())
def test_random_plans_are_proved(seed, sites, operations, reuse):
    prove(random_plan(seed, sites, operations, reuse))


def test_replicas_occur_among_the_random_plans():
    operations = [operation for seed in range(40) for operation in random_plan(seed, 7, 3).operations]
    assert {operation.replicas for operation in operations} >= {1, 2, 3}


# The oracle for races: the whole reachability relation, and all pairs of tasks.


def addresses(plan, region):
    """The bytes of a region, as (site, element address) pairs."""
    buffer = plan.buffers[region.buffer]
    return addresses_in(buffer, region.block, ITEMSIZE[plan.tensors[buffer.tensor].dtype])


@functools.lru_cache(4096)
def addresses_in(buffer, block, width):
    results = {0}
    for d in range(len(buffer.block.lower)):
        extent = buffer.block.upper[d] - buffer.block.lower[d]
        inside = range(block.lower[d] - buffer.block.lower[d], block.upper[d] - buffer.block.lower[d])
        results = {a * extent + i for a in results for i in inside}
    return frozenset((buffer.site, buffer.offset + a * width) for a in results)


def racing_pairs(plan, conflict):
    """All pairs of tasks that no dependency orders, direct or not, where `conflict` says that they touch."""
    before = []
    for task in plan.tasks:
        before.append(set(task.after).union(*(before[t] for t in task.after)))
    return [(i, j) for j in range(len(plan.tasks)) for i in range(j) if i not in before[j] and conflict(plan, i, j)]


def conflicting_regions(plan, i, j):
    first, second = plan.tasks[i], plan.tasks[j]
    for r in [*reads_of(first), *writes_of(first)]:
        for s in [*reads_of(second), *writes_of(second)]:
            if r in writes_of(first) or s in writes_of(second):
                yield r, s


def share_bytes(plan, i, j):
    return any(not addresses(plan, r).isdisjoint(addresses(plan, s)) for r, s in conflicting_regions(plan, i, j))


def share_bytes_or_buffers(plan, i, j):
    """As the proof has it: buffers that share bytes are in each other's way as a whole."""

    def touch(r, s):
        if r.buffer != s.buffer:
            r, s = (Region(x.buffer, plan.buffers[x.buffer].block) for x in (r, s))
        return not addresses(plan, r).isdisjoint(addresses(plan, s))

    return any(touch(r, s) for r, s in conflicting_regions(plan, i, j))


def without_dependency(plan, rng):
    """One dependency of one task replaced by those of the task that it named."""
    position = rng.choice([i for i, task in enumerate(plan.tasks) if task.after])
    after = plan.tasks[position].after
    gone = rng.choice(after)
    kept = (set(after) - {gone}) | set(plan.tasks[gone].after)
    return with_task(plan, position, after=tuple(sorted(kept)))


@examples(150)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 4), st.booleans())
def test_races_are_found_exactly_where_there_are_any(seed, sites, operations, reuse):
    plan = random_plan(seed, sites, operations, reuse)
    assert not racing_pairs(plan, share_bytes_or_buffers)
    cut = without_dependency(plan, random.Random(seed))
    races = racing_pairs(cut, share_bytes_or_buffers)
    assert set(racing_pairs(cut, share_bytes)) <= set(races)
    if not races:
        prove(cut)
        return
    message = fault_of(cut)
    assert "without waiting for it" in message
    second = min(j for _, j in races)  # the first race in the order of positions is the one that is named
    assert message.startswith(f"tasks[{second}]")
    assert any(f"tasks[{i}]" in message.partition(" ")[2] for i, j in races if j == second)


def test_both_kinds_of_cut_occur():
    """The property above is worth nothing unless cuts do and do not matter."""
    outcomes = {
        bool(racing_pairs(without_dependency(random_plan(seed, 4, 3, reuse), random.Random(seed)), share_bytes))
        for seed in range(10) for reuse in (True, False)
    }  # fmt: skip
    assert outcomes == {True, False}


@examples(150)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 4), st.booleans())
def test_no_order_of_tasks_makes_a_proved_plan_wrong(seed, sites, operations, reuse):
    """Any order that keeps to the dependencies, on real numbers at real addresses, one element at a time."""
    rng = random.Random(seed)
    plan = random_plan(seed, sites, operations, reuse)
    if rng.random() < 0.5:
        plan = without_dependency(plan, rng)
        try:
            prove(plan)
        except PlanFault:
            return
    results = {tuple(run(plan, order(plan, rng))) for _ in range(3)}
    assert len(results) == 1


def order(plan, rng):
    done, left = set(), set(range(len(plan.tasks)))
    while left:
        task = rng.choice(sorted(i for i in left if done.issuperset(plan.tasks[i].after)))
        left.remove(task)
        done.add(task)
        yield task


def ordered_addresses(plan, region):
    return sorted(addresses(plan, region))  # row-major, as addresses grow


def run(plan, positions):
    """The bytes of the outputs, where kernels mix all they read into numbers that show any change."""
    memory = {}
    for i, buffer in enumerate(plan.buffers):
        if buffer.role in ("input", "weight"):
            for k, at in enumerate(ordered_addresses(plan, Region(i, buffer.block))):
                memory[at] = hash((buffer.tensor, buffer.block.lower, k))
    for position in positions:
        task = plan.tasks[position]
        results = [[memory.get(a, "garbage") for a in ordered_addresses(plan, r)] for r in reads_of(task)]
        for k, region in enumerate(writes_of(task)):
            places = ordered_addresses(plan, region)
            if isinstance(task, KernelTask):
                function = task.function % plan.operations[task.operation].distinct
                values = [hash((task.operation, function, str(results), n)) for n in range(len(places))]
            elif isinstance(task, AggregateTask):  # none of these plans merges tuples
                values = [sum(v) if "garbage" not in v else "garbage" for v in zip(*results, strict=True)]
            else:
                values = results[k]
            memory.update(zip(places, values, strict=True))
    return [memory.get(a, "garbage") for o in plan.outputs for r in o.regions for a in ordered_addresses(plan, r)]
