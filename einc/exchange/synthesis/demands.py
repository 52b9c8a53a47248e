"""What a preamble asks for, as demands: parts that IN holds, to be combined and brought to targets.

Demands of one shape (same holders, same targets) look alike to a machine: routes are found once per shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc.errors import ProgramError
from einc.exchange.language.exact_cover import CoverBudget, find_cheapest_partition
from einc.exchange.language.program import Aggregate, Program, collect_atom_sizes, list_targets

MAX_TERMINALS = 8
"""Parts, and targets, up to which the dynamic program for the cheapest routes is fast enough."""


@dataclass(frozen=True, slots=True)
class DemandShape:
    """Where the parts of an aggregate are (sites, one tuple per part) and where it must be; all ascending."""

    holders: tuple[tuple[int, ...], ...]
    targets: tuple[int, ...]

    @property
    def is_large(self) -> bool:
        """Whether it has too many parts or targets for the cheapest routes to be found."""
        return max(len(self.holders), len(self.targets)) > MAX_TERMINALS


@dataclass(frozen=True, slots=True)
class Demand:
    """An aggregate to be brought to the targets of its shape; `parts` correspond to the shape's holders."""

    aggregate: Aggregate
    parts: tuple[Aggregate, ...]
    size: int
    shape: DemandShape


def find_demands(program: Program) -> tuple[Demand, ...]:
    """The demands of a program with explicit memberships; those that IN meets already are left out.

    Of several partitions of an aggregate into copies of IN, the one with the fewest parts is taken. Raises
    ProgramError where there is none.
    """
    holders: dict[Aggregate, set[int]] = {}
    for holding in program.holdings:
        holders.setdefault(holding.aggregate, set()).update(holding.sites)
    by_atom: dict[str, list[Aggregate]] = {}
    for aggregate in holders:
        for atom in aggregate:
            by_atom.setdefault(atom, []).append(aggregate)
    required: dict[Aggregate, set[int]] = {}
    for requirement in program.requirements:
        required.setdefault(requirement.aggregate, set()).update(list_targets(program, requirement))
    sizes = collect_atom_sizes(program)
    budget = CoverBudget()
    demands = []
    for aggregate, sites in required.items():
        targets = tuple(sorted(sites - holders.get(aggregate, set())))
        if not targets:
            continue
        parts = _choose_parts(aggregate, by_atom, budget)
        if aggregate in holders:
            parts = (aggregate,)
        shape = DemandShape(tuple(tuple(sorted(holders[part])) for part in parts), targets)
        demands.append(Demand(aggregate, parts, sizes[aggregate[0]], shape))
    return tuple(demands)


def group_by_shape(demands: Sequence[Demand]) -> dict[DemandShape, list[int]]:
    """The positions of the demands of every shape."""
    shapes: dict[DemandShape, list[int]] = {}
    for position, demand in enumerate(demands):
        shapes.setdefault(demand.shape, []).append(position)
    return shapes


def _choose_parts(
    aggregate: Aggregate, by_atom: dict[str, list[Aggregate]], budget: CoverBudget
) -> tuple[Aggregate, ...]:
    atoms = frozenset(aggregate)
    candidates = {part for atom in aggregate for part in by_atom.get(atom, ()) if atoms.issuperset(part)}
    chosen = find_cheapest_partition(aggregate, [(part, 1) for part in candidates], budget)
    if chosen is None:
        raise ProgramError(f"{'+'.join(aggregate)} cannot be made of what IN holds")
    return chosen
