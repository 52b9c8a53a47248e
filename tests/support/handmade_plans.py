"""Small bundles made without the compiler: a random plan generator, with naive exchanges and a memory plan of its own.

It is written apart from the compiler on purpose, so that the runtime's checks meet plans from two sources.
"""

from __future__ import annotations

import itertools
import math
import random

import msgspec

from einc_runtime.plan.schema import (
    ITEMSIZE,
    AggregateTask,
    AnyTask,
    Block,
    Buffer,
    Bundle,
    CopyTask,
    Cost,
    Function,
    Index,
    KernelTask,
    Operation,
    Output,
    Region,
    Tensor,
    TransferTask,
)
from einc_runtime.plan.work import ProductWork


def box(*spans):
    return Block(tuple(lo for lo, _ in spans), tuple(up for _, up in spans))


def intersection(a, b):
    lower, upper = tuple(map(max, a.lower, b.lower)), tuple(map(min, a.upper, b.upper))
    return Block(lower, upper) if all(lo < up for lo, up in zip(lower, upper, strict=True)) else None


def volume(block):
    total = 1
    for lo, up in zip(block.lower, block.upper, strict=True):
        total *= up - lo
    return total


def intervals(extent, count):
    bounds = [k * extent // count for k in range(count + 1)]
    return tuple(itertools.pairwise(bounds))


class Planner:
    """Grows a plan operation by operation; every operation's tensors are matrices."""

    def __init__(self, sites, rng, dtype="f32"):
        self.sites, self.rng, self.dtype = sites, rng, dtype
        self.tensors, self.operations, self.buffers, self.tasks = [], [], [], []
        self.outputs = []
        self.copies = {}  # tensor -> [Region]
        self.replicated = set()  # tensors that several sites compute
        self.writers = {}  # buffer -> [(task, block)]

    def tensor(self, name, shape, kind, dims):
        self.tensors.append(Tensor(name, dims, shape, self.dtype, kind))
        self.copies[len(self.tensors) - 1] = []
        return len(self.tensors) - 1

    def buffer(self, site, tensor, block, role):
        self.buffers.append(Buffer(site, 0, tensor, block, role))
        self.writers[len(self.buffers) - 1] = []
        return len(self.buffers) - 1

    def task(self, kind, site, serves, reads, writes, **fields):
        after = set()
        for region in reads:
            for task, block in self.writers[region.buffer]:
                if intersection(block, region.block):
                    after.add(task)
        position = len(self.tasks)
        for region in writes:
            self.writers[region.buffer].append((position, region.block))
        if kind in (KernelTask, CopyTask, AggregateTask):
            fields.update(reads=tuple(reads), writes=tuple(writes))
        else:
            fields.update(read=reads[0], write=writes[0])
        self.tasks.append(kind(site=site, serves=serves, after=tuple(sorted(after)), **fields))

    def gather(self, tensor, block, site, serves, role="scratch"):
        """A region at `site` with the aggregated `block`, brought there from wherever its copies are."""
        if self.tensors[tensor].kind != "value":
            return Region(self.buffer(site, tensor, block, self.tensors[tensor].kind), block)
        target = self.buffer(site, tensor, block, role)
        for source in dict.fromkeys(region.block for region in self.copies[tensor]):
            part = intersection(source, block)
            if part is None:
                continue
            regions = []
            copies = [region for region in self.copies[tensor] if region.block == source]
            if tensor in self.replicated:
                near = [copy for copy in copies if self.buffers[copy.buffer].site == site]
                copies = near or [self.rng.choice(copies)]
            for copy in copies:
                home = self.buffers[copy.buffer].site
                if home == site:
                    regions.append(Region(copy.buffer, part))
                else:
                    landing = Region(self.buffer(site, tensor, part, "scratch"), part)
                    self.task(TransferTask, home, serves, [Region(copy.buffer, part)], [landing])
                    regions.append(landing)
            self.rng.shuffle(regions)
            target_part = Region(target, part)
            if len(regions) == 1:
                self.task(CopyTask, site, serves, regions, [target_part])
            elif self.rng.random() < 0.3 and len(regions) > 2:  # in two steps
                half = Region(self.buffer(site, tensor, part, "scratch"), part)
                self.task(AggregateTask, site, serves, regions[:2], [half], aggregation="sum")
                self.task(AggregateTask, site, serves, [half, *regions[2:]], [target_part], aggregation="sum")
            else:
                self.task(AggregateTask, site, serves, regions, [target_part], aggregation="sum")
        return Region(target, block)

    def operation(self, name, kernel, attributes, indices, cuts, inputs, input_dims, result, result_dims, replicas=1):
        """One operation whose dimensions follow its indices; `cuts` counts the intervals of each."""
        spans = {index: intervals(extent, cuts[index]) for index, extent in indices.items()}
        functions = []
        every = list(itertools.product(*spans.values())) * replicas
        if replicas > 1:
            self.replicated.add(result)
        for site, chosen in zip(self.rng.sample(range(self.sites), len(every)), every, strict=True):
            at = dict(zip(indices, chosen, strict=True))
            blocks = tuple(box(*(at[d] for d in dims)) for dims in input_dims)
            counted = 2 * math.prod(upper - lower for lower, upper in chosen), 4 * sum(map(volume, blocks))
            work = None
            if kernel == "contract":  # i j, j k -> i k
                rows, depth, columns = (upper - lower for lower, upper in chosen)
                work = ProductWork(1, rows, columns, depth)
            functions.append(Function(site, blocks, (box(*(at[d] for d in result_dims)),), *counted, work))
        meaning = {
            "indices": attributes.get("indices") or attributes["equation"],
            "dims": list(self.tensors[result].dims),
            "program": attributes.get("program", "t0 = mul x0 x1"),
            "aggregation": "sum" if set(indices) - set(result_dims) else "",
        }
        self.operations.append(
            Operation(
                name, name, "equation", meaning, None, tuple(inputs), (result,), ("sum",), (), kernel, attributes,
                tuple(Index(index, extent, None, spans[index]) for index, extent in indices.items()),
                Cost(0, 1, 2), tuple(functions), None, replicas=replicas,
            )
        )  # fmt: skip
        for f, function in enumerate(functions):
            reads = [self.gather(t, b, function.site, name) for t, b in zip(inputs, function.inputs, strict=True)]
            write = Region(self.buffer(function.site, result, function.outputs[0], "scratch"), function.outputs[0])
            number = len(self.operations) - 1
            self.task(KernelTask, function.site, name, reads, [write], operation=number, function=f)
            self.copies[result].append(write)

    def save(self, tensor):
        name = self.tensors[tensor].name
        blocks = list(dict.fromkeys(region.block for region in self.copies[tensor]))
        regions = [self.gather(tensor, b, self.rng.randrange(self.sites), name, role="result") for b in blocks]
        self.outputs.append(Output(tensor, tuple(regions), None))

    def place(self, reuse):
        """Offsets, first fit; with `reuse`, scratch bytes serve again, and tasks wait for it. Returns arena sizes."""
        accesses = {b: [] for b in range(len(self.buffers))}
        for position, task in enumerate(self.tasks):
            for region in [*reads_of(task), *writes_of(task)]:
                accesses[region.buffer].append(position)
        after = [set(task.after) for task in self.tasks]
        placed = []  # (site, lo, up, first, last, buffer)
        memory = [0] * self.sites
        kept = [b for b, buffer in enumerate(self.buffers) if buffer.role != "scratch"]
        scratch = [b for b, buffer in enumerate(self.buffers) if buffer.role == "scratch"]
        for b in [*kept, *sorted(scratch, key=lambda b: accesses[b][0])]:
            buffer = self.buffers[b]
            width = ITEMSIZE[self.dtype]
            size = volume(buffer.block) * width
            lives = (0, len(self.tasks)) if b in kept or not reuse else (accesses[b][0], accesses[b][-1])
            blocked = [p for p in placed if p[0] == buffer.site and p[3] <= lives[1] and lives[0] <= p[4]]
            lo = 0
            for _, start, end, *_ in sorted(blocked, key=lambda p: p[1]):
                if lo + size <= start:
                    break
                lo = max(lo, end)
            for site, start, end, _, last, earlier in placed:
                if site == buffer.site and start < lo + size and lo < end:
                    assert last < lives[0]
                    for writer, _ in self.writers[b]:
                        after[writer].update(accesses[earlier])
            placed.append((buffer.site, lo, lo + size, *lives, b))
            memory[buffer.site] = max(memory[buffer.site], lo + size)
            self.buffers[b] = msgspec.structs.replace(buffer, offset=lo)
        self.tasks = [
            msgspec.structs.replace(task, after=tuple(sorted(a))) for task, a in zip(self.tasks, after, strict=True)
        ]
        return tuple(memory)

    def bundle(self, reuse=False):
        memory = self.place(reuse)
        return Bundle(
            producer="handmade", model="m", machine="host", machine_file="{}", devices=tuple(range(self.sites)),
            selector="eindecomp", schedule="naive", total_cost=3 * len(self.operations),
            tensors=tuple(self.tensors), operations=tuple(self.operations), buffers=tuple(self.buffers),
            tasks=tuple(self.tasks), outputs=tuple(self.outputs), memory=memory, predicted_ms=0.25,
            report=b"\0\0\0\0 is not read",
        )  # fmt: skip


def reads_of(task: AnyTask):
    return getattr(task, "reads", ()) or ((task.read,) if hasattr(task, "read") else ())


def writes_of(task: AnyTask):
    return getattr(task, "writes", ()) or ((task.write,) if hasattr(task, "write") else ())


def _cuts(rng, indices, sites):
    cuts, left = {}, sites
    for name, extent in rng.sample(sorted(indices.items()), len(indices)):
        cuts[name] = rng.randint(1, min(left, extent, 3))
        left //= cuts[name]
    return cuts


def _replicas(rng, cuts, sites, summed=()):
    """On how many sites the same blocks are computed: on one, unless no copies of them are partial."""
    if any(cuts[name] > 1 for name in summed) or rng.random() < 0.7:
        return 1
    return rng.randint(1, sites // math.prod(cuts.values()))


def random_plan(seed, sites=4, operations=3, reuse=False, dtype="f32"):
    """Matrix products, relus and sums of earlier values, cut at random, some computed by several sites.

    The last value is saved, and another one.
    """
    rng = random.Random(seed)
    planner = Planner(sites, rng, dtype)
    rows = rng.randint(2, 5)
    shapes = {planner.tensor("x", (rows, rng.randint(2, 5)), "input", ("r", "c0")): None}
    values = list(shapes)
    for number in range(operations):
        source = rng.choice(values)
        shape = planner.tensors[source].shape
        kind = rng.choice(["matmul", "relu", "add"])
        name = f"v{number}"
        if kind == "matmul":
            wide = rng.randint(2, 5)
            weight = planner.tensor(f"w{number}", (shape[1], wide), "weight", ("a", f"c{number + 1}"))
            result = planner.tensor(name, (shape[0], wide), "value", ("r", f"c{number + 1}"))
            indices = {"i": shape[0], "j": shape[1], "k": wide}
            cuts = _cuts(rng, indices, sites)
            planner.operation(
                name, "contract", {"equation": "i j, j k -> i k"}, indices, cuts,
                [source, weight], ["ij", "jk"], result, "ik", _replicas(rng, cuts, sites, "j"),
            )  # fmt: skip
        else:
            peers = [v for v in values if planner.tensors[v].shape == shape]
            inputs = [source] if kind == "relu" else [source, rng.choice(peers)]
            program = "t0 = relu x0" if kind == "relu" else "t0 = add x0 x1"
            result = planner.tensor(name, shape, "value", planner.tensors[source].dims)
            indices = {"i": shape[0], "j": shape[1]}
            cuts = _cuts(rng, indices, sites)
            planner.operation(
                name, "map", {"program": program, "indices": ", ".join(["i j"] * len(inputs)) + " -> i j"}, indices,
                cuts, inputs, ["ij"] * len(inputs), result, "ij", _replicas(rng, cuts, sites),
            )  # fmt: skip
        values.append(result)
    saved = dict.fromkeys([values[-1], rng.choice(values[1:])])
    for tensor in saved:
        planner.save(tensor)
    return planner.bundle(reuse)


def reference(bundle, arrays):
    """Every tensor of a random plan, computed whole."""
    import numpy as np

    values = {i: arrays[t.name] for i, t in enumerate(bundle.tensors) if t.kind != "value"}
    for operation in bundle.operations:
        first, *further = (values[i] for i in operation.inputs)
        if operation.kernel == "contract":
            result = first @ further[0]
        else:
            result = first + further[0] if further else np.maximum(first, 0)
        values[operation.outputs[0]] = result
    return {bundle.tensors[i].name: value for i, value in values.items()}


def two_site_plan():
    """The smallest plan with all that matters: a product cut along its contracted index, then a relu by rows."""
    planner = Planner(2, random.Random(0))
    x = planner.tensor("x", (4, 3), "input", ("i", "j"))
    w = planner.tensor("w", (3, 2), "weight", ("j", "k"))
    a = planner.tensor("a", (4, 2), "value", ("i", "k"))
    y = planner.tensor("y", (4, 2), "value", ("i", "k"))
    planner.operation(
        "a", "contract", {"equation": "i j, j k -> i k"}, {"i": 4, "j": 3, "k": 2}, {"i": 1, "j": 2, "k": 1},
        [x, w], ["ij", "jk"], a, "ik",
    )  # fmt: skip
    planner.operation(
        "y", "map", {"program": "t0 = relu x0", "indices": "i j -> i j"}, {"i": 4, "j": 2}, {"i": 2, "j": 1},
        [a], ["ij"], y, "ij",
    )  # fmt: skip
    planner.save(y)
    return planner.bundle()
