"""The probe of NCCL, on fakes: what it finds right, and that it finds what is wrong."""

from __future__ import annotations

import pytest

from einc_runtime.execution.cuda.cupy_nccl import CupyNccl
from tests.gpu import probes_nccl
from tests.gpu.probe_bench import Absent, Bench, Broken
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.nccl_fake import FakeNccl, NcclWorld


class ToItself:
    """NCCL with one GPU, which sends to itself; `lost` bytes of a message do not arrive."""

    def __init__(self, driver, lost=0):
        self.driver, self.lost, self.calls = driver, lost, []

    def make_id(self):
        return bytes(128)

    def join(self, identity, count, gpus):
        assert (identity, count, gpus) == (bytes(128), 1, {0: 0})
        return self

    def exchange(self, device, messages, stream):
        sent, received = messages
        size = sent.size - self.lost
        self.driver.copy_async(received.pointer, size, sent.pointer, size, size, 1, stream)

    def check(self):
        self.calls.append("check")

    def close(self):
        self.calls.append("close")


def test_a_gpu_that_sends_to_itself():
    driver = FakeDriver(1)
    bench, library = Bench(driver, NumpyKernels(driver)), ToItself(driver)
    assert "GB/s in messages of 1 MB to itself" in probes_nccl.send_to_itself(bench, library)
    assert library.calls == ["check", "close"]
    with pytest.raises(Broken, match="computes something else"):
        probes_nccl.send_to_itself(bench, ToItself(driver, lost=1))


class Idle(NumpyKernels):
    """Products are not computed."""

    def prepare_kernel(self, invocation, target):
        return super().prepare_moves([], [], target)


@pytest.mark.parametrize("kernels", [NumpyKernels, Idle])
def test_ranks_on_several_gpus_are_compared_with_the_cpu(kernels):
    world = NcclWorld()

    def parts(rank):
        driver = FakeDriver(2, seed=rank)
        return driver, kernels(driver), FakeNccl(world, driver)

    if kernels is Idle:
        with pytest.raises(Broken, match="2 ranks compute something else"):
            probes_nccl.run_ranks(2, parts)
    else:
        assert "2 ranks: a plan with" in probes_nccl.run_ranks(2, parts)


def test_without_nccl_the_probe_is_absent(monkeypatch):
    monkeypatch.setattr(
        probes_nccl, "CupyNccl", lambda driver: CupyNccl(driver, type("Library", (), {"available": False}))
    )
    driver = FakeDriver(1)
    with pytest.raises(Absent, match="which cupy does not find"):
        probes_nccl.nccl(Bench(driver, NumpyKernels(driver)))
