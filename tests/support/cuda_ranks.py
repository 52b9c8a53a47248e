"""Plans on GPUs of several ranks: threads, each with a fake driver, a fake of NCCL between them."""

from __future__ import annotations

from dataclasses import dataclass

from einc_runtime.execution.ranks.cuda_part import make_cuda_executor
from einc_runtime.execution.ranks.executor import RankExecutor
from einc_runtime.execution.session import Session
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.nccl_fake import FakeNccl, NcclWorld
from tests.support.thread_links import ThreadWorld


@dataclass
class RankOnFake:
    """What a program of a rank gets."""

    session: Session
    executor: RankExecutor
    driver: FakeDriver
    links: object


def run_on_fakes(bundle, size, program, *, seed=0, gpus=None, kernels=NumpyKernels, **options):
    """What `program` returns on each of `size` ranks, and the fake of NCCL. Each rank sees `gpus` GPUs of its own."""
    threads = ThreadWorld(size, seed)
    world = NcclWorld(seed, is_over=lambda: threads.aborted is not None)

    def run(links):
        driver = FakeDriver(gpus or len(bundle.memory), seed=seed * 64 + links.rank, bus=f"{links.rank:04}")
        executor = make_cuda_executor(
            bundle, links, driver=driver, kernels=kernels(driver), nccl=FakeNccl(world, driver), **options
        )
        return program(RankOnFake(Session(bundle, executor=executor), executor, driver, links))

    return threads.run(run), world
