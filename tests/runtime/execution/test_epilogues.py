"""Contractions that run with the map after them, in plans: order, memory, and which pairs are not made."""

from __future__ import annotations

import json

import pytest

from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.facts import list_facts
from einc_runtime.execution.rewrites.copy_elision import elide_copies
from einc_runtime.plan.epilogues import find_epilogues
from einc_runtime.plan.schema import KernelTask
from tests.support.compiled_plans import MODELS, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import Together
from tests.support.cuda_plans import LAYOUTS, agrees_with_the_cpu, block, ffn
from tests.support.sampling import one_in

MODEL = """
model epilogues
dim tokens = 12
dim d = 8
dim f = 24
input x : f32[tokens, d]
weight w1 : f32[d, f]
weight w2 : f32[f, d]
weight b1 : f32[f]
weight b2 : f32[d]
h = relu(matmul(x, w1) + b1)
y = matmul(h, w2) + x
z = matmul(y, w1)
u = relu(z)
v = matmul(u, w2) + b2
both = matmul(v, w1) + matmul(y, w1)
output y, z, u, v, both
"""


def model(sites):
    return compiled(MODEL, sites, "f32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sites", "make", "layout"), one_in(4, [1, 2, 4, 8], [ffn, block, model], LAYOUTS))
def test_plans_compute_the_same_in_many_orders(make, sites, layout):
    bundle = make(sites)
    driver = FakeDriver(max(sites, 2), seed=sites)
    kernels = Together(driver)
    executor = CudaExecutor(bundle, LAYOUTS[layout](sites), driver=driver, kernels=kernels)
    agrees_with_the_cpu(bundle, executor)
    facts = executor.facts()
    json.dumps(list_facts(facts))
    assert sum(k.tasks for k in facts.cuda.kernels if k.provider == "together") == len(kernels.pairs)
    if sites == 1:
        steps = [step.task for step in executor._plan.schedule.steps if step.task >= 0]
        assert len(steps) == sum(isinstance(task, KernelTask) for task in bundle.tasks)
        idle = sum(step.stream is None for step in executor._plan.schedule.steps)
        assert idle == len(kernels.pairs) > 0
    executor.close()
    assert not driver.leaks()


def taken(bundle):
    """Names of tensors: what is contracted, and what the map makes of it."""
    tasks = elide_copies(bundle, bundle.tasks, devices=[0] * len(bundle.memory))

    def name(number):
        return bundle.tensors[bundle.buffers[tasks[number].writes[0].buffer].tensor].name

    return {(name(first), name(then)) for first, (then, _) in find_epilogues(bundle, tasks).items()}


def test_what_others_read_or_is_an_output_is_left_alone():
    bundle = model(1)
    found = taken(bundle)
    results = {then for _, then in found}
    assert results == {"h", "y", "v", "both"}  # z is an output, and so u is computed of what is there
    assert len(found) == len(results)


def test_of_two_contractions_the_last_takes_the_sum_with_it():
    bundle = model(1)
    tasks = elide_copies(bundle, bundle.tasks)
    found = find_epilogues(bundle, tasks)
    (first, (then, place)) = max(found.items())
    others = [
        n for n, task in enumerate(tasks) if n < then and tasks[then].reads[1 - place] in getattr(task, "writes", ())
    ]
    assert others
    assert max(others) < first


BLOCK = {"seq_lens": "[96, 160]", "d_model": 128, "heads_q": 4, "heads_kv": 2, "d_head": 32, "d_ff": 448}


def test_memory_leaves_room_for_the_residuals_of_a_block():
    """The kernels of GPUs refuse a pair whose result would lie over what the product reads."""
    bundle, driver = compiled((MODELS / "llama_block.ein").read_text(), 1, "f16", **BLOCK), FakeDriver()
    kernels = Together(driver)
    CudaExecutor(bundle, driver=driver, kernels=kernels).close()
    assert [then.name for _, then in kernels.pairs] == ["map", "map"]  # of attention's projection, and of down
