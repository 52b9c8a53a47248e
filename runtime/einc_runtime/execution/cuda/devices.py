"""Which device every site is on, and how devices reach each other's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.plan.schema import AnyTask, Buffer, TransferTask


def map_sites(sites: int, devices: Sequence[int] | None, found: int) -> tuple[int, ...]:
    """The device of every site: as given, or site i on device i. Raises MissingFault for devices that are not here."""
    there = f"{found} GPU{'s are' if found != 1 else ' is'} visible"
    if devices is None:
        if sites > found:
            together = ",".join(str(site * found // sites) for site in range(sites)) if found else "0"
            advice = f"--devices {together} puts several sites on one GPU; " if found else ""
            advice += "--backend cpu needs none"
            raise MissingFault(f"the plan has {sites} sites, and {there}", hint=advice)
        return tuple(range(sites))
    missing = sorted({device for device in devices if not 0 <= device < found})
    if missing:
        named = ", ".join(map(str, missing))
        hint = f"number the devices 0 to {found - 1}; CUDA_VISIBLE_DEVICES says which they are" if found else None
        raise MissingFault(f"there is no device {named}: {there}", hint=hint)
    return tuple(devices)


@dataclass(frozen=True, slots=True)
class Reach:
    """Pairs of devices that exchange data: `direct` ones reach each other's memory, `staged` ones use the host's."""

    direct: frozenset[tuple[int, int]]
    staged: frozenset[tuple[int, int]]


def exchanging(tasks: Iterable[AnyTask], buffers: Sequence[Buffer], devices: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs (from, to) of different devices between which tasks transfer, ascending."""
    found = set()
    for task in tasks:
        if isinstance(task, TransferTask):
            pair = devices[buffers[task.read.buffer].site], devices[buffers[task.write.buffer].site]
            if pair[0] != pair[1]:
                found.add(pair)
    return sorted(found)


def reach(driver: Driver, pairs: Sequence[tuple[int, int]], no_peer: str) -> Reach:
    """Asks which pairs can reach each other. Raises MissingFault for one that cannot, if those are to be refused."""
    direct: set[tuple[int, int]] = set()
    staged: set[tuple[int, int]] = set()
    for source, target in pairs:
        # The copy runs on the source's stream; both directions, since a pair of devices is connected or it is not.
        both = driver.can_reach(source, target) and driver.can_reach(target, source)
        (direct if both else staged).add((source, target))
    if staged and no_peer == "refuse":
        named = "; ".join(f"{source} and {target}" for source, target in sorted(staged) if source < target)
        raise MissingFault(
            f"GPUs that exchange data cannot reach each other's memory: {named or sorted(staged)}",
            hint="--no-peer stage sends it through the host's memory, which is slower",
        )
    return Reach(frozenset(direct), frozenset(staged))
