"""What the check computes on: the GPU of this machine; or, to rehearse it without one, a fake driver and the CPU.

A rehearsal goes through all of the script, with workers, records and the page, at sizes that a CPU can do. Kernels are
numpy's then, and times mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.gpu.cases import CASES, Benchmark, Definitions

if TYPE_CHECKING:  # packages that travel as wheels are not there yet when this is imported
    from einc_runtime.execution.cuda.executor import CudaExecutor
    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle

REHEARSE = "--rehearse"


@dataclass(frozen=True, slots=True)
class Place:
    """`torch` is PyTorch's device."""

    torch: str

    @property
    def rehearsal(self) -> bool:
        return self.torch == "cpu"

    @property
    def architecture(self) -> str:
        if self.rehearsal:
            return "sm_90"
        from einc_runtime.execution.cuda.cupy_driver import CupyDriver

        return CupyDriver().target(0).architecture

    def runs(self) -> list[tuple[int, int]]:
        """All cases with their numbers of sites, as positions of cases; the largest number only in a rehearsal."""
        if self.rehearsal:
            return [(number, case.sites[-1]) for number, case in enumerate(CASES) if not case.slow]
        return [(number, sites) for number, case in enumerate(CASES) for sites in case.sites]

    def definitions(self, benchmark: Benchmark) -> Definitions:
        return benchmark.small if self.rehearsal else benchmark.definitions

    @property
    def seconds(self) -> float:
        """Of every measurement."""
        return 0.0 if self.rehearsal else 0.08

    def executor(self, bundle: Bundle) -> CudaExecutor:
        """All sites on one GPU."""
        from einc_runtime.execution.cuda.executor import CudaExecutor

        devices = [0] * len(bundle.memory)
        if not self.rehearsal:
            return CudaExecutor(bundle, devices)
        from tests.support.cuda_fake import FakeDriver
        from tests.support.cuda_fake_kernels import NumpyKernels

        driver = FakeDriver(1, seed=len(bundle.tasks))
        return CudaExecutor(bundle, devices, driver=driver, kernels=NumpyKernels(driver))

    def session(self, bundle: Bundle) -> Session:
        from einc_runtime.execution.session import Session

        return Session(bundle, executor=self.executor(bundle))

    def works(self) -> bool:
        """Whether the device is of use still: an error like an illegal address makes every later call fail."""
        if self.rehearsal:
            return True
        from cupy.cuda import runtime

        try:
            runtime.deviceSynchronize()
            runtime.free(runtime.malloc(256))
        except Exception:
            return False
        return True

    def wait(self) -> None:
        """For all that PyTorch has enqueued."""
        import torch

        if not self.rehearsal:
            torch.cuda.synchronize()

    def tidy(self) -> None:
        """Gives back what nobody uses any more, as far as libraries keep it."""
        import gc

        import torch

        torch._dynamo.reset()
        gc.collect()
        if not self.rehearsal:
            torch.cuda.empty_cache()


GPU, CPU = Place("cuda"), Place("cpu")


def of(arguments: list[str]) -> tuple[Place, list[str]]:
    """The place that arguments of a worker name, and the others."""
    return (CPU if REHEARSE in arguments else GPU), [one for one in arguments if one != REHEARSE]
