"""Graphs of many equal layers, with a few of them.

A layer is a run of nodes that repeats: equal operators, which read each other's outputs, those of the layer before, or
tensors from before the first layer. Of the layers, a few are kept; the one in the middle stands for all that are left
out. What comes behind the layers reads the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from einc.graph.graph import Graph, Node
from einc.ops.base import Operator

MIN_FOLDED = 64
"""Graphs with fewer nodes are not folded."""

LAYERS = 3
"""Layers that are kept for a search."""

Value = TypeVar("Value")

_Source = tuple[str, int, int]
"""Where an input comes from: "loaded", or "back" by how many nodes, or the absolute position "at"; and which output."""


@dataclass(frozen=True, slots=True)
class Folded:
    """`graph` has the nodes of the whole at positions `kept`. Node n of the whole is cut as node `stands_for[n]` of it.

    `times[m]` is how many nodes of the whole are cut as node m of the folded graph. The kept layers have `length` nodes
    each, and the first of them begins with node `first`.
    """

    graph: Graph
    kept: tuple[int, ...]
    stands_for: tuple[int, ...]
    first: int
    length: int

    @property
    def repeated(self) -> tuple[int, ...]:
        """The nodes of the layer that stands for those that are left out; as many nodes further is the last layer."""
        return tuple(m for m, count in enumerate(self.times) if count > 1)

    @property
    def times(self) -> tuple[int, ...]:
        counts = [0] * len(self.kept)
        for n in self.stands_for:
            counts[n] += 1
        return tuple(counts)

    def expand(self, assignment: Sequence[Value]) -> tuple[Value, ...]:
        """A value for every node of the whole, from those of the nodes of the folded graph."""
        return tuple(assignment[n] for n in self.stands_for)


def fold(graph: Graph, layers: int = LAYERS) -> Folded | None:
    """The graph with so many of its layers; None if there are no more than these."""
    run = _find_layers(graph, layers)
    if run is None:
        return None
    first, length, count = run
    cut, end = first + (layers - 1) * length, first + (count - 1) * length  # the nodes in between are left out
    kept = (*range(cut), *range(end, len(graph.nodes)))
    position_of_kept = {n: i for i, n in enumerate(kept)}
    renamed = {
        old: new
        for n in range(end - length, end)
        for old, new in zip(graph.nodes[n].outputs, graph.nodes[n - end + cut].outputs, strict=True)
    }
    gone = {name for node in graph.nodes[cut:end] for name in node.outputs}
    nodes = [_rename_inputs(graph.nodes[n], renamed) if n >= end else graph.nodes[n] for n in kept]
    if any(name in gone for node in nodes for name in node.inputs):
        return None  # something reads all layers
    read = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    outputs = tuple(name for name in graph.outputs if name not in gone)
    tensors = tuple(tensor for tensor in graph.tensors if tensor.name in read or tensor.name in outputs)
    middle = first + (layers // 2) * length
    stands_for = tuple(
        position_of_kept[n] if n in position_of_kept else position_of_kept[middle + (n - first) % length]
        for n in range(len(graph.nodes))
    )
    folded = replace(graph, tensors=tensors, nodes=tuple(nodes), outputs=outputs)
    return Folded(folded, kept, stands_for, first, length)


def _rename_inputs(node: Node, names: dict[str, str]) -> Node:
    return replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))


def _find_layers(graph: Graph, least: int) -> tuple[int, int, int] | None:
    """The first node of the layers, the length of a layer, and their number; None where there are no more than `least`.

    Of all runs the one with most nodes is taken, and of equal ones that with the shortest layers.
    """
    numbers: dict[Operator, int] = {}
    kinds = np.array([numbers.setdefault(node.operator, len(numbers)) for node in graph.nodes])
    best: tuple[int, int, int] | None = None
    for length in range(1, len(kinds) // (least + 1) + 1):
        same = kinds[length:] == kinds[:-length]
        start, stop = _find_longest_run(same)
        if best is not None and stop - start + length <= best[1] * best[2]:
            continue
        run = _narrow(graph, start, length, (stop - start) // length + 1, least)
        if run is not None and (best is None or run[1] * run[2] > best[1] * best[2]):
            best = run
    return best


def find_longest_repetition(numbers: Sequence[int]) -> tuple[int, int, int]:
    """Of all runs of equal parts the one with most numbers: its start, the length of a part, and how many there are.
    Of equal ones, that with the shortest parts; where nothing repeats, one part with all numbers."""
    kinds, best = np.array(numbers), (0, max(1, len(numbers)), 1)
    for length in range(1, len(kinds) // 2 + 1):
        start, stop = _find_longest_run(kinds[length:] == kinds[:-length])
        count = (stop - start) // length + 1
        if count > 1 and (best[2] == 1 or length * count > best[1] * best[2]):
            best = start, length, count
    return best


def _find_longest_run(same: Sequence[bool]) -> tuple[int, int]:
    """The first longest stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], np.asarray(same, dtype=np.int8), [0]))))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    longest = int(np.argmax(stops - starts))
    return int(starts[longest]), int(stops[longest])


def _narrow(graph: Graph, first: int, length: int, count: int, least: int) -> tuple[int, int, int] | None:
    """The part of a run of equal operators whose layers are also wired alike; the first layer may read other things."""
    producers = graph.producers()
    saved = set(graph.outputs)

    def describe(n: int) -> list[_Source]:
        sources: list[_Source] = []
        for name in graph.nodes[n].inputs:
            if name not in producers:
                sources.append(("loaded", 0, 0))
                continue
            node, j = producers[name]
            source = graph.positions[node.name]
            sources.append(("at", source, j) if source < first else ("back", n - source, j))
        return sources

    def is_alike(n: int) -> bool:
        pairs = zip(graph.nodes[n].outputs, graph.nodes[n - length].outputs, strict=True)
        return describe(n) == describe(n - length) and all((a in saved) == (b in saved) for a, b in pairs)

    # Layer 1 must read layer 0 as layer 2 reads layer 1; layer 0 reads what is before.
    layers = 2
    while layers < count and all(is_alike(first + layers * length + i) for i in range(length)):
        layers += 1
    return (first, length, layers) if layers > least else None
