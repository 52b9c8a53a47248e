"""The flow bound: weighted inequalities and prices, found by a linear program and checked without it.

Let y(u, v) be the number of copies sent from u to v for an aggregate X, in parts of a copy where atoms are split.
Taken piece by piece and in the order of their ends, the transfers of a piece make some site v the first that has
received every atom (where no site held them all). With a(S) the part of the pieces whose first site is in S, and
y = b + c, where b counts transfers up to that moment and c those after it, every body satisfies

- enter S: y into S is at least 1, where S has a target and lacks all holders of an atom;
- leave S: b out of S is at least 1 - a(S), where S has all holders of an atom: the first site got it from there;
- receive t: c into t is at least 1 - a({t}), for a target t: it became complete later, so something came in.

Weights on such rows for X, and prices on resources under which each pair costs at least the rows' weights on it, give:
the total price of all transfers is at least the weighted sum of the right-hand sides, and at most the time times the
capacity of the resources at their prices. As the a of all sites add up to 1, X contributes the sum of its weights less
the greatest sum of those weights in whose row one site's a stands.

The linear program asks for the least time in which fractional transfers can satisfy every such row. Where only one site
has, or needs, each aggregate, that is the optimal fractional routing of multicasts, or of reductions. Rows are added as
they are violated: any subset of them gives a sound bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from einc.exchange.bounds.demands import DemandClass, DemandSet, format_latency
from einc.exchange.linear import LinearProgram
from einc.exchange.network import Network, ResourcePrices, list_sites

RowKind = Literal["enter", "leave", "receive"]

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One inequality for a demand (its position), with its weight. `sites` is a bit mask."""

    demand: int
    kind: RowKind
    sites: int
    weight: float


def is_satisfied(row: FlowRow, demand: DemandClass) -> bool:
    """Whether every body satisfies the row."""
    if row.kind == "enter":
        return demand.must_enter(row.sites)
    if demand.complete:
        return False
    if row.kind == "leave":
        return any(not holder & ~row.sites for holder in demand.holders)
    return row.sites.bit_count() == 1 and bool(row.sites & demand.targets)


@dataclass(frozen=True, slots=True)
class FlowWitness:
    """Rows and prices; `explanation` says in words how they came about."""

    rows: tuple[FlowRow, ...]
    prices: tuple[tuple[int, float], ...]
    explanation: str

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        prices = dict(self.prices)
        capacity = network.priced_capacity(prices)
        if not all(price >= 0 for price in prices.values()) or not capacity:
            return 0.0
        pairs = _PricedPairs(network, prices)
        total = 0.0
        for position, rows in _group_by_demand(self.rows).items():
            total += _prove_share(demands.family[position], rows, pairs)
        return _drop_last_digits(total / capacity + network.transfer_latency) if total > 0 else 0.0

    def explain(self, demands: DemandSet, network: Network) -> str:
        return self.explanation + format_latency(network.transfer_latency)


def _drop_last_digits(milliseconds: float) -> float:
    """A little less, to ten digits: in those after them, weights and prices differ from solver to solver."""
    return float(f"{milliseconds:.10g}") * (1 - 5e-10)


def _group_by_demand(rows: Iterable[FlowRow]) -> dict[int, list[FlowRow]]:
    grouped: dict[int, list[FlowRow]] = {}
    for row in rows:
        grouped.setdefault(row.demand, []).append(row)
    return grouped


class _PricedPairs:
    """The pairs of sites that can talk, with the price of each, and which of them count in a row."""

    def __init__(self, network: Network, prices: ResourcePrices) -> None:
        self.sites = network.sites
        self.prices: Matrix = np.array([network.price(pair, prices) for pair in network.paths])
        number = {site: position for position, site in enumerate(network.sites)}
        ends = np.array([[number[site] for site in pair] for pair in network.paths], np.int64).reshape(-1, 2)
        self._sources, self._targets = ends.T
        self._known: dict[tuple[RowKind, int], Matrix] = {}

    def mark(self, row: FlowRow) -> Matrix:
        """For every pair 1 if its transfers count in the row, otherwise 0."""
        key = row.kind, row.sites
        if key not in self._known:
            inside = np.array([bool(row.sites >> site & 1) for site in self.sites])
            source, target = inside[self._sources], inside[self._targets]
            crossed = source & ~target if row.kind == "leave" else target & ~source
            self._known[key] = crossed.astype(np.float64)
        return self._known[key]


def _prove_share(demand: DemandClass, rows: list[FlowRow], pairs: _PricedPairs) -> float:
    """The bytes, times their price, that the rows of a demand prove; weights beyond the prices are scaled down."""
    if not all(row.weight >= 0 and is_satisfied(row, demand) for row in rows):
        return 0.0
    early, late = np.zeros_like(pairs.prices), np.zeros_like(pairs.prices)
    for row in rows:
        weights = row.weight * pairs.mark(row)
        if row.kind != "receive":
            early += weights
        if row.kind != "leave":
            late += weights
    needed = np.maximum(early, late)
    used = needed > 0
    scale = min(1.0, float((pairs.prices[used] / needed[used]).min(initial=1.0)))
    first = [row for row in rows if row.kind != "enter"]
    counted_twice = max(
        (sum(row.weight for row in first if row.sites >> site & 1) for site in pairs.sites), default=0.0
    )
    return demand.size * scale * max(0.0, sum(row.weight for row in rows) - counted_twice)


MAX_FLOW_SITES = 10
"""A limit of time: rows are found among all sets of sites, 2**sites of them."""
MAX_LP_COLUMNS = 20_000
"""A limit of time: a variable for each demand and each use of a path."""
MAX_FLOW_ROUNDS = 40
"""A limit of time: rounds of added rows. A program that is stopped here still gives a bound."""

_VIOLATED = 1e-6  # of a row, relative to its demand: below it, what is missing is rounding of the solver
_PER_ROUND = 4  # rows added per demand and round


def solve_flow(demands: DemandSet, network: Network) -> FlowWitness | None:
    """The bound of the linear program; None where it is too large, or nothing has to be sent."""
    width = 2 * len(network.paths) + len(network.sites)
    if (
        not demands.family
        or not network.paths
        or len(network.sites) > MAX_FLOW_SITES
        or len(demands.family) * width > MAX_LP_COLUMNS
    ):
        return None
    program = _FlowProgram(demands, network)
    for _ in range(MAX_FLOW_ROUNDS):
        if not program.solve() or not program.add_violated():
            break
    return program.make_witness()


class _CutMatrices:
    """All sets of sites but the empty one: which pairs enter and leave each, and which sites are inside."""

    def __init__(self, network: Network) -> None:
        self.pairs = list(network.paths)
        chosen = [mask for mask in range(1, network.all_sites + 1) if not mask & ~network.all_sites]
        self.sets = np.array(chosen, np.int64)
        self.set_numbers = {mask: number for number, mask in enumerate(chosen)}
        source, end = (np.array([pair[side] for pair in self.pairs]) for side in (0, 1))
        source_inside, end_inside = (self.sets[:, None] >> sites & 1 for sites in (source, end))
        self.into: Matrix = (end_inside > source_inside).astype(np.float64)
        self.out_of: Matrix = (source_inside > end_inside).astype(np.float64)
        self.inside: Matrix = (self.sets[:, None] >> np.array(network.sites) & 1).astype(np.float64)

    def find_possible(self, demand: DemandClass) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
        """For which sets a demand has rows, by kind."""
        lacking = [self.sets & holder == 0 for holder in demand.holders]
        around = [~self.sets & holder == 0 for holder in demand.holders]
        return {
            "enter": (self.sets & demand.targets != 0) & np.logical_or.reduce(lacking),
            "leave": np.logical_or.reduce(around) & (not demand.complete),
        }


@lru_cache(maxsize=4)
def _build_cut_matrices(network: Network) -> _CutMatrices:
    return _CutMatrices(network)


@dataclass(frozen=True, slots=True)
class _DemandColumns:
    """The first columns of a demand: early and late transfers by pair (the same where no first site matters), and a."""

    early: int
    late: int
    first: int


class _FlowProgram:
    """The linear program: the least time in which fractional transfers satisfy the rows so far."""

    def __init__(self, demands: DemandSet, network: Network) -> None:
        self.demands, self.network, self.cuts = demands, network, _build_cut_matrices(network)
        self.program = LinearProgram(priced=False)
        self.rows: list[FlowRow | None] = []
        self.known: set[tuple[int, str, int]] = set()
        self.values: Any = None
        self.program.add_columns([1.0])
        self.width = 1
        self.columns = [self._add_columns(demand) for demand in demands.family]
        self.possible = [self.cuts.find_possible(demand) for demand in demands.family]
        self._add_resource_rows()
        for position, demand in enumerate(demands.family):
            self._add_first_rows(position, demand)

    def _add_columns(self, demand: DemandClass) -> _DemandColumns:
        """Adds the transfers of a copy by pair, in two stages if several sites have atoms and several are targets."""
        count = len(self.cuts.pairs)
        start = self.width
        staged = not demand.complete and demand.targets.bit_count() > 1 and len(demand.holders) > 1
        size = count * (2 if staged else 1) + (len(self.network.sites) if staged else 0)
        self.width += size
        self.program.add_columns([0.0] * size)
        if not staged:
            return _DemandColumns(start, start, -1)
        columns = _DemandColumns(start, start + count, start + 2 * count)
        sites = len(self.network.sites)
        self.program.add_row(1.0, 1.0, range(columns.first, columns.first + sites), [1.0] * sites)
        self.rows.append(None)
        return columns

    def _add_resource_rows(self) -> None:
        """Adds a row for each resource: its traffic takes no longer than the time.

        The unit of time is that of all bytes through the widest resource.
        """
        total = sum(demand.size for demand in self.demands.family)
        used = sorted({resource for route in self.network.paths.values() for resource in route})
        widest = max(self.network.rates[resource] for resource in used)
        self.resource_rows = []
        for resource in used:
            crossing = [k for k, pair in enumerate(self.cuts.pairs) if resource in self.network.paths[pair]]
            columns, values = [0], [-self.network.rates[resource] / widest]
            for demand_columns, demand in zip(self.columns, self.demands.family, strict=True):
                for start in sorted({demand_columns.early, demand_columns.late}):
                    columns += [start + k for k in crossing]
                    values += [demand.size / total] * len(crossing)
            self.program.add_row(-math.inf, 0.0, columns, values)
            self.resource_rows.append((len(self.rows), resource))
            self.rows.append(None)

    def _add_first_rows(self, position: int, demand: DemandClass) -> None:
        everything = self.network.all_sites
        sets = [1 << site for site in list_sites(demand.targets)]
        sets += [everything & ~holder for holder in demand.holders]
        for mask in sets:
            if mask and demand.must_enter(mask):
                self._add_row(FlowRow(position, "enter", mask, 0.0))
        if self.columns[position].first >= 0:
            for site in list_sites(demand.targets):
                self._add_row(FlowRow(position, "receive", 1 << site, 0.0))
            for holder in demand.holders:
                self._add_row(FlowRow(position, "leave", holder, 0.0))

    def _add_row(self, row: FlowRow) -> bool:
        key = (row.demand, row.kind, row.sites)
        if key in self.known:
            return False
        self.known.add(key)
        demand_columns = self.columns[row.demand]
        crosses = self.cuts.out_of if row.kind == "leave" else self.cuts.into
        crossing = np.flatnonzero(crosses[self.cuts.set_numbers[row.sites]]).tolist()
        starts = {
            "enter": sorted({demand_columns.early, demand_columns.late}),
            "leave": [demand_columns.early],
            "receive": [demand_columns.late],
        }[row.kind]
        columns = [start + k for start in starts for k in crossing]
        if row.kind != "enter":
            columns += [demand_columns.first + k for k, site in enumerate(self.network.sites) if row.sites >> site & 1]
        self.program.add_row(1.0, math.inf, columns, [1.0] * len(columns))
        self.rows.append(row)
        return True

    def solve(self) -> bool:
        """Solves the program with the rows so far; returns whether there is an optimum."""
        solution = self.program.solve()
        if solution is not None:
            self.values = solution[1]
        return solution is not None

    def add_violated(self) -> bool:
        """Adds the rows that the solution violates most; returns whether there were any."""
        added = False
        count, sites = len(self.cuts.pairs), len(self.network.sites)
        for position, columns in enumerate(self.columns):
            early = self.values[columns.early : columns.early + count]
            late = self.values[columns.late : columns.late + count]
            both = early if columns.first < 0 else early + late
            for row in self._find_violated(position, "enter", self.cuts.into @ both):
                added |= self._add_row(row)
            if columns.first >= 0:
                first = self.cuts.inside @ self.values[columns.first : columns.first + sites]
                for row in self._find_violated(position, "leave", self.cuts.out_of @ early + first):
                    added |= self._add_row(row)
        return added

    def _find_violated(self, position: int, kind: Any, left: Any) -> Iterator[FlowRow]:
        short = np.where(self.possible[position][kind], 1.0 - left, 0.0)
        for number in np.argsort(-short, kind="stable")[:_PER_ROUND]:
            if short[number] > _VIOLATED:
                yield FlowRow(position, kind, int(self.cuts.sets[number]), 0.0)

    def make_witness(self) -> FlowWitness | None:
        """The dual solution as weights and prices."""
        self.program.ask(priced=True)
        solution = self.program.solve(rounded=False)
        if solution is None:
            return None
        duals = solution[1].tolist()
        network = self.network
        total = sum(demand.size for demand in self.demands.family)
        prices = {resource: max(0.0, -duals[number]) for number, resource in self.resource_rows}
        rows = tuple(
            FlowRow(row.demand, row.kind, row.sites, dual * total / self.demands.family[row.demand].size)
            for row, dual in zip(self.rows, duals, strict=True)
            if row is not None and dual > 1e-12
        )
        scarce = [resource for resource, price in prices.items() if price > 1e-9]
        names = ", ".join(network.names[resource] for resource in scarce[:4])
        more = f" and {len(scarce) - 4} more" if len(scarce) > 4 else ""
        explanation = f"flow: no fractional routing is faster; it fills {names}{more}"
        return FlowWitness(rows, tuple((resource, price) for resource, price in prices.items() if price), explanation)
