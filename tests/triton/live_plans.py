"""Whole plans on the fake driver with the GPU's kernels in the interpreter: everything except CUDA itself.

The cases are those of `make gpu-check` that are small enough.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy as np
import pytest
import triton.language as tl

from einc_runtime.errors import ValueFault
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels.cuda.cublas import WORKSPACE
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT, Description, GpuKernel
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.kernels import TritonKernels
from einc_runtime.kernels.triton.launches import SCRATCH, StatusPointer, Table
from tests.gpu.cases import CASES, TOLERANCE
from tests.gpu.correctness import arrays_of, compiled, largest_error, reference
from tests.support.cuda_fake import FakeDriver, Misuse
from tests.support.emulated_gemm import multiply
from tests.support.triton_interpreter import Pointer, load, repair

KINDS = {"f16": tl.float16, "bf16": tl.bfloat16, "f32": tl.float32, "f64": tl.float64, "i32": tl.int32,
         "i64": tl.int64, "bool": tl.int8, "i8": tl.int8, "i16": tl.int16}  # fmt: skip


class InterpretedKernels(TritonKernels):
    """Kernels whose launches are enqueued on the fake driver, and interpreted when they run."""

    def __init__(self, driver):
        super().__init__()
        self.driver, self.functions, self.epilogues = driver, {}, 0
        repair()

    def versions(self):
        return {}

    def close(self):
        pass

    def has_epilogues(self, plan, target):
        self.epilogues += 1
        return True

    def prepare(self, plan, target):
        products = any(isinstance(step, Gemm) for step in plan.steps)
        tables = {}

        def bind(workspace, status):
            if (plan.scratch or products) and workspace % WORKSPACE_ALIGNMENT:
                raise Misuse("a crooked workspace")

            def pointer(argument, kind):
                if isinstance(argument, Table):
                    held = tables.setdefault(argument.data, np.frombuffer(argument.data, np.uint8).copy())
                    return Pointer(held.ctypes.data, KINDS[kind])
                if isinstance(argument, StatusPointer):
                    assert status, "a kernel with a status message has a status word"
                    return Pointer(status, KINDS[kind])
                return Pointer(workspace + argument - SCRATCH if argument >= SCRATCH else argument, KINDS[kind])

            def run():
                for step in plan.steps:
                    if isinstance(step, Gemm):
                        multiply(step, workspace)
                        continue
                    key = step.source.key
                    if key not in self.functions:
                        self.functions[key] = load(step.source)
                    arguments = [pointer(*pair) for pair in zip(step.arguments, step.source.types, strict=True)]
                    self.functions[key][(step.grid,)](*arguments)

            return lambda stream: self.driver.kernel(stream, "planned", run)

        workspace = plan.scratch + (WORKSPACE if products else 0)
        return GpuKernel(bind, Description("interpreted", "", ""), workspace, plan.status_message)


def interpreted(bundle, devices=1):
    driver = FakeDriver(devices, seed=len(bundle.tasks), memory=1 << 36)
    places = [site * devices // len(bundle.memory) for site in range(len(bundle.memory))]
    return Session(bundle, executor=CudaExecutor(bundle, places, driver=driver, kernels=InterpretedKernels(driver)))


CHOSEN = [
    ("ffn", "f32", 1, 1),
    ("ffn", "bf16", 8, 1),
    ("ffn", "f16", 4, 2),
    ("epilogues", "f16", 1, 1),
    ("digits", None, 4, 1),
    ("chain_a", "f32", 4, 2),
    ("rows", "f32", 2, 1),
    ("llama_block", "f16", 4, 2),
    ("merges", "f16", 4, 2),
]
"""Model, dtype, sites, and devices that these share. `live_kernels.py` has every kernel at other sizes."""


WITH_EPILOGUES = ("ffn", "epilogues")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "dtype", "sites", "devices"), CHOSEN)
def test_plans_with_the_gpus_kernels(name, dtype, sites, devices):
    case = next(case for case in CASES if (case.name, case.dtype) == (name, dtype) and not case.slow)
    bundle = compiled(case, sites, dtype)
    arrays = arrays_of(bundle)
    with interpreted(bundle, devices) as session:
        session.load_all(arrays)
        session.execute()
        found = {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
        assert name not in WITH_EPILOGUES or session._executor._kernels.epilogues > 0
    assert largest_error(found, reference(case, arrays)) <= TOLERANCE[dtype or "f32"]


def test_an_invalid_value_of_an_input_is_an_error():
    case = next(case for case in CASES if case.name == "rows")
    bundle = compiled(case, 2, "f32")
    arrays = arrays_of(bundle)
    arrays["ids"][3] = 61
    with interpreted(bundle) as session, np.errstate(all="ignore"):
        session.load_all(arrays)
        with pytest.raises(ValueFault, match="the embedding at site"):
            session.execute()
