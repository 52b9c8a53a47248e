"""About how long whole plans take, from the time tables alone: many plans at once, in microseconds each.

The tables add up operators and exchanges as if one ran after another. In truth an exchange runs beside the kernels of
operators that do not wait for it, but not freely: kernels also wait for single pieces, and combining keeps sites busy.
The estimate lies halfway between the sum and a schedule in which operators run one after another, exchanges one after
another, and both beside each other. It has no times of its own, and ranks plans: those that rank high are built, and
simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from einc.core.tensor import Array
from einc.graph.graph import Graph
from einc.search.orders import Order, list_all_orders
from einc.search.space import Assignment
from einc.search.tables import TimeProblem

HALF = Fraction(1, 2)
"""The share of the sum in the estimate of a plan."""

OVERLAPPED_SHARES = Fraction(1, 10), Fraction(1, 4)
"""Its shares where plans are looked for in which most exchanges hide behind kernels, as in chains of large products:
the sum says little of these."""

MAX_OVERLAP_STEPS = 60
"""Changes of one operator that lead from a start to such a plan at most."""


def look_up_parts(graph: Graph, tables: TimeProblem, plans: Array) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Per node what it takes, and per pair of a producer and a reader what the exchange takes, in picoseconds.

    A pair of a node and itself is for inputs that it must fetch. Each column of `plans` is a plan; the nodes of the
    graph are the variables of the tables.
    """
    computing = [times[plans[v]] for v, times in enumerate(tables.node_times)]
    moving: dict[tuple[int, int], Array] = {}
    for table in tables.tables:
        at = tuple(classes[plans[v]] for v, classes in zip(table.variables, table.classes, strict=True))
        source, reader = table.variables[0], table.variables[-1]
        pair = source if source in graph.sources[reader] else reader, reader
        moving[pair] = moving.get(pair, 0) + table.costs[at]
    return computing, moving


def estimate_overlapped(
    graph: Graph, tables: TimeProblem, plans: Sequence[Assignment], orders: Sequence[Order]
) -> tuple[Array, Array]:
    """Picoseconds of each plan in the best of the orders of its operators, and the number of that order."""
    # The sum is too long, as nothing overlaps in it, and the schedule too short, as all that may overlap does.
    return _estimate(graph, tables, np.array(plans).T, orders, HALF)


def find_overlapped(graph: Graph, tables: TimeProblem, starts: Sequence[Assignment]) -> list[tuple[Assignment, Order]]:
    """Plans that no change of one operator makes better by an estimate in which more overlaps than half, from each of
    the starts, with the best order for each."""
    orders = list_all_orders(graph)
    reached: dict[Assignment, Order] = {}
    for share in OVERLAPPED_SHARES:
        for start in dict.fromkeys(starts):
            plan = np.array(start)
            order = orders[int(_estimate(graph, tables, plan[:, None], orders, share)[1][0])]
            for _ in range(MAX_OVERLAP_STEPS):
                changes = _list_changes(tables, plan)
                estimates, _ = _estimate(graph, tables, changes, [order], share)
                best = int(estimates.argmin())
                if not best:  # the plan itself
                    break
                plan = changes[:, best]
            number = int(_estimate(graph, tables, plan[:, None], orders, share)[1][0])
            reached.setdefault(tuple(plan.tolist()), orders[number])
    return list(reached.items())


def _list_changes(tables: TimeProblem, plan: Array) -> Array:
    """The plan, and those that differ from it by another candidate of one operator, as columns."""
    counts = [len(times) for times in tables.node_times]
    changes = np.repeat(plan[:, None], 1 + sum(counts), axis=1)
    column = 1
    for node, count in enumerate(counts):
        changes[node, column : column + count] = np.arange(count)
        column += count
    return changes


def _estimate(
    graph: Graph, tables: TimeProblem, plans: Array, orders: Sequence[Order], share: Fraction
) -> tuple[Array, Array]:
    """Picoseconds of each plan (a column), of which the sum is a `share`, and the number of its best order."""
    computing, moving = look_up_parts(graph, tables, plans)
    readers: list[list[int]] = [[] for _ in computing]
    for source, reader in moving:
        if source != reader:
            readers[source].append(reader)
    total = sum([*computing, *moving.values()])
    ends = np.array([_schedule(graph, computing, moving, readers, order) for order in orders])
    best = ends.argmin(axis=0)
    summed, parts = share.as_integer_ratio()
    estimate: Array = (total * summed + ends.min(axis=0) * (parts - summed)) // parts
    return estimate, best


def _schedule(
    graph: Graph,
    computing: Sequence[Array],
    moving: dict[tuple[int, int], Array],
    readers: Sequence[Sequence[int]],
    order: Order,
) -> Array:
    """When the last operator ends."""
    rank = {v: n for n, v in enumerate(order)}
    computed = moved = np.zeros_like(computing[0])
    arrived: dict[tuple[int, int], Array] = {}
    for v in order:
        for source in graph.sources[v]:
            computed = np.maximum(computed, arrived[source, v])
        computed = computed + computing[v] + moving.get((v, v), 0)
        for reader in sorted(readers[v], key=rank.__getitem__):
            took = moving[v, reader]
            moved = np.where(took > 0, np.maximum(moved, computed) + took, moved)
            arrived[v, reader] = np.where(took > 0, moved, computed)
    return computed
