"""What the CPU executor spares: tasks that are changed for it compute what the plan's own do, in every allowed order.

A plain interpreter of tasks stands beside the executor: bytes of arenas, one task after the other. It counts modulo 7,
so that sums are exact in any order. Plans come from the handmade planner, and from a generator of tasks without meaning
that write the same bytes again and again.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cuda.tasks import spared as spared_on_gpus
from einc_runtime.execution.rewrites import accumulation
from einc_runtime.execution.rewrites.accumulation import add_up
from einc_runtime.execution.rewrites.copy_elision import forward
from einc_runtime.execution.rewrites.dependencies import dependencies
from einc_runtime.execution.rewrites.gather_deduplication import share
from einc_runtime.execution.rewrites.move_coalescing import gather
from einc_runtime.kernels.numpy import blas
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AggregateTask, CopyTask, FenceTask, KernelTask, Region, TransferTask
from tests.runtime.execution.test_executor_forwarding import MODELS, TOP, kernel, races, whole
from tests.runtime.execution.test_executor_forwarding import plan_of as task_plan
from tests.support.handmade_plans import box, random_plan, two_site_plan

LOW = box((2, 4), (0, 4))
PLANS = [*itertools.product(range(30), [False, True])]


@pytest.fixture(autouse=True)
def one_chain(monkeypatch):
    """Sums of these plans have two or three parts."""
    monkeypatch.setattr(accumulation, "CHAINS_PER_WORKER", 1)


def plan_of(seed, reuse):
    return random_plan(seed, sites=2 + seed % 7, operations=2 + seed % 5, reuse=reuse)


def small_integers(bundle, seed=0):
    """What the input and weight buffers hold: blocks of one array per tensor."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-1, 2, tensor.shape).astype("f4") for tensor in bundle.tensors]
    return {n: arrays[b.tensor][slices(b.block)] for n, b in enumerate(bundle.buffers) if b.role in ("input", "weight")}


@functools.lru_cache(4096)
def slices(block, origin=None):
    start = block.lower if origin is None else origin.lower
    bounds = zip(block.lower, block.upper, start, strict=True)
    return tuple(slice(lo - first if origin else lo, up - first if origin else up) for lo, up, first in bounds)


def interpret(bundle, tasks, loaded, added=frozenset(), order=None):
    """The saved regions after all tasks have run one by one; `added` are kernels that add to what they write."""
    return interpreter(bundle, tasks, added)(loaded, order)


def interpreter(bundle, tasks, added=frozenset()):
    """The same for one set of tasks, to be run several times."""
    arenas = [np.empty(size, np.uint8) for size in bundle.memory]
    views = []
    for buffer in bundle.buffers:
        shape = [up - lo for lo, up in zip(buffer.block.lower, buffer.block.upper, strict=True)]
        views.append(np.ndarray(shape, "f4", arenas[buffer.site].data, buffer.offset))

    def at(region):
        return views[region.buffer][slices(region.block, bundle.buffers[region.buffer].block)]

    steps = [(list(map(at, reads_of(task))), list(map(at, writes_of(task)))) for task in tasks]
    saved = [at(region) for output in bundle.outputs for region in output.regions]

    def step(number):
        task, (sources, targets) = tasks[number], steps[number]
        values = [source % 7 for source in sources]
        if isinstance(task, KernelTask) and bundle.operations[task.operation].kernel == "contract":
            result = values[0] @ values[1]
            targets[0][...] = targets[0] + result if number in added else result
        elif isinstance(task, KernelTask):
            targets[0][...] = sum(values[1:], values[0]) if len(values) > 1 else np.maximum(values[0], 3)
        elif isinstance(task, AggregateTask):
            targets[0][...] = np.max(values, 0) if task.aggregation == "max" else sum(values[1:], values[0])
        else:
            for value, target in zip(values, targets, strict=True):
                target[...] = value

    def run(loaded, order=None):
        for arena in arenas:
            arena.fill(0xFF)
        for number, values in loaded.items():
            views[number][...] = values
        for number in range(len(tasks)) if order is None else order:
            step(number)
        return [view % 7 for view in saved]

    return run


def meaningless_plan(seed):
    """Matrices of 4 rows in few bytes of three sites; all that is read is there, rows apart, and the last are saved."""
    rng = random.Random(seed)
    places = [(0, 0), (0, 64), (1, 0), (1, 64), (2, 0)] + [(site, 16 * rng.randint(8, 26)) for site in range(3)] * 6
    roles = ["input"] * 4 + ["result"] + ["scratch"] * (len(places) - 5)
    buffers = [(site, offset, role) for (site, offset), role in zip(places, roles, strict=True)]

    def sharing(buffer):
        site, offset, _ = buffers[buffer]
        return [b for b, (s, o, _) in enumerate(buffers) if s == site and abs(o - offset) < 64]

    rows = {number: {0, 1} if role == "input" else set() for number, (_, _, role) in enumerate(buffers)}  # halves
    tasks, moved = [], []

    def regions(numbers, half):
        return tuple(Region(b, box((2 * half[0], 2 * half[-1] + 2), (0, 4))) for b in numbers)

    def there(half, target):
        return [b for b in rows if rows[b].issuperset(half) and b not in sharing(target)]

    def step(kind, target, half, sources):
        if not {*sources} <= {*there(half, target)} or len(sources) < (1 if kind == "move" else 2):
            return
        site, reads, write = buffers[target][0], regions(sources, half), regions([target], half)
        if kind == "product":
            tasks.append(KernelTask(site, "v", (), operation=0, function=0, reads=reads[:2], writes=write))
        elif kind == "move":
            tasks.append(TransferTask(site, "v", (), read=reads[0], write=write[0]))
        else:
            tasks.append(AggregateTask(site, "v", (), aggregation=kind, reads=reads, writes=write))
        for other in sharing(target):
            rows[other] = set(rows[other]) if other == target else set()
        rows[target].update(half)

    for _ in range(25):
        half, targets = rng.choice([(0,), (1,), (0, 1)]), rng.sample(range(4, len(buffers)), 3)
        kind = rng.choice(["move", "again", "again", "sum", "max", "products"])
        sources = rng.sample(there(half, targets[0]), min(len(there(half, targets[0])), 2))
        if kind == "products":  # and what adds them up, at one or two places
            for target in targets[:2]:
                step("product", target, (0, 1), rng.sample(there((0, 1), target), 2))
            for target in targets[2:] + rng.sample(range(4, len(buffers)), rng.randrange(2)):
                step(rng.choice(["sum", "sum", "sum", "max"]), target, (0, 1), targets[:2])
        elif kind == "again" and moved:  # the same, somewhere else
            half, sources = rng.choice(moved[-3:])
            step("move", targets[0], half, sources)
        else:
            step("move" if kind == "again" else kind, targets[0], half, sources)
            moved.append((half, sources))
    operation = msgspec.structs.replace(two_site_plan().operations[0], inputs=(0, 0), outputs=(0,))
    whole = box((0, 4), (0, 4))
    saved = tuple(Region(b, whole) for b in rows if len(rows[b]) == 2 and b >= 4)
    output = msgspec.structs.replace(two_site_plan().outputs[0], tensor=0, regions=saved)
    return msgspec.structs.replace(task_plan(buffers, tasks), operations=(operation,), outputs=(output,))


def numbers(bundle, seed):
    """Other ones for every input of a plan without meaning."""
    rng = np.random.default_rng(seed)
    return {n: rng.integers(0, 7, (4, 4)).astype("f4") for n, b in enumerate(bundle.buffers) if b.role == "input"}


def added_up(bundle, tasks, workers):
    """With all products adding that may."""
    return add_up(bundle, tasks, workers, lambda task, _: bundle.operations[task.operation].kernel == "contract")


def spared(bundle, workers=1):
    """As the executor does it."""
    summed, added = added_up(bundle, forward(bundle), workers)
    if added:
        summed = forward(bundle, summed)
    return gather(bundle, share(bundle, summed)), added


def waiting(tasks, after):
    return [msgspec.structs.replace(task, after=earlier) for task, earlier in zip(tasks, after, strict=True)]


def some_order(after, rng):
    """Any order that keeps to the dependencies."""
    left, ready, order = [len(earlier) for earlier in after], [], []
    later = [[] for _ in after]
    for number, earlier in enumerate(after):
        ready += [number] * (not earlier)
        for one in earlier:
            later[one].append(number)
    while ready:
        number = ready.pop(rng.randrange(len(ready)))
        order.append(number)
        for one in later[number]:
            left[one] -= 1
            ready += [one] * (left[one] == 0)
    assert len(order) == len(after)
    return order


def same(found, expected):
    return all(map(np.array_equal, found, expected))


def variants(bundle):
    """Tasks, and which of them add: as they are, with one change of each kind, and with all."""
    own, nothing = bundle.tasks, frozenset()
    yield from [(own, nothing), (forward(bundle), nothing), (share(bundle, own), nothing)]
    yield gather(bundle, own), nothing
    yield spared_on_gpus(bundle, [0] * len(bundle.memory)), nothing
    yield from [added_up(bundle, own, 1), spared(bundle), spared(bundle, 2)]


def check(bundle, loaded, seed):
    rng, expected = random.Random(seed), interpret(bundle, bundle.tasks, loaded)
    assert not any(np.isnan(region).any() for region in expected)
    for tasks, added in variants(bundle):
        after = dependencies(bundle, tasks)
        assert all(earlier == tuple(sorted(set(earlier))) for earlier in after)
        assert all(one < number for number, earlier in enumerate(after) for one in earlier)
        assert not races(bundle, waiting(tasks, after))
        run = interpreter(bundle, tasks, added)
        assert same(run(loaded), expected)
        for _ in range(3):
            assert same(run(loaded, some_order(after, rng)), expected)


@pytest.mark.parametrize(("seed", "reuse"), PLANS)
def test_changed_tasks_compute_the_same_in_every_order_that_their_bytes_allow(seed, reuse):
    bundle = plan_of(seed, reuse)
    check(bundle, small_integers(bundle, seed), seed)


@pytest.mark.parametrize("first", range(0, 200, 10))
def test_so_do_tasks_without_meaning(first):
    for seed in range(first, first + 10):
        bundle = meaningless_plan(seed)
        check(bundle, numbers(bundle, seed), seed)


def test_cases_that_must_stay_as_they_are():
    """Buffers 0 and 1 are loaded, the others have bytes of their own; 8 is saved."""
    buffers = [(0, 64 * n, "input" if n < 2 else "scratch") for n in range(9)]
    saved = msgspec.structs.replace(two_site_plan().outputs[0], tensor=0, regions=(whole(8),))

    def plan(*tasks):
        return msgspec.structs.replace(task_plan(buffers, tasks), outputs=(saved,))

    def move(source, target):
        return TransferTask(0, "v", (), read=source, write=target)

    def gathered(buffer, source=0):
        return [move(Region(source, TOP), Region(buffer, TOP)), move(Region(source, LOW), Region(buffer, LOW))]

    def fences(bundle):
        return sum(isinstance(task, FenceTask) for task in share(bundle, bundle.tasks))

    both, use = [*gathered(2), *gathered(3)], [move(whole(2), whole(4)), move(whole(3), whole(5))]
    assert fences(plan(*both, *use)) == 2
    early = [move(Region(3, TOP), Region(5, TOP))]  # reads of 3 what is there before 2 is complete
    assert fences(plan(both[2], *early, both[0], both[1], both[3], *use[:1])) == 0
    assert fences(plan(*gathered(2), *gathered(8), move(whole(2), whole(4)), move(whole(8), whole(5)))) == 0
    changed = [move(whole(0), whole(6)), *gathered(2, 6), move(whole(1), whole(6)), *gathered(3, 6)]
    assert fences(plan(*changed, *use)) == 0

    def products(aggregation, *tasks):
        parts = [kernel([whole(0), whole(1)], [whole(n)], []) for n in (2, 3)]
        return plan(
            *parts,
            AggregateTask(0, "v", (), aggregation=aggregation, reads=(whole(2), whole(3)), writes=(whole(4),)),
            *tasks,
        )

    for bundle, count in ((products("sum"), 1), (products("max"), 0), (products("sum", move(whole(2), whole(5))), 0)):
        assert len(add_up(bundle, bundle.tasks, 1, lambda *_: True)[1]) == count


def test_on_one_gpu_a_buffer_is_moved_to_at_once_and_several_gpus_keep_to_the_plan():
    moves = Counter()
    for seed, reuse in PLANS:
        bundle = plan_of(seed, reuse)
        sites = len(bundle.memory)
        for case, devices in (("one", [0] * sites), ("several", [site % 2 for site in range(sites)])):
            tasks = spared_on_gpus(bundle, devices)
            moves[case] += sum(isinstance(task, TransferTask | CopyTask) for task in tasks)
            if case == "several" and sites > 1:
                own, waits = forward(bundle, devices=devices), [task.after for task in tasks]
                assert waiting(own, waits) == list(tasks)
                assert all({*one.after} <= {*after} for one, after in zip(own, waits, strict=True))
                assert not races(bundle, tasks)
                continue
            assert [task.after for task in tasks] == [*dependencies(bundle, tasks)]
            for task in tasks:
                if isinstance(task, CopyTask):
                    assert {bundle.buffers[region.buffer].site for region in task.writes} == {task.site}
    assert 0 < moves["one"] < moves["several"] / 2, moves


def test_each_kind_of_sparing_happens_in_these_plans():
    kinds, adding = Counter(), 0
    for seed, reuse in PLANS:
        bundle = plan_of(seed, reuse)
        tasks, added = spared(bundle)
        adding += len(added)
        forwarded = forward(bundle)
        kinds["shared"] += sum(isinstance(t, FenceTask) for t in share(bundle, forwarded))
        kinds["shared"] -= sum(isinstance(t, FenceTask) for t in forwarded)
        kinds["sums"] += sum(isinstance(t, AggregateTask) for t in bundle.tasks)
        kinds["sums left"] += sum(isinstance(t, AggregateTask) for t in tasks)
    assert kinds["shared"] > 100
    assert adding > 30
    assert kinds["sums left"] < 0.9 * kinds["sums"], kinds


@pytest.mark.parametrize("seed", range(10))
def test_dependencies_are_all_needed_or_follow_from_others(seed):
    """A dependency that no bytes ask for is found by leaving it out: no race comes of that."""
    bundle = plan_of(seed, True)
    after = dependencies(bundle, bundle.tasks)
    before = []
    for earlier in after:
        before.append(set(earlier).union(*(before[one] for one in earlier)))
    needed = races(bundle, waiting(bundle.tasks, [()] * len(after)))
    for number, earlier in enumerate(after):
        for one in earlier:
            assert any(a in (before[one] | {one}) and b == number for a, b in needed)


def test_the_checks_see_what_is_wrong():
    bundle = two_site_plan()
    tasks, added = spared(bundle)
    after = dependencies(bundle, tasks)
    assert races(bundle, waiting(tasks, [*after[:-1], ()]))
    cases = [
        (arrays, interpret(bundle, bundle.tasks, arrays)) for arrays in (small_integers(bundle, n) for n in range(9))
    ]
    assert added
    assert not all(same(interpret(bundle, tasks, arrays), expected) for arrays, expected in cases)  # nobody adds
    for order in (range(len(tasks)), reversed(range(len(tasks)))):
        found = [interpret(bundle, tasks, arrays, added, order) for arrays, _ in cases]
        assert all(map(same, found, [expected for _, expected in cases])) == (order == range(len(tasks)))


@pytest.mark.parametrize("seed", range(12))
def test_the_executor_adds_products_and_gives_the_same_bits_every_time(seed, monkeypatch):
    monkeypatch.setattr(blas, "SMALL", 0)
    bundle, rng = plan_of(seed, seed % 2 == 0), random.Random(seed)
    regions, bits = [region for output in bundle.outputs for region in output.regions], set()
    for ranks in (None, [rng.random() for _ in bundle.tasks], [rng.random() for _ in bundle.tasks]):
        executor = CpuExecutor(bundle, 1 + seed % 2, poison=True, ranks=ranks)
        for number, values in small_integers(bundle, seed).items():
            executor.fill(number, values + values / 3)
        for _ in range(2):
            executor.execute()
            bits.add(tuple(executor.fetch(region).tobytes() for region in regions))
    assert len(bits) == 1


@pytest.mark.parametrize(("name", "sites"), [*itertools.product(["ffn", "chain_a", "llama_block"], [4, 7])])
def test_compiled_plans_have_no_races_however_they_are_changed(name, sites):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    small = {
        "ffn": {"tokens": 8, "d_model": 10, "d_ff": 12},
        "chain_a": {"scale": 1500},
        "llama_block": {"d_model": 8, "heads_q": 4, "heads_kv": 2, "d_head": 4, "d_ff": 12, "seq_lens": "[6]"},
    }[name]
    definitions = tuple((key, str(value)) for key, value in small.items())
    options = CompileOptions(machine="host", devices=sites, definitions=definitions, dtype="f32")
    bundle = compile_model((MODELS / f"{name}.ein").read_text(), name, options).bundle
    for tasks in (bundle.tasks, spared(bundle)[0]):
        assert not races(bundle, waiting(tasks, dependencies(bundle, tasks)))
