"""Validation keeps memory safe whatever numbers a plan has, and takes bounded time and memory itself."""

import random
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.errors import PlanFault
from einc_runtime.plan import task_validation
from einc_runtime.plan import validation as rules
from einc_runtime.plan.schema import (
    Block,
    Buffer,
    Bundle,
    Cost,
    FenceTask,
    Index,
    KernelTask,
    Tensor,
)
from einc_runtime.plan.validation import validate
from tests.support.changed_plans import changed
from tests.support.handmade_plans import box as b
from tests.support.handmade_plans import random_plan, two_site_plan
from tests.support.property_examples import examples

PLAN = two_site_plan()


@examples(60)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 4), st.booleans())
def test_random_plans_are_valid(seed, sites, operations, reuse):
    validate(random_plan(seed, sites, operations, reuse))


NUMBERS = st.sampled_from([-(1 << 63), -2, -1, 0, 1, 2, 3, 4, 7, 15, 16, 100, 1 << 31, (1 << 63) - 1])


def leaves(value, path=()):
    """The paths of all integers in a plan."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield path
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from leaves(getattr(value, field), (*path, field))


@examples(200)
@given(data=st.data())
def test_any_number_may_lie(data):
    """Whatever numbers a plan holds, it is valid or refused; nothing else is raised, and nothing takes long."""
    plan = random_plan(data.draw(st.integers(0, 20)), sites=3, operations=2, reuse=True)
    paths = list(leaves(plan))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths))
        plan = changed(plan, path, data.draw(NUMBERS))
    try:
        validate(plan)
    except PlanFault:
        return
    assert_memory_is_safe(plan)


def assert_memory_is_safe(plan: Bundle):
    """Written apart from `validate`: every byte that a task may touch lies in an arena of the plan's size."""
    width = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "bool": 1}
    for task in plan.tasks:
        fields = {name: getattr(task, name) for name in task.__struct_fields__}
        regions = [*fields.get("reads", ()), *fields.get("writes", ())]
        regions += [fields[name] for name in ("read", "write") if name in fields]
        for region in regions:
            buffer = plan.buffers[region.buffer]
            assert region.buffer >= 0
            first, last, stride = buffer.offset, buffer.offset, width[plan.tensors[buffer.tensor].dtype]
            for d in reversed(range(len(buffer.block.lower))):
                assert buffer.block.lower[d] <= region.block.lower[d] < region.block.upper[d] <= buffer.block.upper[d]
                first += stride * (region.block.lower[d] - buffer.block.lower[d])
                last += stride * (region.block.upper[d] - 1 - buffer.block.lower[d])
                stride *= buffer.block.upper[d] - buffer.block.lower[d]
            assert 0 <= first <= last < plan.memory[buffer.site]


def test_scratch_may_share_bytes_and_nothing_else():
    reused = random_plan(5, sites=3, operations=4, reuse=True)
    spans = [(x.site, x.offset, x.role) for x in reused.buffers]
    assert any(spans.count(span) > 1 for span in spans)
    validate(reused)
    scratch = [i for i, x in enumerate(PLAN.buffers) if x.role == "scratch" and x.site == 0]
    together = changed(PLAN, ["buffers", scratch[1], "offset"], PLAN.buffers[scratch[0]].offset)
    validate(together)
    for role in ("input", "weight", "result"):
        kept = next(i for i, x in enumerate(PLAN.buffers) if x.role == role and x.site == 0)
        with pytest.raises(PlanFault, match="shares bytes"):
            validate(changed(PLAN, ["buffers", scratch[1], "offset"], PLAN.buffers[kept].offset))


def test_overlaps_are_found_as_by_brute_force():
    rng = random.Random(3)
    seen = set()
    for _ in range(400):
        buffers = [
            Buffer(0, rng.randrange(12) * 4, 0, b((0, rng.randint(1, 3))), rng.choice(["scratch", "scratch", "result"]))
            for _ in range(rng.randint(2, 4))
        ]
        ends = [x.offset + 4 * x.block.upper[0] for x in buffers]
        expected = any(
            buffers[i].offset < ends[j] and buffers[j].offset < ends[i]
            and {buffers[i].role, buffers[j].role} != {"scratch"}
            for i in range(len(buffers)) for j in range(i)
        )  # fmt: skip
        try:
            task_validation._check_overlaps(
                buffers, sorted((x.offset, end, i) for i, (x, end) in enumerate(zip(buffers, ends, strict=True)))
            )
            refused = False
        except PlanFault:
            refused = True
        assert refused == expected
        seen.add(refused)
    assert seen == {True, False}


def test_validation_takes_linear_time():
    """Twenty thousand fences, or as many buffers at one place, cost little more each than a thousand do."""

    def seconds(plan):
        times = []
        for _ in range(3):
            start = time.process_time()
            validate(plan)
            times.append(time.process_time() - start)
        return min(times)

    def fences(n):
        return changed(PLAN, ["tasks"], lambda t: (*t, *(FenceTask(0, "y", (i,)) for i in range(n))))

    def crowd(n):
        spare = Buffer(0, PLAN.memory[0], 2, b((0, 4), (0, 2)), "scratch")
        grown = changed(PLAN, ["memory", 0], PLAN.memory[0] + 32)
        return changed(grown, ["buffers"], lambda x: (*x, *[spare] * n))

    for grow in (fences, crowd):
        assert seconds(grow(20_000)) < 20 * 5 * seconds(grow(1_000))


def test_too_many_of_anything_is_refused(monkeypatch):
    monkeypatch.setitem(rules.MAX_COUNTS, "tasks", 11)
    with pytest.raises(PlanFault, match="at most 11"):
        validate(PLAN)
    monkeypatch.setitem(rules.MAX_COUNTS, "buffers", 15)
    monkeypatch.setitem(rules.MAX_COUNTS, "tasks", 12)
    with pytest.raises(PlanFault, match="16 entries"):
        validate(PLAN)


def test_tilings_that_take_long_to_check_are_refused(monkeypatch):
    """Sixteen nested cuts in sixteen dimensions, over and over: a few hundred bytes each."""
    rank = 16
    blocks, lower = [], [0] * rank
    for d in range(rank):
        blocks.append(Block(tuple(lower), tuple(2 if e != d else 1 for e in range(rank))))
        lower[d] = 1
    blocks.append(Block(tuple(lower), (2,) * rank))
    tensor = Tensor("t", tuple("abcdefghijklmnop"), (2,) * rank, "f32", "value")
    operation = PLAN.operations[0]
    function = operation.functions[0]
    scalar, unit = Tensor("x", (), (), "f32", "input"), Block((), ())
    functions = tuple(
        msgspec.structs.replace(function, site=s, inputs=(unit,), outputs=(x,)) for s, x in enumerate(blocks)
    )
    operations = tuple(
        msgspec.structs.replace(
            operation, name=f"o{n}", inputs=(100,), outputs=(n,), cost=Cost(0, 0, 0),
            indices=(Index("i", 17, None, tuple((k, k + 1) for k in range(17))),),
            functions=functions,
        )
        for n in range(100)
    )  # fmt: skip
    plan = msgspec.structs.replace(
        PLAN, devices=tuple(range(17)), memory=(0,) * 17, operations=operations, total_cost=0, outputs=(),
        tensors=(*(msgspec.structs.replace(tensor, name=f"t{n}") for n in range(100)), scalar), buffers=(), tasks=(),
    )  # fmt: skip
    monkeypatch.setattr(rules, "MAX_CORNERS", 1 << 19)
    monkeypatch.setattr(rules, "require_labels", lambda bundle: [])  # no family has such blocks
    with pytest.raises(PlanFault, match="too complex"):
        validate(plan)
    assert 300 * 72 * 2**5 < 1 << 22  # what a model of 300 operators on 72 sites takes at most


def test_kernel_tasks_are_checked_against_their_functions():
    kernels = [i for i, task in enumerate(PLAN.tasks) if isinstance(task, KernelTask)]
    assert kernels
    for i in kernels:
        with pytest.raises(PlanFault):
            validate(changed(PLAN, ["tasks", i, "function"], lambda f: 1 - f))
