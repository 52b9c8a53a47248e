"""Whole plans on the fake driver with the GPU's kernels in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from dataclasses import replace

import numpy as np

from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels.cuda.cublas import WORKSPACE
from einc_runtime.kernels.gpu import LATE_PEERS, WORKSPACE_ALIGNMENT, Description, GpuKernel, PeerFlags
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.kernels import TritonKernels
from einc_runtime.kernels.triton.launches import SCRATCH, StatusPointer, Table
from tests.support.cuda_fake import FakeDriver, Misuse
from tests.support.cuda_fake_kernels import AwaitingFlags
from tests.support.emulated_gemm import multiply
from tests.support.triton_interpreter import Pointer, list_types, load, repair

KINDS = list_types()


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
        plan, flags, check = split_flags(plan)

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
                    key = step.source.name
                    if key not in self.functions:
                        self.functions[key] = load(step.source)
                    arguments = [pointer(*pair) for pair in zip(step.arguments, step.source.types, strict=True)]
                    self.functions[key][(step.grid,)](*arguments)
                assert check(), "a kernel sets the flags of all others, and counts its programs"

            work = run if flags is None else lambda: AwaitingFlags(self.driver, target.device, flags, run)
            return lambda stream: self.driver.kernel(stream, "planned", work)

        workspace = plan.scratch + (WORKSPACE if products else 0)
        return GpuKernel(bind, Description("interpreted", "", ""), workspace, plan.status_message)


def split_flags(plan):
    """The flags of a kernel that waits for others, and the kernel with flags that nobody looks at: one that is
    interpreted does all of its work at once, when the others have begun. `check` resets these, and says whether the
    kernel has set those that it should, when it has run."""
    if plan.status_message != LATE_PEERS:
        return plan, None, lambda: True
    (step, *later) = plan.steps
    at = next(n for n, argument in enumerate(step.arguments) if isinstance(argument, StatusPointer))
    is_gathering = "tl.debug_barrier()" in step.source.text
    flags = PeerFlags(step.arguments[at - 1], step.arguments[at + 1 :], is_gathering=is_gathering)
    count = len(flags.peers)
    awaited, told = np.ones(2 * count + 1, np.int32), np.zeros((count, count + 1), np.int32)
    awaited[-1] = 0
    arguments = (
        *step.arguments[: at - 1],
        awaited.ctypes.data,
        StatusPointer(),
        *(words.ctypes.data for words in told),
    )

    def check():
        expected = [1, *[0] * (count - 1), int(is_gathering)]
        complete = (told == expected).all() and awaited[-1] == (step.grid if is_gathering else 0)
        told[:], awaited[-1] = 0, 0
        return complete

    return replace(plan, steps=(replace(step, arguments=arguments), *later)), flags, check


def interpreted(bundle, devices=1, kernels=InterpretedKernels):
    driver = FakeDriver(devices, seed=len(bundle.tasks), memory=1 << 36)
    places = [site * devices // len(bundle.memory) for site in range(len(bundle.memory))]
    return Session(bundle, executor=CudaExecutor(bundle, places, driver=driver, kernels=kernels(driver)))
