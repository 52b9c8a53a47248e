"""Whole plans on the fake driver with the GPU's own kernels, interpreted: everything but CUDA itself.

The cases are those of `make gpu-check` that are small enough.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "runtime"), str(ROOT / "tests" / "triton")]

import triton.language as tl  # noqa: E402
from cuda_fake import FakeDriver, Misuse  # noqa: E402
from emulated_gemm import multiply  # noqa: E402
from interpreter import Pointer, load, repair  # noqa: E402

from runtime.errors import ValueFault  # noqa: E402
from runtime.executors.cuda import CudaExecutor  # noqa: E402
from runtime.kernels import gpu_plans  # noqa: E402
from runtime.kernels.cublas import WORKSPACE  # noqa: E402
from runtime.kernels.gemm import Gemm  # noqa: E402
from runtime.kernels.gpu_base import WORKSPACE_ALIGNMENT, Description, GpuKernel  # noqa: E402
from runtime.kernels.triton_source import SCRATCH, Status, Table, layout  # noqa: E402
from runtime.session import Session  # noqa: E402
from tests.gpu.cases import CASES  # noqa: E402
from tests.gpu.correctness import arrays_of, check, compiled, largest_error, reference  # noqa: E402

KINDS = {"f16": tl.float16, "bf16": tl.bfloat16, "f32": tl.float32, "f64": tl.float64, "i32": tl.int32,
         "i64": tl.int64, "bool": tl.int8, "i8": tl.int8, "i16": tl.int16}  # fmt: skip


class InterpretedKernels:
    """`gpu_base.Kernels` whose launches are enqueued on the fake driver and interpreted when they run."""

    def __init__(self, driver):
        self.driver, self.functions = driver, {}
        repair()

    def kernel(self, name, attributes, inputs, outputs, input_blocks, output_blocks, target):
        views = list(map(layout, inputs)), list(map(layout, outputs))
        return self._wrapped(name, gpu_plans.plan_kernel(name, attributes, *views, input_blocks, output_blocks))

    def aggregate(self, aggregation, reads, write, target):
        return self._wrapped(
            "aggregate", gpu_plans.plan_aggregate(aggregation, list(map(layout, reads)), layout(write))
        )

    def merge(self, aggregation, reads, writes, dims, target):
        views = list(map(layout, reads)), list(map(layout, writes))
        return self._wrapped(aggregation, gpu_plans.plan_merge(aggregation, *views, dims))

    def moves(self, reads, writes, target):
        return self._wrapped("moves", gpu_plans.plan_moves(list(map(layout, reads)), list(map(layout, writes))))

    def versions(self):
        return {}

    def close(self):
        pass

    def _wrapped(self, name, plan):
        products = any(isinstance(step, Gemm) for step in plan.steps)
        tables = {}

        def bind(workspace, status):
            if (plan.scratch or products) and workspace % WORKSPACE_ALIGNMENT:
                raise Misuse("a crooked workspace")

            def pointer(argument, kind):
                if isinstance(argument, Table):
                    held = tables.setdefault(argument.data, np.frombuffer(argument.data, np.uint8).copy())
                    return Pointer(held.ctypes.data, KINDS[kind])
                if isinstance(argument, Status):
                    assert status, "a status word is there for a plan with a complaint"
                    return Pointer(status, KINDS[kind])
                return Pointer(workspace + argument - SCRATCH if argument >= SCRATCH else argument, KINDS[kind])

            def run():
                for step in plan.steps:
                    if isinstance(step, Gemm):
                        multiply(step, workspace)
                        continue
                    function = self.functions.setdefault(step.source.key, None) or load(step.source)
                    self.functions[step.source.key] = function
                    arguments = [pointer(*pair) for pair in zip(step.arguments, step.source.types, strict=True)]
                    function[(step.grid,)](*arguments)

            return lambda stream: self.driver.kernel(stream, name, run)

        workspace = plan.scratch + (WORKSPACE if products else 0)
        return GpuKernel(bind, Description("interpreted", "", name), workspace, plan.complaint)


def interpreted(bundle, devices=1):
    driver = FakeDriver(devices, seed=len(bundle.tasks), memory=1 << 36)
    places = [site * devices // len(bundle.memory) for site in range(len(bundle.memory))]
    return Session(bundle, executor=CudaExecutor(bundle, places, driver=driver, kernels=InterpretedKernels(driver)))


WHOLE_MODELS = ("llama", "llama_decode", "bert")
SMALL = [
    (case, sites)
    for case in CASES
    if not case.slow and case.name not in WHOLE_MODELS
    for sites in ((case.sites[-1],) if case.dtype == "bf16" else (1, case.sites[-1]))
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("case", "sites"), SMALL, ids=[f"{case.title} {sites}" for case, sites in SMALL])
def test_plans_with_the_gpus_kernels(case, sites):
    expected = reference(case, arrays_of(compiled(case, 1, case.dtype)))
    result = check(case, sites, interpreted, expected, None)
    assert result.holds, result


@pytest.mark.parametrize("name", WHOLE_MODELS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whole_models_on_two_devices(name):
    case = next(case for case in CASES if case.name == name)
    bundle = compiled(case, 2, case.dtype)
    arrays = arrays_of(bundle)
    with interpreted(bundle, devices=2) as session:
        session.load_all(arrays)
        session.execute()
        found = {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
    assert largest_error(found, reference(case, arrays)) <= 1e-5


def test_a_value_that_no_input_may_have_is_told():
    case = next(case for case in CASES if case.name == "rows")
    bundle = compiled(case, 2, "f32")
    arrays = arrays_of(bundle)
    arrays["ids"][3] = 61
    with interpreted(bundle) as session:
        session.load_all(arrays)
        with pytest.raises(ValueFault, match="the embedding at site"):
            session.execute()
