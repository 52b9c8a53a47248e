"""Two contractions and the map of both as one kernel, in plans: order, memory, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.preparation import rewrite_for_devices
from einc_runtime.kernels import registry
from einc_runtime.kernels.gpu import Description, GpuKernel
from einc_runtime.kernels.triton.gated_pair import build_gated_pair
from einc_runtime.plan.epilogues import find_gated_pairs
from tests.support.compiled_plans import compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import Together, view
from tests.support.cuda_plans import LAYOUTS, agrees_with_the_cpu, block
from tests.support.sampling import one_in

MODEL = """
model gates
dim t = 12
dim n = 16
dim m = 8
input x : f32[t, n]
weight a : f32[n, m]
weight b : f32[n, m]
weight c : f32[n, m]
weight d : f32[m, n]
weight e : f32[m]
p = matmul(x, a)
q = matmul(x, b)
y = p * silu(q)
u = matmul(x, c)
w = matmul(x, a) * u
z = gelu(matmul(x, b)) * (matmul(x, c) + e)
g = matmul(y, d)
v = matmul(g, a) * matmul(x, b)
output u, w, z, v
"""


class Gated(Together):
    """Does three tasks at once, wherever our own kernel could: only the map's result is written."""

    def __init__(self, driver):
        super().__init__(driver)
        self.gated = []

    def prepare_gated_pair(self, pair, target):
        if build_gated_pair(pair) is None:
            return None
        (first, second, then), places = pair.parts, pair.places
        self.gated.append(then)
        middles = [np.zeros(own.outputs[0].shape, "f4") for own in (first, second)]
        operands = [middles[places.index(n)] for n in range(2)]
        steps = [
            (first, [*map(view, first.inputs)], middles[0]),
            (second, [*map(view, second.inputs)], middles[1]),
            (then, operands, view(then.outputs[0])),
        ]
        kernels = [registry.prepare(own.on(reads, [into]), "numpy") for own, reads, into in steps]

        def run():
            for kernel in kernels:
                kernel.bind(np.empty(kernel.scratch, np.uint8))()

        def bind(workspace, status):
            return lambda stream: self.driver.kernel(stream, "gated", run)

        return GpuKernel(bind, Description("gated", "1", "contract, contract, map"))


def model(sites):
    return compiled(MODEL, sites, "f32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sites", "make", "layout"), one_in(2, [1, 2, 4], [block, model], LAYOUTS))
def test_plans_compute_the_same_in_many_orders(make, sites, layout):
    bundle = make(sites)
    driver = FakeDriver(max(sites, 2), seed=sites)
    kernels = Gated(driver)
    executor = CudaExecutor(bundle, LAYOUTS[layout](sites), driver=driver, kernels=kernels)
    agrees_with_the_cpu(bundle, executor)
    if sites == 1:
        assert len(kernels.gated) == 1
        idle = sum(step.stream is None for step in executor._plan.schedule.steps)
        assert idle == 2 * len(kernels.gated) + len(kernels.pairs)
    counted = sum(k.tasks for k in executor.facts().cuda.kernels if k.provider == "gated")
    assert counted == len(kernels.gated)
    executor.close()
    assert not driver.leaks()


def named(bundle, tasks):
    def name(number):
        return bundle.tensors[bundle.buffers[tasks[number].writes[0].buffer].tensor].name

    return {
        (name(first), name(own.second), name(own.then), own.places)
        for first, own in find_gated_pairs(bundle, tasks).items()
    }


def test_only_maps_of_two_contractions_that_nobody_else_reads():
    """u is an output, z adds a vector, and v multiplies what a contraction after the first one has computed."""
    bundle = model(1)
    tasks = rewrite_for_devices(bundle, [0])
    found = named(bundle, tasks)
    assert ("p", "q", "y", (0, 1)) in found
    assert not {"w", "z"} & {own[2] for own in found}
    assert named(block(1), rewrite_for_devices(block(1), [0])) == {("gate", "up", "f", (0, 1))}


def test_what_waits_for_something_between_them_is_left_alone():
    bundle = block(1)
    tasks = rewrite_for_devices(bundle, [0])
    ((first, own),) = find_gated_pairs(bundle, tasks).items()

    def waiting(number, *waits):
        late = list(tasks)
        late[number] = msgspec.structs.replace(late[number], after=(*late[number].after, *waits))
        return find_gated_pairs(bundle, late)

    assert waiting(own.second, first - 1)
    assert waiting(own.then, first - 1)
    assert not waiting(own.second, first)
    between = list(tasks)
    between.insert(own.second, msgspec.structs.replace(tasks[first - 1], after=()))  # all later positions move by one
    moved = [
        msgspec.structs.replace(task, after=tuple(n + (n >= own.second) for n in task.after))
        if n > own.second
        else task
        for n, task in enumerate(between)
    ]
    assert [(one.second, one.then) for one in find_gated_pairs(bundle, moved).values()] == [
        (own.second + 1, own.then + 1)
    ]
    moved[own.then + 1] = msgspec.structs.replace(moved[own.then + 1], after=(*moved[own.then + 1].after, own.second))
    assert not find_gated_pairs(bundle, moved)


def test_a_kernel_must_not_write_over_what_it_reads():
    """The plan keeps what both products read until the map has written; elsewhere the three stay apart."""
    bundle = block(1)
    driver = FakeDriver(1)
    kernels = Gated(driver)
    asked = []
    prepare, kernels.prepare_gated_pair = kernels.prepare_gated_pair, lambda *given: asked.append(given)
    executor = CudaExecutor(bundle, [0], driver=driver, kernels=kernels)
    ((pair, target),) = asked
    assert prepare(pair, target) is not None
    first, second, then = pair.parts
    shared = first.inputs[0]
    assert shared == second.inputs[0]
    over = [replace(then.outputs[0], pointer=shared.pointer + 64)]
    assert build_gated_pair(replace(pair, then=then.on(then.inputs, over))) is None
    for change in ({"program": "t0 = silu x0; t1 = mul t0 x1" + "; t2 = copy t1" * 30}, {"indices": "t f, f t -> t f"}):
        changed = replace(then, attributes={**then.attributes, **change})
        assert build_gated_pair(replace(pair, then=changed)) is None
    other = replace(second, inputs=[replace(shared, pointer=shared.pointer + 64), second.inputs[1]])
    assert build_gated_pair(replace(pair, second=other)) is None
    assert build_gated_pair(replace(pair, second=first)) is None
    swapped = build_gated_pair(replace(pair, places=(1, 0)))
    assert swapped.products == build_gated_pair(replace(pair, places=(0, 1))).products[::-1]
    executor.close()
