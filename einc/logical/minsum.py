"""Exact minimization of a sum of unary and pairwise costs over discrete variables, by variable elimination.

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A cost of `weight` for variables a < b, unless the classes of their values are equal (natural numbers)."""

    a: int
    b: int
    weight: int
    classes_a: Array
    classes_b: Array


def build_link_table(link: Link, values_a: Array, values_b: Array, dtype: np.dtype[Any]) -> Array:
    """The cost of every pair of the given values."""
    import numpy as np

    table = np.zeros((len(values_a), len(values_b)), dtype)
    table[link.classes_a[values_a][:, None] != link.classes_b[values_b][None, :]] = link.weight
    return table


def prune_values(costs: Sequence[Array], links: Sequence[Link]) -> list[Array]:
    """Per variable, in ascending order, the positions of the values that an answer of `minimize` may use.

    Removes a value if another one is strictly better whatever the neighbours do, and all but the first of several
    interchangeable values. Variables are visited again while their neighbours lose values.
    """
    import numpy as np

    views: list[list[tuple[int, int, Array, Array]]] = [[] for _ in costs]
    for link in links:
        views[link.a].append((link.b, link.weight, link.classes_a, link.classes_b))
        views[link.b].append((link.a, link.weight, link.classes_b, link.classes_a))
    numbers = 1 + max((int(classes.max()) for link in links for classes in (link.classes_a, link.classes_b)), default=0)
    left = [np.arange(len(cost)) for cost in costs]
    waiting = dict.fromkeys(range(len(costs)))  # an ordered set
    while waiting:
        v = next(iter(waiting))
        del waiting[v]
        kept = left[v]
        if len(kept) == 1:
            continue
        gain = (
            costs[v][kept][:, None] - costs[v][kept][None, :]
        )  # how much the second value is better than the first, at least
        same = gain == 0
        for u, weight, mine, theirs in views[v]:
            offered = np.zeros(numbers, dtype=bool)
            offered[theirs[left[u]]] = True
            classes = np.where(offered[mine[kept]], mine[kept], -1)  # -1: matched by no neighbour
            differ = classes[:, None] != classes[None, :]
            gain[differ & (classes != -1)[:, None]] -= weight
            same &= ~differ
        earlier = np.tri(len(kept), k=-1, dtype=bool)
        lost = ((gain > 0) | (same & earlier)).any(axis=1)
        if lost.any():
            left[v] = kept[~lost]
            waiting.update((u, None) for u, *_ in views[v])
    return left


Pairs = dict[tuple[int, int], "Array"]
"""Cost tables of pairs (a, b) of variables with a < b; axis 0 belongs to a."""

MAX_TABLE_ENTRIES = 1 << 23
"""Entries of the largest table that an exact solution may need (64 MiB)."""
MAX_TOTAL_ENTRIES = 1 << 26
"""Entries of all its tables together, which bounds the time to about two seconds."""
OBJECT_ENTRY_SIZE = 16
"""An entry of arbitrary precision counts as this many 64-bit entries."""


@dataclass(slots=True)
class _MinSumProblem:
    """The remaining problem: the remaining values of each variable, with their costs, and the tables of pairs."""

    values: list[Array]
    costs: list[Array]
    pairs: Pairs


def minimize(costs: Sequence[Array], links: Sequence[Link], bounded: bool = True) -> tuple[int, ...] | None:
    """The assignment of least total cost; among several, the lexicographically first in the order of variables.

    `costs` are integer arrays, one per variable. None where `bounded` and the tables would exceed the limits above.
    """
    values = prune_values(costs, links)
    model = _MinSumProblem(values, [cost[kept] for cost, kept in zip(costs, values, strict=True)], {})
    for link in links:
        key = (link.a, link.b)
        table = build_link_table(link, values[link.a], values[link.b], costs[link.a].dtype)
        model.pairs[key] = model.pairs[key] + table if key in model.pairs else table
    _simplify(model)
    while tied := [v for v, left in enumerate(model.values) if len(left) > 1]:
        order, sizes = choose_elimination_order(tied, {v: len(model.values[v]) for v in tied}, model.pairs)
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
    variables: Iterable[int], domain: dict[int, int], pairs: Iterable[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """An order of elimination, and the number of entries of each variable's table in that order.

    Greedy: always the variable whose table is smallest now; the lowest number among equals.
    """
    neighbours: dict[int, set[int]] = {v: set() for v in variables}
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)

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
    for (a, b), table in model.pairs.items():
        if rank[a] < rank[b]:
            buckets[a].append(((a, b), table))
        else:
            buckets[b].append(((b, a), table.T))
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
    for a, b in list(model.pairs):
        if v == a:
            model.pairs[a, b] = model.pairs[a, b][kept]
        elif v == b:
            model.pairs[a, b] = model.pairs[a, b][:, kept]


def _simplify(model: _MinSumProblem) -> None:
    """Folds tables with a decided variable into the other's costs, and drops tables that decide nothing."""
    for (a, b), table in list(model.pairs.items()):
        if table.shape[0] == 1:
            model.costs[b] = model.costs[b] + table[0]
        elif table.shape[1] == 1:
            model.costs[a] = model.costs[a] + table[:, 0]
        elif (table != table.flat[0]).any():
            continue
        del model.pairs[a, b]


def _find_components(model: _MinSumProblem) -> list[list[int]]:
    """The undecided variables that tables join, directly or indirectly, each group in ascending order."""
    leader = {v: v for v, left in enumerate(model.values) if len(left) > 1}

    def find(v: int) -> int:
        while leader[v] != v:
            v = leader[v]
        return v

    for a, b in model.pairs:
        low, high = sorted((find(a), find(b)))
        leader[high] = low
    groups: dict[int, list[int]] = {}
    for v in leader:
        groups.setdefault(find(v), []).append(v)
    return list(groups.values())
