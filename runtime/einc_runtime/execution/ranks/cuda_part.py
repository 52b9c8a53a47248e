"""Makes the executor of a rank that runs its part of a plan on its GPUs, as one captured graph, and exchanges messages
over NCCL inside of it.

MPI only starts the ranks, tells them which GPUs there are, and brings results to rank 0. Every kernel reads what it
reads in one process, where each site has a GPU of its own, and is the same code: so the results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.lanes import Lanes, MessageEnd
from einc_runtime.execution.cuda.nccl import Communicators, Nccl
from einc_runtime.execution.ranks.carrier import Arrivals
from einc_runtime.execution.ranks.executor import RankExecutor
from einc_runtime.execution.ranks.gpus import RankGpus, agree_on_gpus
from einc_runtime.execution.ranks.links import RankLinks
from einc_runtime.execution.ranks.part import take_part
from einc_runtime.kernels.gpu import Kernels
from einc_runtime.plan.ranks import Shares, assign_sites
from einc_runtime.plan.schema import Bundle, FenceTask

if TYPE_CHECKING:
    from pathlib import Path

    from einc_runtime.kernels.cuda.tuning import Tuning


def make_cuda_executor(
    bundle: Bundle,
    links: RankLinks,
    devices: Sequence[int] | None = None,
    *,
    no_peer: str = "stage",
    tunings: Sequence[Tuning] = (),
    kernel_folders: Sequence[Path] = (),
    shares: Shares | None = None,
    note_task: Callable[[int], None] | None = None,
    driver: Driver | None = None,
    kernels: Kernels | None = None,
    nccl: Nccl | None = None,
) -> RankExecutor:
    """See `CudaExecutor` for the arguments. All ranks make one from the same bundle, at the same time.

    `devices` gives every site of the plan the device that it has on its rank; without it, each site has a GPU of its
    own. `shares` says how many sites each rank has; the default is evenly. `note_task` is told the first task of each
    execution. Raises PlanFault where the plan has fewer sites than there are ranks, or the shares do not fit, and
    MissingFault where GPUs or NCCL are missing.
    """
    owners = assign_sites(len(bundle.memory), links.size, shares)
    driver = _load_driver() if driver is None else driver
    nccl = _load_nccl(driver) if nccl is None else nccl
    gpus = agree_on_gpus(links, driver, owners, devices)
    part = take_part(bundle, owners, links.rank)
    ends = {task: MessageEnd(gpus.gpus[site], not _sends(part.bundle, task)) for task, site in part.messages.items()}
    join = partial(_join, links, nccl, gpus, part.sites)
    executor = CudaExecutor(
        part.bundle,
        gpus.devices,
        no_peer=no_peer,
        tunings=tunings,
        kernel_folders=kernel_folders,
        driver=driver,
        kernels=kernels,
        lanes=Lanes(bundle, ends, join, sites=part.sites, versions={"nccl": str(nccl.version())}),
    )
    streams = max(map(int, links.share(b"%d" % executor.count_streams())))
    first = next((number for number, task in enumerate(part.bundle.tasks) if not isinstance(task, FenceTask)), None)
    begin = None if note_task is None or first is None else partial(note_task, first)
    return RankExecutor(bundle, executor, links, owners, Arrivals(), streams, begin)


def _sends(bundle: Bundle, task: int) -> bool:
    return bool(bundle.tasks[task].reads)  # type: ignore[union-attr]


def _join(links: RankLinks, nccl: Nccl, rank_gpus: RankGpus, sites: Sequence[int]) -> Communicators:
    """Rank 0 makes NCCL's id; MPI brings it to all."""
    identity = links.share(nccl.make_id() if links.rank == 0 else b"")[0]
    gpus = dict(sorted((device, rank_gpus.gpus[site]) for device, site in zip(rank_gpus.devices, sites, strict=True)))
    return nccl.join(identity, rank_gpus.count, gpus)


def _load_driver() -> Driver:
    from einc_runtime.execution.cuda.cupy_driver import CupyDriver

    return CupyDriver()


def _load_nccl(driver: Driver) -> Nccl:
    from einc_runtime.execution.cuda.cupy_nccl import CupyNccl

    return CupyNccl(driver)
