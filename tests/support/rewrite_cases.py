"""Plans of tasks without meaning, a plain interpreter of tasks, and a plain search for races.

The interpreter runs one task after the other on bytes of arenas. It counts modulo 7, so that sums are exact in any
order.
"""

from __future__ import annotations

import functools
import random

import msgspec
import numpy as np

from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AggregateTask, Buffer, KernelTask, Region, TransferTask
from tests.support.handmade_plans import Planner, box, two_site_plan

WHOLE = box((0, 4), (0, 4))
TOP = box((0, 2), (0, 4))
LOW = box((2, 4), (0, 4))


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


def task_plan(buffers, tasks):
    """Tasks on 4 by 4 buffers, each given by its site, its offset and its role. Each input is a tensor of its own."""
    base = Planner(3, random.Random(0))
    tensor = base.tensor("v", (4, 4), "value", ("i", "j"))
    dims_of_buffer = [
        base.tensor(f"x{n}", (4, 4), "input", ("i", "j")) if b[2] == "input" else tensor for n, b in enumerate(buffers)
    ]
    bundle = base.bundle()
    return msgspec.structs.replace(
        bundle,
        buffers=tuple(
            Buffer(site, offset, of, box((0, 4), (0, 4)), role)
            for (site, offset, role), of in zip(buffers, dims_of_buffer, strict=True)
        ),
        tasks=tuple(tasks),
        memory=(1 << 12,) * 3,
    )


def whole(buffer):
    return Region(buffer, WHOLE)


def kernel(reads, writes, after):
    return KernelTask(0, "v", tuple(after), operation=0, function=0, reads=tuple(reads), writes=tuple(writes))


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


def interpret(bundle, tasks, loaded, order=None):
    """The saved regions after all tasks have run one by one."""
    return interpreter(bundle, tasks)(loaded, order)


def interpreter(bundle, tasks):
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
            targets[0][...] = values[0] @ values[1]
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
        for sharer in sharing(target):
            rows[sharer] = set(rows[sharer]) if sharer == target else set()
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
    saved = tuple(Region(b, WHOLE) for b in rows if len(rows[b]) == 2 and b >= 4)
    output = msgspec.structs.replace(two_site_plan().outputs[0], tensor=0, regions=saved)
    return msgspec.structs.replace(task_plan(buffers, tasks), operations=(operation,), outputs=(output,))


def random_inputs(bundle, seed):
    """Values for every input of a plan without meaning."""
    rng = np.random.default_rng(seed)
    return {n: rng.integers(0, 7, (4, 4)).astype("f4") for n, b in enumerate(bundle.buffers) if b.role == "input"}


def with_dependencies(tasks, after):
    return [msgspec.structs.replace(task, after=earlier) for task, earlier in zip(tasks, after, strict=True)]


def any_order(after, rng):
    """A random order that keeps the dependencies."""
    left, ready, order = [len(earlier) for earlier in after], [], []
    later = [[] for _ in after]
    for number, earlier in enumerate(after):
        ready += [number] * (not earlier)
        for task in earlier:
            later[task].append(number)
    while ready:
        number = ready.pop(rng.randrange(len(ready)))
        order.append(number)
        for task in later[number]:
            left[task] -= 1
            ready += [task] * (left[task] == 0)
    assert len(order) == len(after)
    return order


def same(computed, expected):
    return all(map(np.array_equal, computed, expected))
