"""Exact minimization of a sum of costs over discrete variables by variable elimination.

This file knows nothing of operators or tilings. Eliminating a variable replaces all cost tables that mention it by one
table over its neighbours: its least cost for each of their joint values. On a tree, leaves first, these tables are the
`Opt` of the paper's Algorithm 1. On a graph with cycles they range over several neighbours, and stay small if the order
of elimination is narrow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from einc.core.tensor import Array


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """A cost that depends on the values of several variables (ascending), by the class of each value.

    `classes[i]` has a natural number for every value of variable `variables[i]`, and `costs` one axis for each.
    """

    variables: tuple[int, ...]
    classes: tuple[Array, ...]
    costs: Array

    def select(self, values: Sequence[Array]) -> Array:
        """The costs of all combinations of the remaining `values` (per variable of the whole problem)."""
        import numpy as np

        chosen: Array = self.costs[
            np.ix_(*(classes[values[v]] for v, classes in zip(self.variables, self.classes, strict=True)))
        ]
        return chosen


MAX_COMPARISONS = 1 << 25
"""Two values are compared for all joint values of their neighbours if that takes at most this many comparisons."""

MAX_COMPARISONS_AT_ONCE = 1 << 16
"""So many comparisons are made in one go; more would leave the processor's caches."""

FEW_COLUMNS = 8
"""Joint values of neighbours for which all pairs of values are compared. They rule most pairs out."""


def prune_values(costs: Sequence[Array], tables: Sequence[CostTable]) -> list[Array]:
    """Per variable, in ascending order, the positions of the values that an answer of `minimize` may use.

    Removes a value if another one is strictly better whatever the neighbours do, and all but the first of several
    interchangeable values. The other value is better if its own cost is so much less that no table makes up for it:
    per table, the largest disadvantage over the joint values of the neighbours counts. Variables are visited again
    while their neighbours lose values.
    """
    import numpy as np

    views: list[list[tuple[CostTable, int]]] = [[] for _ in costs]
    for table in tables:
        for axis, v in enumerate(table.variables):
            views[v].append((table, axis))
    left = [np.arange(len(cost)) for cost in costs]
    waiting = dict.fromkeys(range(len(costs)))  # an ordered set
    while waiting:
        v = next(iter(waiting))
        del waiting[v]
        kept = left[v]
        if len(kept) == 1:
            continue
        # How much the second value is better than the first, at least. Tables are bounded one by one, each by its worst
        # neighbours, which may contradict each other: the sum is below the true gain, and no value is lost wrongly.
        # A few joint values of the neighbours show of most pairs that there is no gain, and the rest is computed.
        most = alone = costs[v][kept][:, None] - costs[v][kept][None, :]
        sides = [_list_rows(table, axis, left) for table, axis in views[v]]
        bounds = [_bound_least_differences(rows)[np.ix_(position, position)] for rows, position in sides]
        for bound in bounds:
            most = most + bound
        first, second = np.nonzero(most >= 0)
        most, same = most[first, second], alone[first, second] == 0
        for (rows, position), bound in sorted(zip(sides, bounds, strict=True), key=lambda side: side[0][0].size):
            least = _find_least_differences(rows, position[first], position[second])
            most, same = most - bound[first, second] + least, same & (least == 0)
            possible = most >= 0
            first, second, most, same = first[possible], second[possible], most[possible], same[possible]
        better = np.zeros(alone.shape, dtype=bool)
        better[first, second] = most > 0
        interchangeable = np.zeros(alone.shape, dtype=bool)
        interchangeable[first, second] = same  # interchangeable, if it is so both ways: neither is ever worse
        earlier = np.tri(len(kept), k=-1, dtype=bool)
        lost = (better | (interchangeable & interchangeable.T & earlier)).any(axis=1)
        if lost.any():
            left[v] = kept[~lost]
            waiting.update((u, None) for table, _ in views[v] for u in table.variables if u != v)
    return left


def _list_distinct(numbers: Array, count: int) -> Array:
    """The numbers (all below `count`) in ascending order, each once."""
    import numpy as np

    present = np.zeros(count, dtype=bool)
    present[numbers] = True
    return np.flatnonzero(present)


def _list_rows(table: CostTable, axis: int, left: Sequence[Array]) -> tuple[Array, Array]:
    """The distinct rows that a table has for the values left of the variable of an axis, with a column for each joint
    value of the others; and of each value, the position of its row."""
    import numpy as np

    ports = zip(table.variables, table.classes, table.costs.shape, strict=True)
    axes = [_list_distinct(classes[left[u]], count) for u, classes, count in ports]
    mine = axes[axis]
    position = np.searchsorted(mine, table.classes[axis][left[table.variables[axis]]])
    return np.moveaxis(table.costs[np.ix_(*axes)], axis, 0).reshape(len(mine), -1), position


def _bound_least_differences(rows: Array) -> Array:
    """For every pair of rows, what is no less than `_find_least_differences` of them: the least over a few columns."""
    import numpy as np

    count, columns = rows.shape
    if count * count * columns > MAX_COMPARISONS:
        every = np.arange(count)
        return _find_least_differences(rows, np.repeat(every, count), np.tile(every, count)).reshape(count, count)
    few = rows[:, sorted(set(np.linspace(0, columns - 1, FEW_COLUMNS).astype(np.intp).tolist()))]
    least: Array = (few[:, None, :] - few[None, :, :]).min(axis=2)
    return least


def _find_least_differences(rows: Array, first: Array, second: Array) -> Array:
    """For some pairs of rows, the least of the differences first - second over the columns, or something below it."""
    import numpy as np

    count, columns = rows.shape
    if count * count * columns > MAX_COMPARISONS:
        bounds: Array = np.where(first == second, 0, rows.min(axis=1)[first] - rows.max(axis=1)[second])
        return bounds
    step = max(1, MAX_COMPARISONS_AT_ONCE // columns)
    parts = range(0, len(first), step)
    least = [(rows[first[k : k + step]] - rows[second[k : k + step]]).min(axis=1) for k in parts]
    return np.concatenate(least) if least else np.zeros(0, rows.dtype)


Tables = dict[tuple[int, ...], "Array"]
"""Cost tables by their variables (ascending), with one axis for each."""

MAX_TABLE_ENTRIES = 1 << 23
"""Entries of the largest table that an exact solution may need (64 MiB)."""
MAX_TOTAL_ENTRIES = 1 << 26
"""Entries of all its tables together, which bounds the time to about two seconds."""
OBJECT_ENTRY_SIZE = 16
"""An entry of arbitrary precision counts as this many 64-bit entries."""


@dataclass(slots=True)
class _MinSumProblem:
    """The remaining problem: the remaining values of each variable, with their costs, and the tables."""

    values: list[Array]
    costs: list[Array]
    tables: Tables

    def add(self, variables: tuple[int, ...], table: Array) -> None:
        """Adds costs to the table of these variables."""
        if len(variables) == 1:
            self.costs[variables[0]] = self.costs[variables[0]] + table
        else:
            self.tables[variables] = self.tables[variables] + table if variables in self.tables else table


def minimize(costs: Sequence[Array], tables: Sequence[CostTable], bounded: bool = True) -> tuple[int, ...] | None:
    """The assignment of least total cost; among several, the lexicographically first in the order of variables.

    `costs` are integer arrays, one per variable. None where `bounded` and the tables would exceed the limits above.
    """
    values = prune_values(costs, tables)
    model = _MinSumProblem(values, [cost[kept] for cost, kept in zip(costs, values, strict=True)], {})
    for table in tables:
        model.add(table.variables, table.select(values))
    _simplify(model)
    while tied := [v for v, left in enumerate(model.values) if len(left) > 1]:
        order, sizes = choose_elimination_order(tied, {v: len(model.values[v]) for v in tied}, model.tables)
        entry = 1 if model.costs[tied[0]].dtype.kind == "i" else OBJECT_ENTRY_SIZE
        if bounded and (max(sizes) * entry > MAX_TABLE_ENTRIES or sum(sizes) * entry > MAX_TOTAL_ENTRIES):
            return None
        for v, optimal in _find_optimal_values(order, model).items():
            _restrict(model, v, optimal)
        _simplify(model)
        # Only ties are left now. Tied variables that no table joins, even indirectly, are free of one another.
        for component in _find_components(model):
            _restrict(model, component[0], [0])
        _simplify(model)
    return tuple(int(left[0]) for left in model.values)


def choose_elimination_order(
    variables: Iterable[int], domain: dict[int, int], scopes: Iterable[tuple[int, ...]]
) -> tuple[list[int], list[int]]:
    """An order of elimination, and the number of entries of each variable's table in that order.

    `scopes` are the variables of each table. Greedy: always the variable whose table is smallest now; the lowest number
    among equals.
    """
    neighbours: dict[int, set[int]] = {v: set() for v in variables}
    for scope in scopes:
        for v in scope:
            neighbours[v].update(u for u in scope if u != v)

    def entries(v: int) -> int:
        return domain[v] * prod(domain[u] for u in neighbours[v])

    queue = [(entries(v), v) for v in neighbours]
    heapq.heapify(queue)
    order: list[int] = []
    sizes: list[int] = []
    while queue:
        size, v = heapq.heappop(queue)
        if v not in neighbours or size != entries(v):
            continue  # gone, or queued again with its present size
        order.append(v)
        sizes.append(size)
        around = neighbours.pop(v)
        for u in around:
            neighbours[u] |= around
            neighbours[u] -= {u, v}
        for u in around:
            heapq.heappush(queue, (entries(u), u))
    return order, sizes


def _find_optimal_values(order: Sequence[int], model: _MinSumProblem) -> dict[int, Array]:
    """For each variable, which of its values occur in some optimal assignment."""
    import numpy as np

    rank = {v: r for r, v in enumerate(order)}
    # Scopes list variables in the order of elimination, so that tables broadcast without being transposed.
    buckets: dict[int, list[tuple[tuple[int, ...], Array]]] = {v: [((v,), model.costs[v])] for v in order}
    for variables, table in model.tables.items():
        axes = sorted(range(len(variables)), key=lambda axis: rank[variables[axis]])
        mentioned = tuple(variables[axis] for axis in axes)
        buckets[mentioned[0]].append((mentioned, table.transpose(axes)))
    scopes: dict[int, tuple[int, ...]] = {}
    best: dict[int, Any] = {}
    for v in order:
        scope = scopes[v] = tuple(sorted({u for mentioned, _ in buckets[v] for u in mentioned}, key=rank.__getitem__))
        total = _sum_tables(scope, buckets.pop(v))
        least = total.min(axis=0)
        best[v] = np.asarray(total == least, dtype=bool)
        if len(scope) > 1:
            buckets[scope[1]].append((scope[1:], least))
    values: dict[int, Array] = {}
    for v in reversed(order):  # `best[v]` becomes: the joint values of its scope that some optimal assignment has
        scope = scopes[v]
        if len(scope) > 1:
            above = scopes[scope[1]]
            unseen = tuple(axis for axis, u in enumerate(above) if u not in scope)
            best[v] &= best[scope[1]].any(axis=unseen)
        values[v] = best[v].any(axis=tuple(range(1, len(scope))))
    return values


def _sum_tables(scope: tuple[int, ...], tables: list[tuple[tuple[int, ...], Array]]) -> Array:
    """The sum of tables over the joint values of `scope`."""
    sizes = {u: n for mentioned, table in tables for u, n in zip(mentioned, table.shape, strict=True)}
    spread = [table.reshape([sizes[u] if u in mentioned else 1 for u in scope]) for mentioned, table in tables]
    spread.sort(key=lambda table: table.size)  # small sums first
    total = spread[0]
    for table in spread[1:]:
        total = total + table
    return total


def _restrict(model: _MinSumProblem, v: int, kept: Any) -> None:
    """Leaves variable `v` only the values that `kept` (a mask or positions) selects."""
    model.values[v], model.costs[v] = model.values[v][kept], model.costs[v][kept]
    for variables in list(model.tables):
        if v in variables:
            at = (slice(None),) * variables.index(v)
            model.tables[variables] = model.tables[variables][(*at, kept)]


def _simplify(model: _MinSumProblem) -> None:
    """Removes decided variables from the tables, and drops tables that decide nothing."""
    for variables, table in list(model.tables.items()):
        if min(table.shape) > 1 and (table != table.flat[0]).any():
            continue
        del model.tables[variables]
        open_axes = [axis for axis, size in enumerate(table.shape) if size > 1]
        if open_axes and (table != table.flat[0]).any():
            model.add(tuple(variables[axis] for axis in open_axes), table.reshape([table.shape[a] for a in open_axes]))


def _find_components(model: _MinSumProblem) -> list[list[int]]:
    """The undecided variables that tables join, directly or indirectly, each group in ascending order."""
    leader = {v: v for v, left in enumerate(model.values) if len(left) > 1}

    def find(v: int) -> int:
        while leader[v] != v:
            v = leader[v]
        return v

    for variables in model.tables:
        for joined in variables[1:]:
            low, high = sorted((find(variables[0]), find(joined)))
            leader[high] = low
    groups: dict[int, list[int]] = {}
    for v in leader:
        groups.setdefault(find(v), []).append(v)
    return list(groups.values())
