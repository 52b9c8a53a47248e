"""The bookkeeping behind the proof, against a model that remembers every element and every access."""

import itertools
import random

import msgspec
import pytest
from handmade_plans import box, two_site_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.boxes import Budget
from runtime.bundle import Buffer, FenceTask, Region, Tensor
from runtime.contents import Contents
from runtime.errors import PlanFault
from runtime.ordering import Ordering

EXTENT = 6


def arena(rng):
    """Some buffers of one matrix, at random places of one small arena."""
    tensor = Tensor("t", ("a", "b"), (EXTENT, EXTENT), "f32", "value")
    buffers = []
    for _ in range(rng.randint(2, 5)):
        block = random_block(rng, box((0, EXTENT), (0, EXTENT)))
        buffers.append(Buffer(0, 4 * rng.randrange(12), 0, block, "scratch"))
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

    def __init__(self, buffers, tasks):
        ends = [b.offset + 4 * len(elements(Region(0, b.block))) for b in buffers]
        pairs = itertools.permutations(range(len(buffers)), 2)
        self.shared = {(i, j) for i, j in pairs if buffers[i].offset < ends[j] and buffers[j].offset < ends[i]}
        self.content = {}
        self.alive = set()
        self.accesses = []  # (task, region, whether it writes)
        self.before = []
        for task in tasks:
            self.before.append(set(task.after).union(*(self.before[t] for t in task.after)))

    def conflicts(self, task, region, writes):
        for other, place, wrote in self.accesses:
            touch = elements(place) & elements(region) or (place.buffer, region.buffer) in self.shared
            if touch and (writes or wrote) and other not in self.before[task]:
                return True
        return False

    def read(self, task, region):
        """The masks by element, or None where it must not be read."""
        if not elements(region) <= self.content.keys() or self.conflicts(task, region, False):
            return None
        self.accesses.append((task, region, False))
        return {e: self.content[region.buffer, e] for _, e in elements(region)}

    def write(self, task, region, masks):
        if self.conflicts(task, region, True):
            return False
        self.accesses.append((task, region, True))
        if region.buffer not in self.alive:
            self.alive -= {j for i, j in self.shared if i == region.buffer}
            self.alive.add(region.buffer)
            self.content = {k: v for k, v in self.content.items() if k[0] in self.alive}
        self.content.update({(region.buffer, e): mask for e, mask in masks.items()})
        return True


def step(bundle, model, contents, rng, task, outcomes):
    """One read and one write; False after the first fault, which both must see or neither."""
    masks = None
    present = sorted({b for b, _ in model.content})
    if present and rng.random() < 0.8:
        buffer = rng.choice(present if rng.random() < 0.95 else range(len(bundle.buffers)))
        region = Region(buffer, random_block(rng, bundle.buffers[buffer].block))
        written = sorted(e for b, e in model.content if b == buffer)
        if written and rng.random() < 0.7:  # one element that is there
            region = Region(buffer, box(*((i, i + 1) for i in rng.choice(written))))
        masks = model.read(task, region)
        try:
            found = contents.read(region, "here", task)
        except PlanFault:
            outcomes["read refused"] += 1
            assert masks is None
            return False
        assert masks is not None
        got = [(e, mask) for block, mask in found for _, e in elements(Region(0, block))]
        assert len(got) == len(masks)
        assert dict(got) == masks
        outcomes["read"] += 1
    buffer = rng.randrange(len(bundle.buffers))
    region = Region(buffer, random_block(rng, bundle.buffers[buffer].block))
    allowed = model.write(task, region, {e: task + 1 for _, e in elements(region)})
    try:
        contents.write(region, [(region.block, task + 1)], "here", task)
    except PlanFault:
        outcomes["write refused"] += 1
        assert not allowed
        return False
    assert allowed
    outcomes["write"] += 1
    return True


def check(seed, outcomes):
    rng = random.Random(seed)
    bundle = arena(rng)
    tasks = []
    for i in range(30):
        after = (i - 1,) if i and rng.random() < 0.9 else sorted(rng.sample(range(i), rng.randint(0, i)))
        tasks.append(FenceTask(0, "t", tuple(after)))
    ordering = Ordering(tasks)
    model, contents = Model(bundle.buffers, tasks), Contents(bundle, ordering, Budget(1 << 20))
    for position in range(len(tasks)):
        ordering.enter(position)
        if not step(bundle, model, contents, rng, position, outcomes):
            return


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_contents_follow_the_model(seed):
    check(seed, dict.fromkeys(["read", "write", "read refused", "write refused"], 0))


def test_the_model_meets_every_outcome():
    outcomes = dict.fromkeys(["read", "write", "read refused", "write refused"], 0)
    for seed in range(500):
        check(seed, outcomes)
    assert min(outcomes.values()) >= 50, outcomes


@pytest.mark.slow
def test_contents_follow_the_model_at_length():
    outcomes = dict.fromkeys(["read", "write", "read refused", "write refused"], 0)
    for seed in range(20_000):
        check(seed, outcomes)


@given(st.integers(0, 10**9))
def test_ancestors_are_those_of_the_whole_relation(seed):
    rng = random.Random(seed)
    tasks = [FenceTask(0, "t", tuple(sorted(rng.sample(range(i), min(i, rng.randint(0, 3)))))) for i in range(40)]
    ordering = Ordering(tasks)
    before = []
    for position, task in enumerate(tasks):
        before.append(set(task.after).union(*(before[t] for t in task.after)))
        ordering.enter(position)
        assert {t for t in range(len(tasks)) if ordering.ended(t)} == before[position]
