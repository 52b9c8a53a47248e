"""Parts of a graph that do not depend on each other, and time tables that favour running them side by side.

The time tables add up operators as if one ran after another, so that using fewer sites never pays there. Here an
operator is charged for the part of the machine that it takes: on a fourth of the sites, a fourth of its time. It is
charged no less than the *share* of its branch, since only as much can be filled by what is independent of it. Which
sites are free is not seen here; whole plans show that. So these tables rank plans, and have no times of their own.
"""

from __future__ import annotations

import numpy as np

from einc.graph.graph import Graph
from einc.logical.minsum import CostTable
from einc.search.space import SearchSpace
from einc.search.tables import TimeProblem
from einc_runtime.dtypes import Floats

MIN_PARALLEL = 0.4
"""Tables are made only if at least this part of the time could overlap with something independent.

In a transformer, where projections to queries, keys and values are independent, and those to gate and up, it is less.
"""


def make_parallel_branch_tables(space: SearchSpace, tables: TimeProblem) -> TimeProblem | None:
    """The time tables with each candidate and exchange charged for its part of the sites.

    The nodes of the graph are the variables of the tables. None if too little of it is independent of other parts.
    """
    least = np.array([times.min() for times in tables.node_times], dtype=np.float64)
    shares = find_shares(find_independent(space.graph), least)
    if float(least @ (1 - shares)) < MIN_PARALLEL * float(least.sum()):
        return None
    used = [
        np.array([len(candidate.functions) for candidate in options]) / space.sites
        for options in space.problem.candidates
    ]
    parts = [np.maximum(used_part, share) for used_part, share in zip(used, shares, strict=True)]
    charged = tuple(
        np.rint(times * part).astype(np.int64) for times, part in zip(tables.node_times, parts, strict=True)
    )
    return TimeProblem(charged, tuple(_charge_table(table, parts) for table in tables.tables))


def find_independent(graph: Graph) -> list[int]:
    """For every node, in the graph's order, the nodes that neither depend on it nor it on them, as a bit mask."""
    sources = graph.sources
    before, behind = [0] * len(sources), [0] * len(sources)
    for n, node_sources in enumerate(sources):
        for source in node_sources:
            before[n] |= before[source] | 1 << source
    for n in reversed(range(len(sources))):
        for source in sources[n]:
            behind[source] |= behind[n] | 1 << n
    every = (1 << len(sources)) - 1
    return [
        every & ~(before_mask | behind_mask | 1 << n)
        for n, (before_mask, behind_mask) in enumerate(zip(before, behind, strict=True))
    ]


def find_shares(independent: list[int], times: Floats) -> Floats:
    """For every node the time of its branch, as a part of that of the branch and of all that is independent of it.

    The branch of a node has all nodes that are independent of the same nodes. They depend on one another.
    """
    branch: dict[int, float] = {}
    parallel_time: dict[int, float] = {}
    for mask, time in zip(independent, times, strict=True):
        branch[mask] = branch.get(mask, 0.0) + float(time)
        if mask not in parallel_time:
            packed = np.frombuffer(mask.to_bytes((len(times) + 7) // 8, "little"), np.uint8)
            parallel_time[mask] = float(np.unpackbits(packed, count=len(times), bitorder="little") @ times)
    return np.array(
        [branch[mask] / (branch[mask] + parallel_time[mask]) if parallel_time[mask] else 1.0 for mask in independent]
    )


def _charge_table(table: CostTable, parts: list[Floats]) -> CostTable:
    """An exchange takes the larger part of the sites of the operators that it connects."""
    factor: Floats = np.zeros((1,) * table.costs.ndim)
    for axis, (variable, classes) in enumerate(zip(table.variables, table.classes, strict=True)):
        part = np.zeros(table.costs.shape[axis])
        part[classes] = parts[variable]  # candidates of one class have equally many sites
        factor = np.maximum(factor, part.reshape([-1 if a == axis else 1 for a in range(table.costs.ndim)]))
    return CostTable(table.variables, table.classes, np.rint(table.costs * factor).astype(np.int64))
