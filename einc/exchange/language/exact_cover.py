"""The cheapest partition of an aggregate into given aggregates: an exact cover, within a limited number of steps."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import TypeVar

from einc.errors import ProgramError
from einc.exchange.language.program import Aggregate

_Member = TypeVar("_Member", bound=str | int)

MAX_COVER_STEPS = 20_000_000
"""Steps that a budget allows: comparisons of two aggregates. A step of a cover search counts as 20."""


class CoverBudget:
    """The steps left for all comparisons and cover searches on one program, so that hostile programs end too."""

    __slots__ = ("left",)

    def __init__(self, steps: int = MAX_COVER_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise ProgramError(
                "too many aggregates of this program overlap at its sites to choose among their partitions",
                hint="name fewer overlapping aggregates",
            )


def find_cheapest_partition(
    target: Aggregate, parts: Collection[tuple[Aggregate, int]], budget: CoverBudget
) -> tuple[Aggregate, ...] | None:
    """Pairwise disjoint parts that make up `target`, at the least sum of their (positive) costs, in ascending order.

    `parts` are (subset of target, cost) pairs. None where there is no partition. Ties are decided by the ascending
    order of parts, so the result does not depend on the order of `parts`. Raises ProgramError where the budget ends.
    """
    chosen: list[Aggregate] = []
    for atoms, group in _group_connected(target, sorted(parts)):
        cover = _search_cover(atoms, group, budget)
        if cover is None:
            return None
        chosen += cover
    return tuple(sorted(chosen))


def find_root(parent: dict[_Member, _Member], member: _Member) -> _Member:
    """The member that stands for all that are joined with one; `parent` leads to it, and is shortened."""
    while parent[member] != member:
        parent[member] = member = parent[parent[member]]
    return member


def _group_connected(
    target: Aggregate, parts: Sequence[tuple[Aggregate, int]]
) -> list[tuple[list[str], list[tuple[Aggregate, int]]]]:
    """Groups of atoms that parts connect, with those parts; each group can be covered independently."""
    parent = {atom: atom for atom in target}
    for part, _ in parts:
        for atom in part[1:]:
            parent[find_root(parent, atom)] = find_root(parent, part[0])
    groups: dict[str, tuple[list[str], list[tuple[Aggregate, int]]]] = {}
    for atom in target:
        groups.setdefault(find_root(parent, atom), ([], []))[0].append(atom)
    for entry in parts:
        groups[find_root(parent, entry[0][0])][1].append(entry)
    return list(groups.values())


def _search_cover(atoms: list[str], parts: list[tuple[Aggregate, int]], budget: CoverBudget) -> list[Aggregate] | None:
    """Uniform-cost search over covered sets; each step covers the first atom that is not covered yet."""
    bit = {atom: 1 << position for position, atom in enumerate(atoms)}
    starting: dict[int, list[tuple[int, int, int]]] = {}  # bit -> (mask, cost, number) of the parts that hold it
    for number, (part, cost) in enumerate(parts):
        mask = sum(bit[atom] for atom in part)
        for atom in part:
            starting.setdefault(bit[atom], []).append((mask, cost, number))
    full = (1 << len(atoms)) - 1
    came: dict[int, tuple[int, int]] = {}  # covered set -> (set before, part)
    best = {0: 0}
    queue = [(0, 0, 0)]  # (cost, order of discovery, covered set)
    discovered = 0
    while queue:
        cost, _, covered = heapq.heappop(queue)
        if covered == full:
            break
        if cost > best[covered]:
            continue
        lowest = ~covered & (covered + 1)
        for mask, price, number in starting.get(lowest, ()):
            budget.spend(20)
            if mask & covered:
                continue
            after = covered | mask
            if cost + price < best.get(after, 1 << 62):
                best[after] = cost + price
                came[after] = (covered, number)
                discovered += 1
                heapq.heappush(queue, (cost + price, discovered, after))
    else:
        return None
    chosen = []
    while covered:
        covered, number = came[covered]
        chosen.append(parts[number][0])
    return chosen
