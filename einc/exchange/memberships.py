"""Open partitions, which a program declares by size, and all their memberships as bit masks over a few sites."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from einc.errors import ProgramError
from einc.exchange.language.program import Partition, Program
from einc_runtime.dtypes import Ints


def list_free_sites(program: Program, sites: Sequence[int]) -> tuple[list[Partition], list[int]]:
    """The open partitions, and the sites that they may have. Raises ProgramError where sites do not suffice."""
    taken = {site for partition in program.partitions for site in partition.members or ()}
    free = [site for site in sites if site not in taken]
    open_ = [partition for partition in program.partitions if partition.members is None]
    needed = sum(partition.size for partition in open_)
    if needed > len(free):
        raise ProgramError(f"the partitions declared by size need {needed} sites, and {len(free)} are left")
    return open_, free


def enumerate_masks(program: Program, sites: Sequence[int]) -> Ints:
    """The members of every open partition, as masks over the positions in `sites`: a row for every membership, in
    lexicographic order. Raises ProgramError where sites do not suffice."""
    open_, free = list_free_sites(program, sites)
    positions = {site: position for position, site in enumerate(sites)}
    return _enumerate(tuple(partition.size for partition in open_), tuple(positions[site] for site in free))


@lru_cache(maxsize=8)
def _enumerate(sizes: tuple[int, ...], free: tuple[int, ...]) -> Ints:
    """All ways to take disjoint sets of these sizes from the positions in `free`, as masks."""
    rows: Ints = np.zeros((1, 0), np.int64)
    for size in sizes:
        masks = np.array([sum(1 << at for at in chosen) for chosen in itertools.combinations(free, size)], np.int64)
        taken = np.bitwise_or.reduce(rows, axis=1) if rows.shape[1] else np.zeros(len(rows), np.int64)
        row, column = np.nonzero((taken[:, None] & masks[None, :]) == 0)
        rows = np.column_stack((rows[row], masks[column]))
    rows.flags.writeable = False
    return rows


def decode_masks(program: Program, row: Sequence[int], sites: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """A row of `enumerate_masks` as members."""
    names = [partition.name for partition in program.partitions if partition.members is None]
    return {
        name: tuple(site for position, site in enumerate(sites) if int(mask) >> position & 1)
        for name, mask in zip(names, row, strict=True)
    }


def compute_target_masks(program: Program, masks: Ints, sites: Sequence[int], targets: Sequence[int | str]) -> Ints:
    """The sites that some targets stand for, under every membership."""
    number = {site: position for position, site in enumerate(sites)}
    fixed = {partition.name: partition.members for partition in program.partitions if partition.members is not None}
    names = [partition.name for partition in program.partitions if partition.members is None]
    union: Ints = np.zeros(len(masks), np.int64)
    for target in targets:
        if isinstance(target, str) and target not in fixed:
            union |= masks[:, names.index(target)]
        else:
            union |= sum(1 << number[site] for site in (fixed[target] if isinstance(target, str) else (target,)))
    return union


def is_open(program: Program) -> bool:
    """Whether some partition is declared by size alone."""
    return any(partition.members is None for partition in program.partitions)


def close_partitions(program: Program, chosen: Mapping[str, tuple[int, ...]]) -> Program:
    """The program with the open partitions' members as chosen."""
    partitions = tuple(
        partition if partition.members is not None else dataclasses.replace(partition, members=chosen[partition.name])
        for partition in program.partitions
    )
    return dataclasses.replace(program, partitions=partitions)
