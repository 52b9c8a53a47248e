"""Makes the executor of a rank that runs its part of a plan on its GPUs, as one captured graph, and exchanges messages
over NCCL inside of it.

MPI only starts the ranks, tells them which GPUs there are, and brings results to rank 0. Every kernel reads what it
reads in one process, where each site has a GPU of its own, and is the same code: so the results have the same bits.

Ranks of one machine agree on which GPU every site has.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.lanes import Lanes, MessageEnd
from einc_runtime.execution.cuda.nccl import Communicators, Nccl
from einc_runtime.execution.ranks.carrier import Arrivals
from einc_runtime.execution.ranks.executor import RankExecutor
from einc_runtime.execution.ranks.links import RankLinks
from einc_runtime.execution.ranks.part import take_part
from einc_runtime.kernels.gpu import Kernels
from einc_runtime.plan.ranks import Shares, assign_sites
from einc_runtime.plan.schema import Bundle, FenceTask

if TYPE_CHECKING:
    from einc_runtime.kernels.cuda.tuning import Tuning


@dataclass(frozen=True, slots=True)
class RankGpus:
    """`devices` gives every site of this rank its device here. `gpus` gives every site of the plan its GPU: those that
    are used are numbered rank by rank, and by their device on each; there are `count`."""

    devices: tuple[int, ...]
    gpus: tuple[int, ...]
    count: int


def agree_on_gpus(
    links: RankLinks, driver: Driver, ranks: Sequence[int], devices: Sequence[int] | None = None
) -> RankGpus:
    """What all ranks together find: `ranks` has the rank of every site, and `devices` the device of every site, as its
    rank numbers them. Without `devices`, every site has a GPU of its own, the first that is free on its machine.

    Raises MissingFault where GPUs are missing, and where two ranks have the same one: NCCL forbids that.
    """
    addresses = [f"{_name_machine()} {driver.address(device)}" for device in range(driver.device_count())]
    visible: list[list[str]] = [json.loads(text) for text in links.share(json.dumps(addresses).encode())]
    taken: dict[str, int] = {}  # GPU -> its rank
    chosen: list[int] = []
    for site, rank in enumerate(ranks):
        device = _find_free(visible[rank], taken) if devices is None else devices[site]
        if device is None or not 0 <= device < len(visible[rank]):
            raise _make_missing(rank, ranks.count(rank), len(visible[rank]), device)
        first_rank = taken.setdefault(visible[rank][device], rank)
        if first_rank != rank:
            raise MissingFault(
                f"ranks {first_rank} and {rank} have the same GPU ({visible[rank][device].split()[-1]}), and NCCL "
                "connects different ones only",
                hint="give each rank GPUs of its own (--devices, CUDA_VISIBLE_DEVICES), or start fewer ranks",
            )
        chosen.append(device)
    numbers = {pair: number for number, pair in enumerate(sorted(set(zip(ranks, chosen, strict=True))))}
    gpus = tuple(numbers[pair] for pair in zip(ranks, chosen, strict=True))
    mine = tuple(device for rank, device in zip(ranks, chosen, strict=True) if rank == links.rank)
    return RankGpus(mine, gpus, len(numbers))


def _find_free(visible: Sequence[str], taken: dict[str, int]) -> int | None:
    return next((device for device, name in enumerate(visible) if name not in taken), None)


def _make_missing(rank: int, sites: int, visible: int, device: int | None) -> MissingFault:
    count = f"{visible} GPU{'s are' if visible != 1 else ' is'} visible there"
    if device is not None:
        return MissingFault(f"there is no device {device}: {count}", where=f"rank {rank}")
    return MissingFault(
        f"{sites} site{'s need' if sites != 1 else ' needs'} a GPU each, which no other rank has, and {count}",
        where=f"rank {rank}",
        hint="start fewer ranks or use more machines, or put several sites of a rank on one GPU (--devices)",
    )


def _name_machine() -> str:
    """Equal for processes of one machine, and for no others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


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
