"""The flow bound: the best weights and prices of `priced.py`, found by a linear program.

The program asks for the least time in which fractional transfers can satisfy every such row. Where only one site has,
or needs, each aggregate, that is the optimal fractional routing of multicasts, or of reductions. Rows are added as they
are violated: any subset of them gives a sound bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from einc.exchange.bounds.demand import Demand, Demands
from einc.exchange.bounds.priced import Priced, Row
from einc.exchange.network import Network, list_sites

MOST_SITES = 10
MOST_COLUMNS = 20_000
MOST_ROUNDS = 40

_VIOLATED = 1e-6
_PER_ROUND = 4  # rows added per demand and round


def flow(demands: Demands, network: Network) -> Priced | None:
    """The bound of the linear program; None where it is too large, or nothing has to be sent."""
    width = 2 * len(network.paths) + len(network.sites)
    if (
        not demands.family
        or not network.paths
        or len(network.sites) > MOST_SITES
        or len(demands.family) * width > MOST_COLUMNS
    ):
        return None
    program = _Program(demands, network)
    for _ in range(MOST_ROUNDS):
        if not program.solve() or not program.add_violated():
            break
    return program.witness()


Matrix = np.ndarray[Any, np.dtype[np.float64]]


class _Cuts:
    """All sets of sites but the empty one: which pairs enter and leave each, and which sites are inside."""

    def __init__(self, network: Network) -> None:
        self.pairs = list(network.paths)
        chosen = [mask for mask in range(1, network.all_sites + 1) if not mask & ~network.all_sites]
        self.sets = np.array(chosen, np.int64)
        self.place = {mask: number for number, mask in enumerate(chosen)}
        source, end = (np.array([pair[side] for pair in self.pairs]) for side in (0, 1))
        here, there = (self.sets[:, None] >> sites & 1 for sites in (source, end))
        self.into: Matrix = (there > here).astype(np.float64)
        self.out_of: Matrix = (here > there).astype(np.float64)
        self.inside: Matrix = (self.sets[:, None] >> np.array(network.sites) & 1).astype(np.float64)

    def possible(self, demand: Demand) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
        """For which sets a demand has rows, by kind."""
        lacking = [self.sets & holder == 0 for holder in demand.holders]
        around = [~self.sets & holder == 0 for holder in demand.holders]
        return {
            "enter": (self.sets & demand.targets != 0) & np.logical_or.reduce(lacking),
            "leave": np.logical_or.reduce(around) & (not demand.complete),
        }


@lru_cache(maxsize=4)
def _cuts_of(network: Network) -> _Cuts:
    return _Cuts(network)


@dataclass(frozen=True, slots=True)
class _Block:
    """The first columns of a demand: early and late transfers by pair (the same where no first site matters), and a."""

    early: int
    late: int
    first: int


class _Program:
    def __init__(self, demands: Demands, network: Network) -> None:
        import highspy as library

        highspy: Any = library
        self.demands, self.network, self.cuts = demands, network, _cuts_of(network)
        self.solver: Any = highspy.Highs()
        self.solver.silent()
        self.solver.setOptionValue("threads", 1)
        self.optimal = highspy.HighsModelStatus.kOptimal
        self.rows: list[Row | None] = []
        self.known: set[tuple[int, str, int]] = set()
        self.values: Any = None
        self.duals: Any = None
        self.solver.addCol(1.0, 0.0, highspy.kHighsInf, 0, [], [])
        self.blocks = [self._columns(demand) for demand in demands.family]
        self.possible = [self.cuts.possible(demand) for demand in demands.family]
        self._resources()
        for position, demand in enumerate(demands.family):
            self._start(position, demand)

    def _columns(self, demand: Demand) -> _Block:
        """Transfers of a copy by pair; in two stages where several sites have atoms and several are targets."""
        count = len(self.cuts.pairs)
        start = self.solver.getNumCol()
        staged = not demand.complete and demand.targets.bit_count() > 1 and len(demand.holders) > 1
        size = count * (2 if staged else 1) + (len(self.network.sites) if staged else 0)
        self.solver.addVars(size, [0.0] * size, [float("inf")] * size)
        if not staged:
            return _Block(start, start, -1)
        block = _Block(start, start + count, start + 2 * count)
        sites = len(self.network.sites)
        self.solver.addRow(1.0, 1.0, sites, list(range(block.first, block.first + sites)), [1.0] * sites)
        self.rows.append(None)
        return block

    def _resources(self) -> None:
        """What crosses a resource takes no longer than the time, in units of all bytes through the widest resource."""
        total = sum(demand.size for demand in self.demands.family)
        used = sorted({resource for route in self.network.paths.values() for resource in route})
        widest = max(self.network.rates[resource] for resource in used)
        self.resource_rows = []
        for resource in used:
            crossing = [k for k, pair in enumerate(self.cuts.pairs) if resource in self.network.paths[pair]]
            columns, values = [0], [-self.network.rates[resource] / widest]
            for block, demand in zip(self.blocks, self.demands.family, strict=True):
                for start in sorted({block.early, block.late}):
                    columns += [start + k for k in crossing]
                    values += [demand.size / total] * len(crossing)
            self.solver.addRow(-float("inf"), 0.0, len(columns), columns, values)
            self.resource_rows.append((len(self.rows), resource))
            self.rows.append(None)

    def _start(self, position: int, demand: Demand) -> None:
        everything = self.network.all_sites
        sets = [1 << site for site in list_sites(demand.targets)]
        sets += [everything & ~holder for holder in demand.holders]
        for mask in sets:
            if mask and demand.must_enter(mask):
                self._add(Row(position, "enter", mask, 0.0))
        if self.blocks[position].first >= 0:
            for site in list_sites(demand.targets):
                self._add(Row(position, "receive", 1 << site, 0.0))
            for holder in demand.holders:
                self._add(Row(position, "leave", holder, 0.0))

    def _add(self, row: Row) -> bool:
        key = (row.demand, row.kind, row.sites)
        if key in self.known:
            return False
        self.known.add(key)
        block = self.blocks[row.demand]
        crosses = self.cuts.out_of if row.kind == "leave" else self.cuts.into
        crossing = np.flatnonzero(crosses[self.cuts.place[row.sites]]).tolist()
        starts = {"enter": sorted({block.early, block.late}), "leave": [block.early], "receive": [block.late]}[row.kind]
        columns = [start + k for start in starts for k in crossing]
        if row.kind != "enter":
            columns += [block.first + k for k, site in enumerate(self.network.sites) if row.sites >> site & 1]
        self.solver.addRow(1.0, float("inf"), len(columns), columns, [1.0] * len(columns))
        self.rows.append(row)
        return True

    def solve(self) -> bool:
        self.solver.run()
        if self.solver.getModelStatus() != self.optimal:
            return False
        solution = self.solver.getSolution()
        self.values = np.array(solution.col_value)
        self.duals = list(solution.row_dual)
        return True

    def add_violated(self) -> bool:
        """Add the rows that the solution violates most; whether there were any."""
        added = False
        count, sites = len(self.cuts.pairs), len(self.network.sites)
        for position, block in enumerate(self.blocks):
            early = self.values[block.early : block.early + count]
            late = self.values[block.late : block.late + count]
            both = early if block.first < 0 else early + late
            for row in self._violated(position, "enter", self.cuts.into @ both):
                added |= self._add(row)
            if block.first >= 0:
                first = self.cuts.inside @ self.values[block.first : block.first + sites]
                for row in self._violated(position, "leave", self.cuts.out_of @ early + first):
                    added |= self._add(row)
        return added

    def _violated(self, position: int, kind: Any, left: Any) -> Iterator[Row]:
        short = np.where(self.possible[position][kind], 1.0 - left, 0.0)
        for number in np.argsort(-short, kind="stable")[:_PER_ROUND]:
            if short[number] > _VIOLATED:
                yield Row(position, kind, int(self.cuts.sets[number]), 0.0)

    def witness(self) -> Priced | None:
        """The dual solution as weights and prices."""
        if self.duals is None:
            return None
        network = self.network
        total = sum(demand.size for demand in self.demands.family)
        prices = {resource: max(0.0, -self.duals[number]) for number, resource in self.resource_rows}
        rows = tuple(
            Row(row.demand, row.kind, row.sites, dual * total / self.demands.family[row.demand].size)
            for row, dual in zip(self.rows, self.duals, strict=False)
            if row is not None and dual > 1e-12
        )
        scarce = [resource for resource, price in prices.items() if price > 1e-9]
        names = ", ".join(network.names[resource] for resource in scarce[:4])
        more = f" and {len(scarce) - 4} more" if len(scarce) > 4 else ""
        told = f"flow: no fractional routing is faster; it fills {names}{more}"
        return Priced(rows, tuple((resource, price) for resource, price in prices.items() if price), told)
