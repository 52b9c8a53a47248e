"""Memberships of the partitions that a preamble declares by size: all of them as bit masks, and the bytes each moves.

On machines of a few sites all are known; on larger ones only the one that moves the fewest bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einc.errors import ProgramError
from einc.exprog.program import Program, Requirement
from einc.exprog.synthesis.demands import Demand, demands_of

Membership = dict[str, tuple[int, ...]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

MOST_SITES = 8
"""Up to so many sites, all memberships are compared: 8! at most."""


def is_open(program: Program) -> bool:
    """Whether some partition is declared by size alone."""
    return any(partition.members is None for partition in program.partitions)


def with_members(program: Program, chosen: Mapping[str, tuple[int, ...]]) -> Program:
    """The program with the open partitions' members as chosen."""
    partitions = tuple(
        partition if partition.members is not None else dataclasses.replace(partition, members=chosen[partition.name])
        for partition in program.partitions
    )
    return dataclasses.replace(program, partitions=partitions)


def anywhere(program: Program, sites: Sequence[int]) -> dict[tuple[str, ...], Demand]:
    """The demand of every required aggregate as if all sites needed it and none had it."""
    everywhere = dict.fromkeys(Requirement(entry.aggregate, tuple(sites)) for entry in program.requirements)
    bare = dataclasses.replace(program, partitions=(), requirements=tuple(everywhere))
    return {demand.aggregate: demand for demand in demands_of(bare)}


def all_masks(program: Program, sites: Sequence[int]) -> Ints:
    """The members of every open partition, as masks over the positions in `sites`: a row for every membership, in
    lexicographic order. Raises ProgramError where sites do not suffice."""
    _, free = _room(program, sites)
    at = {site: position for position, site in enumerate(sites)}
    rows: Ints = np.zeros((1, 0), np.int64)
    for partition in program.partitions:
        if partition.members is not None:
            continue
        own = np.array(
            [sum(1 << at[site] for site in chosen) for chosen in itertools.combinations(free, partition.size)], np.int64
        )
        taken = np.bitwise_or.reduce(rows, axis=1) if rows.shape[1] else np.zeros(len(rows), np.int64)
        row, column = np.nonzero((taken[:, None] & own[None, :]) == 0)
        rows = np.column_stack((rows[row], own[column]))
    return rows


def membership(program: Program, row: Sequence[int], sites: Sequence[int]) -> Membership:
    """A row of `all_masks` as members."""
    names = [partition.name for partition in program.partitions if partition.members is None]
    return {
        name: tuple(site for position, site in enumerate(sites) if int(mask) >> position & 1)
        for name, mask in zip(names, row, strict=True)
    }


def moved_bytes(program: Program, demands: Mapping[tuple[str, ...], Demand], sites: Sequence[int]) -> Floats:
    """Bytes that must come to a site if an open partition has it, part by part: (open partitions, sites)."""
    names = [partition.name for partition in program.partitions if partition.members is None]
    number = {name: position for position, name in enumerate(names)}
    at = {site: position for position, site in enumerate(sites)}
    missing: Floats = np.zeros((len(names), len(sites)))
    for requirement in program.requirements:
        demand = demands.get(requirement.aggregate)
        for target in requirement.targets if demand else ():
            if isinstance(target, str) and target in number and demand is not None:
                row = missing[number[target]]
                for holders in demand.shape.holders:
                    row += demand.size
                    row[[at[site] for site in holders]] -= demand.size
    return missing


def fewest_bytes(program: Program, sites: Sequence[int]) -> Membership:
    """The membership that moves the fewest bytes. Raises ProgramError where sites do not suffice."""
    from lap import lapjv

    open_, free = _room(program, sites)
    columns = [position for position, site in enumerate(sites) if site in free]
    missing = moved_bytes(program, anywhere(program, sites), sites)[:, columns]
    slots = [row for row, partition in enumerate(open_) for _ in range(partition.size)]
    _, chosen, _ = lapjv(missing[slots], extend_cost=True)
    members: dict[str, list[int]] = {partition.name: [] for partition in open_}
    for row, column in zip(slots, chosen, strict=True):
        members[open_[row].name].append(sites[columns[int(column)]])
    return {name: tuple(sorted(own)) for name, own in members.items()}


def _room(program: Program, sites: Sequence[int]) -> tuple[list[Any], list[int]]:
    """The open partitions, and the sites that they may have."""
    taken = {site for partition in program.partitions for site in partition.members or ()}
    free = [site for site in sites if site not in taken]
    open_ = [partition for partition in program.partitions if partition.members is None]
    wanted = sum(partition.size for partition in open_)
    if wanted > len(free):
        raise ProgramError(f"the partitions declared by size need {wanted} sites, and {len(free)} are left")
    return open_, free
