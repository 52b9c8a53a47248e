"""The bookkeeping behind the proof, against a model that remembers every element and every access."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.errors import PlanFault
from einc_runtime.plan import proof
from einc_runtime.plan.boxes import StepBudget
from einc_runtime.plan.reachability import TaskAncestors
from einc_runtime.plan.schema import Buffer, FenceTask, Region, Tensor
from einc_runtime.plan.symbolic_memory import SymbolicMemory
from tests.support.handmade_plans import box, two_site_plan
from tests.support.property_examples import examples

EXTENT = 4


def arena(rng):
    """Some buffers of one matrix, at random places of one small arena."""
    tensor = Tensor("t", ("a", "b"), (EXTENT, EXTENT), "f32", "value")
    buffers = []
    for _ in range(rng.randint(2, 7)):
        block = random_block(rng, box((0, EXTENT), (0, EXTENT)))
        buffers.append(Buffer(0, 4 * rng.randrange(16), 0, block, "scratch"))
    return msgspec.structs.replace(two_site_plan(), tensors=(tensor,), buffers=tuple(buffers), memory=(1 << 10,))


def random_block(rng, outer):
    spans = []
    for lo, up in zip(outer.lower, outer.upper, strict=True):
        first = rng.randrange(lo, up)
        spans.append((first, rng.randint(first + 1, up)))
    return box(*spans)


def elements(region):
    spans = zip(region.block.lower, region.block.upper, strict=True)
    return {(region.buffer, e) for e in itertools.product(*(range(lo, up) for lo, up in spans))}


class Model:
    """The same, the plain way."""

    def __init__(self, buffers):
        ends = [b.offset + 4 * len(elements(Region(0, b.block))) for b in buffers]
        pairs = itertools.permutations(range(len(buffers)), 2)
        self.shared = {(i, j) for i, j in pairs if buffers[i].offset < ends[j] and buffers[j].offset < ends[i]}
        self.content = {}
        self.alive = set()
        self.accesses = []  # (task, region, whether it writes)
        self.before = []

    def conflicts(self, region, writes):
        """The tasks that must have ended before a region is touched."""
        return {
            access
            for access, span, wrote in self.accesses
            if (writes or wrote) and (elements(span) & elements(region) or (span.buffer, region.buffer) in self.shared)
        }

    def enter(self, after):
        self.before.append(set(after).union(*(self.before[t] for t in after)))

    def read(self, task, region):
        """The masks by element, or None where it must not be read."""
        if not elements(region) <= self.content.keys() or not self.conflicts(region, False) <= self.before[task]:
            return None
        self.accesses.append((task, region, False))
        return {e: self.content[region.buffer, e] for _, e in elements(region)}

    def write(self, task, region):
        """Whether it may be written; task t puts the mask t + 1."""
        if not self.conflicts(region, True) <= self.before[task]:
            return False
        self.accesses.append((task, region, True))
        if region.buffer not in self.alive:
            self.alive -= {j for i, j in self.shared if i == region.buffer}
            self.alive.add(region.buffer)
            self.content = {k: v for k, v in self.content.items() if k[0] in self.alive}
        self.content.update(dict.fromkeys(elements(region), task + 1))
        return True


def random_steps(bundle, model, rng):
    """(after, read or None, what is found there, write, whether it may), the last one perhaps at fault.

    A task waits for most of what it must wait for: for all of it, or for all but one or two.
    """
    for task in range(40):
        read = None
        present = sorted({b for b, _ in model.content})
        if present and rng.random() < 0.8:
            buffer = rng.choice(present if rng.random() < 0.98 else range(len(bundle.buffers)))
            read = Region(buffer, random_block(rng, bundle.buffers[buffer].block))
            written = sorted(e for b, e in model.content if b == buffer)
            if written and rng.random() < 0.8:  # one element that is there
                read = Region(buffer, box(*((i, i + 1) for i in rng.choice(written))))
        buffer = rng.randrange(len(bundle.buffers))
        write = Region(buffer, random_block(rng, bundle.buffers[buffer].block))
        needed = sorted(model.conflicts(write, True) | (model.conflicts(read, False) if read else set()))
        if needed and rng.random() < 0.1:
            needed = rng.sample(needed, max(0, len(needed) - rng.randint(1, 2)))
        model.enter(needed)
        masks = model.read(task, read) if read else {}
        allowed = masks is not None and model.write(task, write)
        yield tuple(sorted(needed)), read, masks, write, allowed
        if not allowed:
            return


def check(seed, outcomes):
    rng = random.Random(seed)
    bundle = arena(rng)
    steps = list(random_steps(bundle, Model(bundle.buffers), rng))
    ancestors = TaskAncestors([FenceTask(0, "t", after) for after, *_ in steps])
    memory = SymbolicMemory(bundle, ancestors, StepBudget(1 << 20))
    for task, (_, read, masks, write, allowed) in enumerate(steps):
        ancestors.enter(task)
        if masks is None:
            outcomes["read refused"] += 1
            with pytest.raises(PlanFault):
                memory.read(read, "here", task)
            return
        if read is not None:
            outcomes["read"] += 1
            value = memory.read(read, "here", task)
            got = [(e, mask) for block, mask in value for _, e in elements(Region(0, block))]
            assert len(got) == len(masks)
            assert dict(got) == masks
        if not allowed:
            outcomes["write refused"] += 1
            with pytest.raises(PlanFault):
                memory.write(write, [(write.block, task + 1)], "here", task)
            return
        outcomes["write"] += 1
        memory.write(write, [(write.block, task + 1)], "here", task)


@examples(100)
@given(st.integers(0, 10**9))
def test_contents_follow_the_model(seed):
    check(seed, dict.fromkeys(["read", "write", "read refused", "write refused"], 0))


def test_the_model_meets_every_outcome():
    outcomes = dict.fromkeys(["read", "write", "read refused", "write refused"], 0)
    for seed in range(200):
        check(seed, outcomes)
    assert min(outcomes.values()) >= 20, outcomes


@pytest.mark.slow
def test_contents_follow_the_model_at_length():
    outcomes = dict.fromkeys(["read", "write", "read refused", "write refused"], 0)
    for seed in range(20_000):
        check(seed, outcomes)


def memory_of(offsets_and_rows, *afters):
    """The contents of buffers of four columns in one arena, about to run tasks that wait for `afters`."""
    buffers = tuple(Buffer(0, offset, 0, box(rows, (0, 4)), "scratch") for offset, rows in offsets_and_rows)
    tensor = Tensor("t", ("a", "b"), (EXTENT, EXTENT), "f32", "value")
    plan = msgspec.structs.replace(two_site_plan(), tensors=(tensor,), buffers=buffers, memory=(1 << 10,))
    ancestors = TaskAncestors([FenceTask(0, "t", after) for after in afters])
    return SymbolicMemory(plan, ancestors, StepBudget(1 << 20)), ancestors


@pytest.mark.parametrize(("second", "third"), [(0, 32), (32, 0)])
@pytest.mark.parametrize("waits", [True, False])
def test_what_is_left_of_a_buffer_must_be_waited_for(second, third, waits):
    """One half of its bytes goes to a second buffer; a third one that takes the other half must wait for it, too."""
    full, half = ((0, (0, 4)), (second, (0, 2)), (third, (0, 2))), (0, 2)
    memory, ancestors = memory_of(full, (), (0,), (0,) if waits else ())
    blocks = [box((0, 4), (0, 4)), box(half, (0, 4)), box(half, (0, 4))]
    for task in (0, 1):
        ancestors.enter(task)
        memory.write(Region(task, blocks[task]), [(blocks[task], 1)], "here", task)
    ancestors.enter(2)
    if waits:
        memory.write(Region(2, blocks[2]), [(blocks[2], 1)], "here", 2)
        assert memory.read(Region(1, blocks[1]), "here") == [(blocks[1], 1)]
    else:
        with pytest.raises(PlanFault, match=r"that tasks\[0\] uses"):
            memory.write(Region(2, blocks[2]), [(blocks[2], 1)], "here", 2)


@pytest.mark.parametrize("waits", [True, False])
def test_readers_of_what_is_left_of_a_piece_must_be_waited_for(waits):
    full, upper, lower = box((0, 4), (0, 4)), box((0, 2), (0, 4)), box((2, 4), (0, 4))
    memory, ancestors = memory_of([(0, (0, 4))], (), (0,), (1,), (0, 1) if waits else (0,))
    ancestors.enter(0)
    memory.write(Region(0, full), [(full, 1)], "here", 0)
    ancestors.enter(1)
    memory.read(Region(0, full), "here", 1)
    ancestors.enter(2)
    memory.write(Region(0, upper), [(upper, 2)], "here", 2)
    ancestors.enter(3)
    if waits:
        memory.write(Region(0, lower), [(lower, 4)], "here", 3)
        assert sorted(mask for _, mask in memory.read(Region(0, full), "here")) == [2, 4]
    else:
        with pytest.raises(PlanFault, match=r"that tasks\[1\] uses"):
            memory.write(Region(0, lower), [(lower, 4)], "here", 3)


@given(st.integers(0, 10**9))
def test_ancestors_are_those_of_the_whole_relation(seed):
    rng = random.Random(seed)
    tasks = [FenceTask(0, "t", tuple(sorted(rng.sample(range(i), min(i, rng.randint(0, 3)))))) for i in range(40)]
    ancestors = TaskAncestors(tasks)
    before = []
    for position, task in enumerate(tasks):
        before.append(set(task.after).union(*(before[t] for t in task.after)))
        ancestors.enter(position)
        assert {t for t in range(len(tasks)) if ancestors.ended(t)} == before[position]


def test_blocks_agree_where_elements_agree_in_all_dimensions_that_are_not_free():
    rng = random.Random(4)
    seen = set()
    for _ in range(500):
        rank = rng.randint(1, 3)
        a, b = (box(*((low, low + rng.randint(1, 2)) for low in (rng.randrange(3) for _ in range(rank)))) for _ in "ab")
        apart = [rng.random() < 0.3 for _ in range(rank)]
        spans = [[range(low, up) for low, up in zip(x.lower, x.upper, strict=True)] for x in (a, b)]
        expected = any(
            all(free or m == n for m, n, free in zip(first, second, apart, strict=True))
            for first in itertools.product(*spans[0])
            for second in itertools.product(*spans[1])
        )
        assert proof._agree(a, b, apart) == expected
        seen.add(expected)
    assert seen == {True, False}


def test_what_is_counted_twice_is_what_both_have():
    block = box((0, 2))
    assert proof._combine([(block, 0b001)], [(block, 0b110)], "here") == [(block, 0b111)]
    with pytest.raises(PlanFault, match=r"\[0:2\] counts functions \{1\} of its producer twice"):
        proof._combine([(block, 0b011)], [(block, 0b110)], "here")
