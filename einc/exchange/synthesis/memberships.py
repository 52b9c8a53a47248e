"""Memberships of partitions that are declared by size: the bytes that each moves, and the one that moves the fewest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einc.exchange.language.program import Program, Requirement
from einc.exchange.memberships import room
from einc.exchange.synthesis.demands import Demand, demands_of

Membership = dict[str, tuple[int, ...]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


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

    open_, free = room(program, sites)
    columns = [position for position, site in enumerate(sites) if site in free]
    missing = moved_bytes(program, anywhere(program, sites), sites)[:, columns]
    slots = [row for row, partition in enumerate(open_) for _ in range(partition.size)]
    _, chosen, _ = lapjv(missing[slots], extend_cost=True)
    members: dict[str, list[int]] = {partition.name: [] for partition in open_}
    for row, column in zip(slots, chosen, strict=True):
        members[open_[row].name].append(sites[columns[int(column)]])
    return {name: tuple(sorted(own)) for name, own in members.items()}
