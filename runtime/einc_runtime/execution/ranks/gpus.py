"""Which GPU every site has where several ranks run a plan: ranks of one machine agree on its GPUs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.ranks.links import RankLinks


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
