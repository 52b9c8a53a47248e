"""Orders of operators. Sites run what comes first in a plan, so that an exchange may hide behind another kernel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from einc.graph.graph import Graph

Order = tuple[int, ...]
"""The nodes' positions in the graph, in a topological order."""


def reorder_graph(graph: Graph, order: Order) -> Graph:
    if order == tuple(range(len(order))):
        return graph
    return replace(graph, nodes=tuple(graph.nodes[n] for n in order))


def list_orders(graph: Graph) -> Iterator[Order]:
    """A few topological orders other than the graph's own, in which independent operators alternate.

    Breadth first puts the readers of a tensor as far behind its producer as possible. Two more prefer what the longest
    chain of operators waits for, and what has waited longest.
    """
    readers = [set[int]() for _ in graph.nodes]
    before = [len(sources) for sources in graph.sources]
    for n, sources in enumerate(graph.sources):
        for source in sources:
            readers[source].add(n)
    height = [0] * len(graph.nodes)
    for n in reversed(range(len(height))):
        height[n] = 1 + max((height[reader] for reader in readers[n]), default=0)
    depth = [0] * len(graph.nodes)
    for n in range(len(depth)):
        for reader in readers[n]:
            depth[reader] = max(depth[reader], depth[n] + 1)
    listed = {tuple(range(len(before)))}
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda n: (depth[n], n),
        lambda n: (-height[n], n),
        lambda n: (depth[n], -height[n], n),
        lambda n: (depth[n], -n),
    )
    for order in (_take_turns(readers, before), *(tuple(sorted(range(len(before)), key=key)) for key in keys)):
        if order not in listed:
            listed.add(order)
            yield order


def list_all_orders(graph: Graph) -> list[Order]:
    """The order of the graph, and the others that the search knows."""
    return [tuple(range(len(graph.nodes))), *list_orders(graph)]


def _take_turns(readers: list[set[int]], before: list[int]) -> Order:
    """First come, first served: a node stands behind all that were ready before it."""
    left = list(before)
    waiting = deque(n for n, count in enumerate(before) if not count)
    order = []
    while waiting:
        n = waiting.popleft()
        order.append(n)
        for reader in sorted(readers[n]):
            left[reader] -= 1
            if not left[reader]:
                waiting.append(reader)
    return tuple(order)
