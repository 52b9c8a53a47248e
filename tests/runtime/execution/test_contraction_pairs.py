"""Pairs of contractions that run as one batch, in plans: order, memory, and which pairs are not made."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.preparation import rewrite_for_devices
from einc_runtime.execution.rewrites.kernel_fusion import find_contraction_pairs
from einc_runtime.execution.session import Session
from einc_runtime.kernels import registry
from einc_runtime.kernels.gpu import Description, GpuKernel
from einc_runtime.kernels.triton.batched_pair import build_batched_pair
from tests.support.compiled_plans import MODELS, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels, Together, view
from tests.support.cuda_plans import LAYOUTS, agree, agrees_with_the_cpu, block, cpu_results
from tests.support.emulated_gemm import multiply
from tests.support.plan_arrays import arrays_of, outputs_of
from tests.support.sampling import one_in

MODEL = """
model alike
dim t = 12
dim n = 16
dim m = 8
input x : f32[t, n]
weight a : f32[n, n]
weight b : f32[n, n]
weight c : f32[n, n]
weight d : f32[n, m]
weight e : f32[n]
p = matmul(x, a)
q = matmul(x, b)
r = matmul(x, d)
s = matmul(p, a)
u = relu(matmul(x, c) + e)
y = q * s
output y, r, u
"""


class Beside(NumpyKernels):
    """Does two contractions at once, wherever it is asked."""

    def __init__(self, driver):
        super().__init__(driver)
        self.pairs = []

    def prepare_batched_pair(self, first, second, target):
        self.pairs.append((first, second))
        kernels = [
            registry.prepare(own.on([*map(view, own.inputs)], [*map(view, own.outputs)]), "numpy")
            for own in (first, second)
        ]

        def run():
            for kernel in kernels:
                kernel.bind(np.empty(kernel.scratch, np.uint8))()

        def bind(workspace, status):
            return lambda stream: self.driver.kernel(stream, "contract, contract", run)

        return GpuKernel(bind, Description("beside", "1", "contract, contract"))


class All(Beside, Together):
    def __init__(self, driver):
        Together.__init__(self, driver)
        self.maps, self.pairs = self.pairs, []

    def prepare_with_epilogue(self, first, then, place, target):
        pairs, self.pairs = self.pairs, self.maps
        try:
            return super().prepare_with_epilogue(first, then, place, target)
        finally:
            self.pairs = pairs


class Batched(NumpyKernels):
    """Multiplies what is planned as one batch, where it is, at its addresses."""

    def __init__(self, driver):
        super().__init__(driver)
        self.batched = []

    def prepare_batched_pair(self, first, second, target):
        plan = build_batched_pair(first, second, target.multiprocessors)
        if plan is None:
            return None
        (product,) = plan.steps
        self.batched.append(product)

        def bind(workspace, status):
            return lambda stream: self.driver.kernel(stream, product.variant, lambda: multiply(product))

        return GpuKernel(bind, Description("batched", "1", product.variant))


def model(sites):
    return compiled(MODEL, sites, "f32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sites", "make", "layout", "kernels"), one_in(2, [1, 2, 4], [block, model], LAYOUTS, [Beside, All])
)
def test_plans_compute_the_same_in_many_orders(make, sites, layout, kernels):
    bundle = make(sites)
    driver = FakeDriver(max(sites, 2), seed=sites)
    own = kernels(driver)
    executor = CudaExecutor(bundle, LAYOUTS[layout](sites), driver=driver, kernels=own)
    agrees_with_the_cpu(bundle, executor)
    if make is block or sites == 1:
        assert len(own.pairs) >= sites
    counted = sum(k.tasks for k in executor.facts().cuda.kernels if k.provider == "beside")
    assert counted == len(own.pairs)
    executor.close()
    assert not driver.leaks()


@pytest.mark.parametrize("sites", [1, 4])
def test_batches_at_the_addresses_of_a_plan(sites):
    """Keys and values lie in one order, by tokens, and so do gate and up."""
    text = (MODELS / "llama_block.ein").read_text()
    sizes = {"seq_lens": "[16, 16]", "d_model": 64, "heads_q": 8, "heads_kv": 4, "d_head": 16, "d_ff": 128}
    bundle = compiled(text, sites, "f32", **sizes)
    arrays = arrays_of(bundle)
    driver = FakeDriver(1, seed=sites)
    kernels = Batched(driver)
    executor = CudaExecutor(bundle, [0] * sites, driver=driver, kernels=kernels)
    session = Session(bundle, executor=executor)
    session.load_all(arrays)
    for _ in range(2):
        session.execute()
        found = outputs_of(session)
        agree(found, cpu_results(bundle, arrays))
    assert {product.batch for product in kernels.batched} == {2}
    executor.close()


def paired(bundle, tasks):
    def name(number):
        return bundle.tensors[bundle.buffers[tasks[number].writes[0].buffer].tensor].name

    return {(name(first), name(second)) for first, second in find_contraction_pairs(bundle, tasks).items()}


def test_equal_contractions_are_paired_once():
    assert paired(block(1), rewrite_for_devices(block(1), [0])) == {("k", "v"), ("gate", "up")}
    assert paired(model(1), rewrite_for_devices(model(1), [0])) == {
        ("p", "q")
    }  # r has another form, u would be the third


def test_one_that_reads_the_others_result_stays_where_it_is():
    """p and s share their weights."""
    text = MODEL.replace("q = matmul(x, b)\n", "").replace("q * s", "s").replace("u = relu(matmul(x, c) + e)\n", "")
    bundle = compiled(text.replace(", u\n", "\n"), 1, "f32")
    tasks = rewrite_for_devices(bundle, [0])
    assert not paired(bundle, tasks)
    assert paired(bundle, [msgspec.structs.replace(task, after=()) for task in tasks]) == {
        ("p", "y")
    }  # s by its other name


def test_one_with_a_map_of_its_own_takes_that():
    """u could go with p, and adds a vector: cuBLASLt can do that."""
    text = "".join(line for line in MODEL.splitlines(True) if line[:3] not in ("q =", "r =", "s =", "y ="))
    bundle = compiled(text.replace("output y, r, u", "output p, u"), 1, "f32")
    assert len(find_contraction_pairs(bundle, rewrite_for_devices(bundle, [0]))) == 1
    driver = FakeDriver(1)
    for kernels, pairs, maps in ((Beside(driver), 1, 0), (All(driver), 0, 1)):
        executor = CudaExecutor(bundle, [0], driver=driver, kernels=kernels)
        assert (len(kernels.pairs), len(getattr(kernels, "maps", ()))) == (pairs, maps)
        executor.close()
