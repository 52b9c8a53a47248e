"""A library that a plan does not need: if it fails, everything begins again without it, and nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels.gpu import Description, GpuKernel
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_plans import agree, block, cpu_results, ffn
from tests.support.plan_arrays import arrays_of, outputs_of


class WithLibrary(NumpyKernels):
    """Attention by a library that fails at a stage, or, without one, computes as it should."""

    def __init__(self, driver, stage, *, also=None):
        super().__init__(driver, fail=also)
        self.stage, self.used, self.given_up, self.notes = stage, False, [], []

    def prepare_kernel(self, invocation, target):
        kernel = super().prepare_kernel(invocation, target)
        if invocation.name != "attention" or self.given_up:
            return kernel
        self.used = True
        self._fails("prepare")

        def bind(workspace, status):
            self._fails("bind")
            launch = kernel.bind(workspace, status)

            def by_library(stream):
                capturing = self.driver.capture is not None
                self._fails("capture" if capturing else "warm-up")
                if capturing and self.stage == "silent":
                    self.driver.broken = True  # something that a capture forbids, and that nobody reports
                if capturing and self.stage == "waiting":
                    self.driver.synchronize(0)
                launch(stream)

            return by_library

        return GpuKernel(bind, Description("library", "2", "attention"), kernel.workspace, kernel.status_message)

    def _fails(self, stage):
        if stage == self.stage:
            raise RuntimeError(f"not in {stage}")

    def give_up(self, reason):
        assert not self.driver.leaks(), "everything was released before"
        if self.used:
            self.given_up.append(reason)
            self.notes = [f"the library is not used: {reason}"]
            self.used = False
            return True
        return False


STAGES = {
    "prepare": "not in prepare",
    "bind": "not in bind",
    "warm-up": "not in warm-up",
    "capture": "not in capture",
    "silent": "the capture is broken",
    "waiting": "synchronize while a stream is being captured",
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("sites", [1, 4])
def test_a_library_that_fails_is_done_without(stage, sites):
    bundle, driver = block(sites), FakeDriver(1)
    kernels = WithLibrary(driver, stage)
    executor = CudaExecutor(bundle, [0] * sites, driver=driver, kernels=kernels)
    assert len(kernels.given_up) == 1
    assert STAGES[stage] in kernels.given_up[0]
    assert executor.notes == tuple(executor.facts().cuda.notes) == tuple(kernels.notes)
    assert {k.provider for k in executor.facts().cuda.kernels} <= {"numpy", "cuda"}
    arrays = arrays_of(bundle)
    session = Session(bundle, executor=executor)
    session.load_all(arrays)
    for _ in range(2):
        session.execute()
        agree(outputs_of(session), cpu_results(bundle, arrays))
    session.execute(trace=True)
    executor.close()
    assert kernels.closed == 2
    assert not driver.leaks()


def test_a_library_that_works_is_kept():
    driver = FakeDriver(1)
    kernels = WithLibrary(driver, None)
    executor = CudaExecutor(block(2), [0, 0], driver=driver, kernels=kernels)
    assert executor.notes == ()
    assert "library" in {k.provider for k in executor.facts().cuda.kernels}
    assert driver.counts["begin_capture"] == 1
    executor.close()


def test_what_fails_without_libraries_fails_once():
    driver = FakeDriver(1)
    kernels = WithLibrary(driver, None, also=("launch", "contract"))
    with pytest.raises(KernelFault) as caught:
        CudaExecutor(ffn(1), [0], driver=driver, kernels=kernels)
    assert kernels.closed == 1
    assert "before that" not in caught.value.message


@pytest.mark.parametrize("stage", ["bind", "capture"])
def test_what_fails_with_and_without_libraries_tells_both(stage):
    driver = FakeDriver(1)
    kernels = WithLibrary(driver, stage)

    def broken(invocation, target):
        if kernels.given_up and invocation.name == "attention":
            raise RuntimeError("nor without")
        return WithLibrary.prepare_kernel(kernels, invocation, target)

    kernels.prepare_kernel = broken
    with pytest.raises(KernelFault) as caught:
        CudaExecutor(block(1), [0], driver=driver, kernels=kernels)
    assert "nor without" in caught.value.message
    assert f"(before that: the attention at site 0 failed: RuntimeError: not in {stage})" in caught.value.message
    assert not driver.leaks()
    assert kernels.closed == 2


@pytest.mark.parametrize("kind", ["once", "lost"])
def test_whatever_fails_on_the_way_leaves_nothing(kind):
    """Every call of the driver fails in turn, while a library is in use, and while it was just given up."""
    bundle = block(1)
    clean = FakeDriver(1)
    CudaExecutor(bundle, [0], driver=clean, kernels=WithLibrary(clean, "capture")).close()
    for number in range(0 if kind == "once" else 3, len(clean.calls), 6):
        driver = FakeDriver(1, fail_at=number, lost=kind == "lost", status=719)
        kernels = WithLibrary(driver, "capture")
        told = None
        try:
            CudaExecutor(bundle, [0], driver=driver, kernels=kernels).close()
        except (KernelFault, MissingFault) as error:
            told = error.render()
        assert "injected" in told if told else kind == "once", clean.calls[number]
        assert not driver.leaks(), clean.calls[number]
        assert driver.capture is None


def test_one_thing_after_the_other_is_given_up():
    driver = FakeDriver(1)
    reasons, stages = [], ["warm-up", None]

    class Several(WithLibrary):
        def give_up(self, reason):
            reasons.append(reason)
            self.stage = stages.pop(0)
            return True

    kernels = Several(driver, "capture")
    CudaExecutor(block(1), [0], driver=driver, kernels=kernels).close()
    assert ["not in capture" in reasons[0], "not in warm-up" in reasons[1]] == [True, True]
    assert kernels.closed == 3


def test_interrupts_end_it():
    driver = FakeDriver(1)
    kernels = WithLibrary(driver, None)

    def interrupted(stage):
        if stage == "capture":
            raise KeyboardInterrupt

    kernels._fails = interrupted
    with pytest.raises(KeyboardInterrupt):
        CudaExecutor(block(1), [0], driver=driver, kernels=kernels)
    assert not kernels.given_up
    assert not driver.leaks()
    assert np.isfinite(driver.clock)
