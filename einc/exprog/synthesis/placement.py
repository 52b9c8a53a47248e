"""Memberships of the partitions that a preamble declares by size, chosen for the least time of the fullest resource.

Prices on the resources give every membership a bound from below, all of them at once from one table per demand. The
membership of the least bound is packed, the packing's prices raise the bounds of others, and so on: once no bound lies
below the best packing, that one is the best of all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from einc.errors import ProgramError
from einc.exprog.program import Program, Requirement
from einc.exprog.synthesis.demands import Demand, demands_of, shapes_of
from einc.exprog.synthesis.fabric import Fabric
from einc.exprog.synthesis.packing import Packing, pack, total_volume
from einc.exprog.synthesis.trees import MOST_TERMINALS, Floats, Multicast, Prices, Reduction, cheapest_sets

Membership = dict[str, tuple[int, ...]]

MOST_MEMBERSHIPS = 50_000
"""Memberships that are compared; of more, the first in lexicographic order."""

MOST_PACKED = 24


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


def memberships(program: Program, sites: Sequence[int]) -> Iterator[Membership]:
    """All memberships of the open partitions in lexicographic order. Raises ProgramError where sites do not suffice."""
    taken = {site for partition in program.partitions for site in partition.members or ()}
    free = [site for site in sites if site not in taken]
    open_ = [partition for partition in program.partitions if partition.members is None]
    wanted = sum(partition.size for partition in open_)
    if wanted > len(free):
        raise ProgramError(f"the partitions declared by size need {wanted} sites, and {len(free)} are left")

    def choose(rest: Sequence[tuple[str, int]], left: Sequence[int]) -> Iterator[Membership]:
        if not rest:
            yield {}
            return
        name, size = rest[0]
        for members in itertools.combinations(left, size):
            for others in choose(rest[1:], [site for site in left if site not in members]):
                yield {name: members, **others}

    return choose([(partition.name, partition.size) for partition in open_], free)


def place(
    program: Program, fabric: Fabric, slack: float, stop: Callable[[], bool] = lambda: False
) -> tuple[Program, tuple[Demand, ...], Packing]:
    """The program with the best membership found, its demands, and their packing."""
    if not is_open(program):
        demands = demands_of(program)
        return program, demands, _pack(demands, fabric, slack, np.inf, stop)
    choices = list(itertools.islice(memberships(program, fabric.sites), MOST_MEMBERSHIPS))
    bounds = np.zeros(len(choices))
    if len(fabric.sites) <= MOST_TERMINALS:
        network = np.array(fabric.rates)
        network[fabric.first_hbm :] = 0.0
        groups = _groups(program, choices, fabric)
        bounds = _bound(groups, Prices(fabric, network / network.sum() / np.array(fabric.rates)), len(choices))
    best: tuple[Program, tuple[Demand, ...], Packing] | None = None
    for _ in range(MOST_PACKED if len(fabric.sites) <= MOST_TERMINALS else 1):
        pick = int(bounds.argmin())
        if best is not None and (stop() or bounds[pick] >= best[2].fullest_ms * 0.999):
            break
        trial = with_members(program, choices[pick])
        demands = demands_of(trial)
        packing = _pack(demands, fabric, slack, np.inf if best is None else best[2].fullest_ms, stop)
        if best is None or packing.fullest_ms < best[2].fullest_ms:
            best = trial, demands, packing
        if len(fabric.sites) <= MOST_TERMINALS:
            prices = Prices(fabric, packing.price / np.array(fabric.rates))
            bounds = np.maximum(bounds, _bound(groups, prices, len(choices)))
        bounds[pick] = np.inf
    assert best is not None, "there is at least one membership"
    return best


def _pack(demands: Sequence[Demand], fabric: Fabric, slack: float, cutoff: float, stop: Callable[[], bool]) -> Packing:
    if not demands:
        return Packing({}, 0.0, np.zeros(len(fabric.rates)))
    return pack(total_volume(shapes_of(demands), [demand.size for demand in demands]), fabric, slack, cutoff, stop)


_Groups = dict[tuple[tuple[int, ...], ...], list[tuple[float, "np.ndarray[Any, np.dtype[np.int64]]"]]]
"""By holders of the parts: the bytes of all that has the same targets, and those under every membership as masks."""


def _groups(program: Program, choices: Sequence[Membership], fabric: Fabric) -> _Groups:
    """The demands of the program as if nothing were held at its targets."""
    number = {site: position for position, site in enumerate(fabric.sites)}
    everywhere = dict.fromkeys(Requirement(entry.aggregate, fabric.sites) for entry in program.requirements)
    demands = demands_of(dataclasses.replace(program, partitions=(), requirements=tuple(everywhere)))
    known = {demand.aggregate: demand for demand in demands}
    volumes: dict[tuple[tuple[tuple[int, ...], ...], tuple[int | str, ...]], float] = {}
    for requirement in program.requirements:
        if requirement.aggregate in known:
            demand = known[requirement.aggregate]
            key = (demand.shape.holders, requirement.targets)
            volumes[key] = volumes.get(key, 0.0) + demand.size
    members = {partition.name: partition.members for partition in program.partitions}
    masks: dict[int | str, np.ndarray[Any, np.dtype[np.int64]]] = {}
    groups: _Groups = {}
    for (holders, targets), volume in volumes.items():
        union = np.zeros(len(choices), np.int64)
        for target in targets:
            if target not in masks:
                fixed = members[target] if isinstance(target, str) else (target,)
                masks[target] = np.array(
                    [
                        sum(1 << number[site] for site in (choice[str(target)] if fixed is None else fixed))
                        for choice in choices
                    ],
                    np.int64,
                )
            union |= masks[target]
        groups.setdefault(holders, []).append((volume, union))
    return groups


def _bound(groups: _Groups, prices: Prices, count: int) -> Floats:
    """For every membership what its demands cost at these prices."""
    multicast = Multicast(prices, prices.fabric.sites)
    total: Floats = np.zeros(count)
    for holders, uses in groups.items():
        best = cheapest_sets(Reduction(prices, holders), multicast)[0]
        for volume, masks in uses:
            total += volume * best[masks]
    return total
