"""What the check computes on: the GPU of this machine; or, to rehearse it without one, a fake driver and the CPU.

A rehearsal goes through all of the script, with workers, records and the page, at sizes that a CPU can do. Kernels are
numpy's then, and times mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.gpu.cases import Benchmark, Definitions
from tests.gpu.layouts import Layout, Run, list_runs

if TYPE_CHECKING:  # packages that travel as wheels are not there yet when this is imported
    from einc_runtime.execution.cuda.driver import Driver
    from einc_runtime.execution.cuda.executor import CudaExecutor
    from einc_runtime.execution.session import Session
    from einc_runtime.kernels.cuda.tuning import Tuning
    from einc_runtime.kernels.gpu import Kernels
    from einc_runtime.plan.schema import Bundle

REHEARSE, GPUS, BROKEN = "--rehearse", "--gpus=", "--broken="


@dataclass(frozen=True, slots=True)
class Place:
    """`torch` is PyTorch's device, `gpus` the number of GPUs, and `broken` the primitives that a probe found broken."""

    torch: str
    gpus: int = 1
    broken: frozenset[str] = frozenset()

    @property
    def rehearsal(self) -> bool:
        return self.torch == "cpu"

    @property
    def architecture(self) -> str:
        if self.rehearsal:
            return "sm_90"
        from einc_runtime.execution.cuda.cupy_driver import CupyDriver

        return CupyDriver().target(0).architecture

    @property
    def arguments(self) -> list[str]:
        """What tells a worker that this is the place: see `of`."""
        told = [REHEARSE] if self.rehearsal else []
        return [*told, f"{GPUS}{self.gpus}", f"{BROKEN}{','.join(sorted(self.broken))}"]

    def runs(self) -> list[Run]:
        return list_runs(self.gpus, rehearsal=self.rehearsal)

    def definitions(self, benchmark: Benchmark) -> Definitions:
        return benchmark.small if self.rehearsal else benchmark.definitions

    @property
    def seconds(self) -> float:
        """Of every measurement."""
        return 0.0 if self.rehearsal else 0.08

    @contextmanager
    def parts(self, gpus: int = 1) -> Iterator[tuple[Driver, Kernels]]:
        """The driver, of so many GPUs in a rehearsal, and kernels, which are closed at the end."""
        driver, kernels = self._parts(gpus)
        try:
            yield driver, kernels
        finally:
            kernels.close()

    def _parts(self, gpus: int, seed: int = 0) -> tuple[Driver, Kernels]:
        if self.rehearsal:
            from tests.support.cuda_fake import FakeDriver
            from tests.support.cuda_fake_kernels import NumpyKernels

            fake = FakeDriver(gpus, seed=seed)
            return fake, NumpyKernels(fake)
        from einc_runtime.execution.cuda.cupy_driver import CupyDriver
        from einc_runtime.kernels.cuda.kernels import open_kernels

        return CupyDriver(), open_kernels()

    def executor(self, bundle: Bundle, layout: Layout = Layout.ONE, tunings: Sequence[Tuning] = ()) -> CudaExecutor:
        from einc_runtime.execution.cuda.executor import CudaExecutor

        sites = len(bundle.memory)
        if layout is Layout.ONE and not self.rehearsal:
            return CudaExecutor(bundle, [0] * sites, tunings=tunings)
        driver, kernels = self._parts(self.gpus if layout is Layout.SPREAD else 1, seed=len(bundle.tasks))
        devices = [0] * sites
        if layout is Layout.SPREAD:
            devices = [site % self.gpus for site in range(sites)]
        elif layout is not Layout.ONE:
            from tests.gpu.aliases import AliasedDriver, AliasedKernels

            devices, count = list(range(sites)), driver.device_count()
            driver = AliasedDriver(driver, sites, reach=layout is Layout.ALIASED)
            kernels = AliasedKernels(kernels, count)
        return CudaExecutor(bundle, devices, driver=driver, kernels=kernels)

    def session(self, bundle: Bundle, layout: Layout = Layout.ONE) -> Session:
        from einc_runtime.execution.session import Session

        return Session(bundle, executor=self.executor(bundle, layout))

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


GPU, CPU = Place("cuda"), Place("cpu", gpus=2)


def of(arguments: list[str]) -> tuple[Place, list[str]]:
    """The place that arguments of a worker name, and the others."""
    place, rest = (CPU if REHEARSE in arguments else GPU), []
    for one in arguments:
        if one.startswith(GPUS):
            place = replace(place, gpus=int(one.removeprefix(GPUS)))
        elif one.startswith(BROKEN):
            place = replace(place, broken=frozenset(filter(None, one.removeprefix(BROKEN).split(","))))
        elif one != REHEARSE:
            rest.append(one)
    return place, rest
