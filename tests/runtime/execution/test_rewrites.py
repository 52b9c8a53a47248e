"""Task rewrites: the tasks that an executor runs compute what the plan's own tasks do, in every allowed order.

Plans come from the handmade planner, and from a generator of tasks without meaning that write the same bytes again and
again. A plain interpreter of tasks says what they compute.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cuda.preparation import rewrite_for_devices
from einc_runtime.execution.rewrites import MAX_COALESCED_BYTES, RewriteOptions, rewrite
from einc_runtime.execution.rewrites.copy_elision import elide_copies
from einc_runtime.execution.rewrites.deduplication import deduplicate
from einc_runtime.execution.rewrites.dependencies import find_dependencies
from einc_runtime.execution.rewrites.kernel_splitting import KernelTime
from einc_runtime.execution.rewrites.move_coalescing import coalesce_moves
from einc_runtime.kernels.numpy import products
from einc_runtime.plan.schema import Block, CopyTask, FenceTask, Region, TransferTask
from tests.support.compiled_plans import MODELS
from tests.support.handmade_plans import random_plan, two_site_plan
from tests.support.rewrite_cases import (
    LOW,
    TOP,
    any_order,
    box,
    interpret,
    interpreter,
    kernel,
    meaningless_plan,
    races,
    random_inputs,
    small_integers,
    task_plan,
    whole,
    with_dependencies,
)
from tests.support.sampling import first

PLANS = [*itertools.product(range(30), [False, True])]


def plan_of(seed, reuse):
    return random_plan(seed, sites=2 + seed % 7, operations=2 + seed % 5, reuse=reuse)


def rewritten(bundle, workers=1):
    """The tasks as the CPU executor runs them but for split kernels, with fences."""
    options = RewriteOptions(max_move_bytes=MAX_COALESCED_BYTES, keep_fences=True, workers=workers)
    items = rewrite(bundle, options)
    assert [item.origin for item in items] == list(range(len(bundle.tasks)))
    return tuple(item.task for item in items)


def same(found, expected):
    return all(map(np.array_equal, found, expected))


def variants(bundle):
    """Tasks as they are, with one pass of each kind, and with all."""
    own = bundle.tasks
    yield from [own, elide_copies(bundle, own), deduplicate(bundle, own)]
    yield coalesce_moves(bundle, own, MAX_COALESCED_BYTES)
    yield rewrite_for_devices(bundle, [0] * len(bundle.memory))
    yield from [rewritten(bundle), rewritten(bundle, 2)]


def check(bundle, loaded, seed):
    rng, expected = random.Random(seed), interpret(bundle, bundle.tasks, loaded)
    assert not any(np.isnan(region).any() for region in expected)
    for tasks in variants(bundle):
        after = find_dependencies(bundle, tasks)
        assert all(earlier == tuple(sorted(set(earlier))) for earlier in after)
        assert all(one < number for number, earlier in enumerate(after) for one in earlier)
        assert not races(bundle, with_dependencies(tasks, after))
        run = interpreter(bundle, tasks)
        assert same(run(loaded), expected)
        for _ in range(3):
            assert same(run(loaded, any_order(after, rng)), expected)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("seed", "reuse"), PLANS)
def test_rewritten_tasks_compute_the_same_in_every_order_that_their_bytes_allow(seed, reuse):
    bundle = plan_of(seed, reuse)
    check(bundle, small_integers(bundle, seed), seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("start", first(10, range(0, 200, 10)))
def test_rewritten_tasks_without_meaning_compute_the_same(start):
    for seed in range(start, start + 10):
        bundle = meaningless_plan(seed)
        check(bundle, random_inputs(bundle, seed), seed)


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
        return sum(isinstance(task, FenceTask) for task in deduplicate(bundle, bundle.tasks))

    both, use = [*gathered(2), *gathered(3)], [move(whole(2), whole(4)), move(whole(3), whole(5))]
    assert fences(plan(*both, *use)) == 2
    early = [move(Region(3, TOP), Region(5, TOP))]  # reads of 3 what is there before 2 is complete
    assert fences(plan(both[2], *early, both[0], both[1], both[3], *use[:1])) == 0
    assert fences(plan(*gathered(2), *gathered(8), move(whole(2), whole(4)), move(whole(8), whole(5)))) == 0
    changed = [move(whole(0), whole(6)), *gathered(2, 6), move(whole(1), whole(6)), *gathered(3, 6)]
    assert fences(plan(*changed, *use)) == 0

    def computed(*targets, sources=(0, 1)):
        return [kernel([whole(source) for source in sources], [whole(target)], []) for target in targets]

    assert fences(plan(*computed(2, 3), *use)) == 1
    follow = [*computed(2, 3), *computed(6, sources=(2, 1)), *computed(7, sources=(3, 1))]
    assert fences(plan(*follow, move(whole(6), whole(4)), move(whole(7), whole(5)))) == 2
    assert fences(plan(*computed(2), *computed(3, sources=(1, 0)), *use)) == 0
    assert fences(plan(*computed(2, 8), move(whole(2), whole(4)), move(whole(8), whole(5)))) == 0  # 8 is saved
    assert fences(plan(*computed(2, 3), use[0], *gathered(2, 1), use[1])) == 0  # 2 is written again
    between = [move(whole(0), whole(6)), *computed(2, sources=(6, 1)), move(whole(1), whole(6))]
    assert fences(plan(*between, *computed(3, sources=(6, 1)), *use)) == 0


def test_on_one_gpu_a_buffer_is_moved_to_at_once_and_several_gpus_keep_to_the_plan():
    moves = Counter()
    for seed, reuse in PLANS:
        bundle = plan_of(seed, reuse)
        sites = len(bundle.memory)
        for case, devices in (("one", [0] * sites), ("several", [site % 2 for site in range(sites)])):
            tasks = rewrite_for_devices(bundle, devices)
            moves[case] += sum(isinstance(task, TransferTask | CopyTask) for task in tasks)
            if case == "several" and sites > 1:
                own = elide_copies(bundle, bundle.tasks, devices, [(0, 1), (1, 0)])
                waits = [task.after for task in tasks]
                assert with_dependencies(own, waits) == list(tasks)
                assert all({*one.after} <= {*after} for one, after in zip(own, waits, strict=True))
                assert not races(bundle, tasks)
                continue
            assert [task.after for task in tasks] == [*find_dependencies(bundle, tasks)]
            for task in tasks:
                if isinstance(task, CopyTask):
                    assert {bundle.buffers[region.buffer].site for region in task.writes} == {task.site}
    assert 0 < moves["one"] < moves["several"] / 2, moves


def test_each_pass_changes_some_of_these_plans():
    kinds = Counter()
    for seed, reuse in PLANS:
        bundle = plan_of(seed, reuse)
        elided = elide_copies(bundle, bundle.tasks)
        kinds["deduplicated"] += sum(isinstance(t, FenceTask) for t in deduplicate(bundle, elided))
        kinds["deduplicated"] -= sum(isinstance(t, FenceTask) for t in elided)
        kinds["coalesced"] += sum(isinstance(t, CopyTask) for t in rewritten(bundle))
    assert kinds["deduplicated"] > 100
    assert kinds["coalesced"] > 30, kinds


@pytest.mark.parametrize("seed", range(10))
def test_dependencies_are_all_needed_or_follow_from_others(seed):
    """A dependency that no bytes ask for is found by leaving it out: no race comes of that."""
    bundle = plan_of(seed, True)
    after = find_dependencies(bundle, bundle.tasks)
    before = []
    for earlier in after:
        before.append(set(earlier).union(*(before[one] for one in earlier)))
    needed = races(bundle, with_dependencies(bundle.tasks, [()] * len(after)))
    for number, earlier in enumerate(after):
        for one in earlier:
            assert any(a in (before[one] | {one}) and b == number for a, b in needed)


@pytest.mark.parametrize("shape", [(1500, 1), (40, 30)])
def test_many_small_copies_take_time_in_proportion_to_their_number(shape, monkeypatch):
    """Every element is moved to and fro; then rows, columns and the whole are moved, which takes all of them along."""
    (rows, columns), count = shape, shape[0] * shape[1]
    blocks = [box((i, i + 1), (j, j + 1)) for i in range(rows) for j in range(columns)]
    bundle = task_plan([(0, 0, "scratch"), (0, 4 * count, "scratch")], [])
    buffers = tuple(msgspec.structs.replace(buffer, block=box((0, rows), (0, columns))) for buffer in bundle.buffers)
    bundle = msgspec.structs.replace(bundle, buffers=buffers)
    tasks = [TransferTask(0, "v", (), read=Region(one, b), write=Region(1 - one, b)) for one in (0, 1) for b in blocks]
    larger = [box((7, 8), (0, columns)), box((0, rows), (columns // 2, columns)), box((0, rows), (0, columns))]
    tasks += [CopyTask(0, "v", (), reads=(Region(0, block),), writes=(Region(1, block),)) for block in larger]
    compared, overlaps = itertools.count(), Block.overlaps
    monkeypatch.setattr(Block, "overlaps", lambda one, other: next(compared) >= 0 and overlaps(one, other))
    after = find_dependencies(bundle, tasks)
    assert next(compared) < 10 * count * columns  # a hundred times as many where each access is compared with all
    monkeypatch.undo()
    for number in range(count):
        assert after[number] == ()
        assert after[count + number] == (number,)
    for number, block in enumerate(larger, 2 * count):
        back = {count + at for at, one in enumerate(blocks) if block.overlaps(one)}
        assert back - {other for earlier in after[2 * count : number] for other in earlier} <= set(after[number])
        assert {n for n in after[number] if n >= count} <= back | {*range(2 * count, number)}


def test_the_checks_see_what_is_wrong():
    bundle = two_site_plan()
    tasks = rewritten(bundle)
    after = find_dependencies(bundle, tasks)
    assert races(bundle, with_dependencies(tasks, [*after[:-1], ()]))
    cases = [
        (arrays, interpret(bundle, bundle.tasks, arrays)) for arrays in (small_integers(bundle, n) for n in range(9))
    ]
    for order in (range(len(tasks)), reversed(range(len(tasks)))):
        found = [interpret(bundle, tasks, arrays, order) for arrays, _ in cases]
        assert all(map(same, found, [expected for _, expected in cases])) == (order == range(len(tasks)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_the_executor_gives_the_same_bits_in_every_order(seed, monkeypatch):
    monkeypatch.setattr(products, "MIN_LIBRARY_PRODUCTS", 0)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "sites"), [*itertools.product(["ffn", "chain_a", "llama_block"], [4, 7])])
def test_compiled_plans_have_no_races_after_rewrites(name, sites):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    small = {
        "ffn": {"tokens": 8, "d_model": 10, "d_ff": 12},
        "chain_a": {"scale": 1500},
        "llama_block": {"d_model": 8, "heads_q": 4, "heads_kv": 2, "d_head": 4, "d_ff": 12, "seq_lens": "[6]"},
    }[name]
    definitions = tuple((key, str(value)) for key, value in small.items())
    options = CompileOptions(machine="host", selector="eindecomp", devices=sites, definitions=definitions, dtype="f32")
    bundle = compile_model((MODELS / f"{name}.ein").read_text(), name, options).bundle
    for tasks in (bundle.tasks, rewritten(bundle)):
        assert not races(bundle, with_dependencies(tasks, find_dependencies(bundle, tasks)))


STEP = """
model m
dim n = 6
dim d = 8
input x : f32[n, d]
input t : f32[n, d]
weight w : f32[d, d]
weight v : f32[d, d]
h = tanh(matmul(x, w))
e = matmul(h, v) - t
q = e * e
loss[] = sum[i, j](q[i, j])
output loss
"""


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_parts_of_tasks_that_write_over_states_wait_for_each_other(optimizer, workers):
    """A state and what takes its place are one memory, of which every part changes a part."""
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    options = CompileOptions(machine="host", selector="eindecomp", devices=1, train="loss", optimizer=optimizer)
    bundle = compile_model(STEP, "m", options).bundle
    options = RewriteOptions(workers=workers, estimate=lambda _: KernelTime(1e9))
    tasks = [item.task for item in rewrite(bundle, options)]
    states = {number for number, buffer in enumerate(bundle.buffers) if buffer.role == "state"}
    assert sum(region.buffer in states for task in tasks for region in task.writes) > 2 * workers
    assert not races(bundle, tasks)
