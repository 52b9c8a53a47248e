"""Graphs of many equal layers, with a few of them.

A layer is a run of nodes that repeats: equal operators, which read each other's outputs, those of the layer before, or
tensors from before the first layer. Of the layers, a few are kept; the one in the middle stands for all that are left
out. What comes behind the layers reads the last one.

A training step has several runs of as many layers: behind those of the model, their gradients follow, from the last
layer to the first, and what optimizers make of these. There, nodes also read what other runs have of their layer, and
of those next to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from einc.graph.graph import Graph, Node
from einc.ops.base import Operator

MIN_FOLDED = 64
"""Graphs with fewer nodes are not folded."""

LAYERS = 3
"""Layers that are kept for a search."""

LAYERS_OF_STEP = 8
"""Layers of a training step that are built in place of more: four on each side of those that are left out."""

Value = TypeVar("Value")

_Source = tuple[str, int, int]
"""Where an input comes from: "loaded", or "back" by how many nodes, or the absolute position "at"; and which output."""


@dataclass(frozen=True, slots=True)
class LayerRun:
    """`count` equal layers of `length` nodes each, one after the other from node `first` on. A run that goes
    `backwards` begins with the last layer."""

    first: int
    length: int
    count: int
    backwards: bool = False

    @property
    def end(self) -> int:
        return self.first + self.length * self.count

    def find_layer(self, node: int) -> int:
        """The layer of one of its nodes."""
        order = (node - self.first) // self.length
        return self.count - 1 - order if self.backwards else order

    def find_first(self, layer: int) -> int:
        """The first node of a layer."""
        return self.first + (self.count - 1 - layer if self.backwards else layer) * self.length


@dataclass(frozen=True, slots=True)
class Folded:
    """`graph` has the nodes of the whole at positions `kept`. Node n of the whole is cut as node `stands_for[n]` of it.

    `times[m]` is how many nodes of the whole are cut as node m of the folded graph. `runs` are those of `graph`; `head`
    of their layers come before those that are left out.
    """

    graph: Graph
    kept: tuple[int, ...]
    stands_for: tuple[int, ...]
    runs: tuple[LayerRun, ...]
    head: int

    @property
    def left_out(self) -> int:
        """How many layers are left out."""
        return (len(self.stands_for) - len(self.kept)) // sum(run.length for run in self.runs)

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
    """The graph with so many of its layers; None if there are no more than these, or where something reads all."""
    main = _find_layers(graph, layers)
    return None if main is None else _leave_out(graph, (LayerRun(*main),), layers, layers - 1)


def fold_step(graph: Graph) -> Folded | None:
    """The graph of a training step with LAYERS_OF_STEP of its layers; None if there are no more than these, or where
    layers differ."""
    main = _find_layers(graph, LAYERS_OF_STEP)
    runs = None if main is None else _find_runs(graph, LayerRun(*main))
    return None if runs is None else _leave_out(graph, runs, LAYERS_OF_STEP, LAYERS_OF_STEP // 2)


def _leave_out(graph: Graph, runs: Sequence[LayerRun], layers: int, head: int) -> Folded | None:
    """The graph with the first `head` and the last of its layers, so many in all."""
    gone = runs[0].count - layers
    run_of = _find_run_of_nodes(runs)

    def is_gone(n: int) -> bool:
        return n in run_of and head <= run_of[n].find_layer(n) < head + gone

    kept = tuple(n for n in range(len(graph.nodes)) if not is_gone(n))
    position_of_kept = {n: i for i, n in enumerate(kept)}
    producers = {name: n for n, node in enumerate(graph.nodes) for name in node.outputs}

    def find_said(reader: int, name: str) -> str | None:
        """What a node reads in place of a tensor; None for one of a layer that is left out and far away."""
        n = producers.get(name)
        if n is None or not is_gone(n):
            return name
        run, layer = run_of[n], run_of[n].find_layer(n)
        if reader in run_of:
            number = run_of[reader].find_layer(reader)
            if abs(layer - number) > 1:
                return None
            said = (number if number < head else number - gone) + layer - number
            layer = said if said < head else said + gone
        elif len(runs) == 1 and layer == run.count - 2:
            layer = head - 1
        else:
            return None
        kept_node = graph.nodes[run.find_first(layer) + (n - run.first) % run.length]
        return kept_node.outputs[graph.nodes[n].outputs.index(name)]

    nodes: list[Node] = []
    for n in kept:
        inputs = [find_said(n, name) for name in graph.nodes[n].inputs]
        if None in inputs:
            return None  # something reads all layers
        nodes.append(replace(graph.nodes[n], inputs=tuple(name for name in inputs if name is not None)))
    gone_names = {name for n, node in enumerate(graph.nodes) if is_gone(n) for name in node.outputs}
    read = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    outputs = tuple(name for name in graph.outputs if name not in gone_names)
    tensors = tuple(tensor for tensor in graph.tensors if tensor.name in read or tensor.name in outputs)
    middle = layers // 2 if layers // 2 < head else layers // 2 + gone
    stands_for = tuple(
        position_of_kept[n] if n in position_of_kept
        else position_of_kept[run_of[n].find_first(middle) + (n - run_of[n].first) % run_of[n].length]
        for n in range(len(graph.nodes))
    )  # fmt: skip
    kept_runs = tuple(LayerRun(position_of_kept[run.first], run.length, layers, run.backwards) for run in runs)
    folded = replace(graph, tensors=tensors, nodes=tuple(nodes), outputs=outputs)
    return Folded(folded, kept, stands_for, kept_runs, head)


def _find_run_of_nodes(runs: Sequence[LayerRun]) -> Mapping[int, LayerRun]:
    return {n: run for run in runs for n in range(run.first, run.end)}


def _number_operators(graph: Graph) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A number for every node, which equal operators share."""
    numbers: dict[Operator, int] = {}
    return np.array([numbers.setdefault(node.operator, len(numbers)) for node in graph.nodes])


def _find_layers(graph: Graph, least: int) -> tuple[int, int, int] | None:
    """The first node of the layers, the length of a layer, and their number; None where there are no more than `least`.

    Of all runs the one with most nodes is taken, and of equal ones that with the shortest layers.
    """
    kinds = _number_operators(graph)
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


def _find_runs(graph: Graph, main: LayerRun) -> tuple[LayerRun, ...] | None:
    """All runs of as many layers as the main one, behind it; None where there are no others, or layers differ."""
    further = _list_further_runs(_number_operators(graph), main.end, len(graph.nodes), main.count)
    runs = _direct(graph, (main, *sorted(further, key=lambda run: run.first)))
    return runs if len(runs) > 1 and _are_alike(graph, runs) else None


def _list_further_runs(
    kinds: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, stop: int, count: int
) -> Iterator[LayerRun]:
    """The runs of `count` layers between two nodes: the one with most nodes, and those on both sides of it."""
    for length in range((stop - start) // count, 0, -1):
        part = kinds[start:stop]
        low, high = _find_longest_run(part[length:] == part[:-length])
        if (high - low) // length + 1 == count:
            run = LayerRun(start + low, length, count)
            yield run
            yield from _list_further_runs(kinds, start, run.first, count)
            yield from _list_further_runs(kinds, run.end, stop, count)
            return


def _direct(graph: Graph, runs: Sequence[LayerRun]) -> tuple[LayerRun, ...]:
    """The runs, with those backwards that read the runs before them so."""
    producers = {name: n for n, node in enumerate(graph.nodes) for name in node.outputs}
    directed: list[LayerRun] = []
    for run in runs:
        run_of, backwards = _find_run_of_nodes(directed), False
        middle = run.first + run.count // 2 * run.length
        for n in range(middle, middle + run.length):
            pairs = zip(graph.nodes[n].inputs, graph.nodes[n + run.length].inputs, strict=True)
            sources = [(producers.get(a, -1), producers.get(b, -1)) for a, b in pairs]
            steps = [
                run_of[b].find_layer(b) - run_of[a].find_layer(a)
                for a, b in sources
                if a in run_of and b in run_of and run_of[a] is run_of[b]
            ]
            if any(steps):
                backwards = next(filter(None, steps)) < 0
                break
        directed.append(replace(run, backwards=backwards))
    return tuple(directed)


def _are_alike(graph: Graph, runs: Sequence[LayerRun]) -> bool:
    """Whether all layers but the first and the last read alike, in every run."""
    producers, saved, run_of = graph.producers(), set(graph.outputs), _find_run_of_nodes(runs)

    def describe(n: int) -> tuple[object, ...]:
        layer = run_of[n].find_layer(n)
        sources: list[object] = []
        for name in graph.nodes[n].inputs:
            if name not in producers:
                sources.append("loaded")
                continue
            producer, j = producers[name]
            source = graph.positions[producer.name]
            run = run_of.get(source)
            if run is None or abs(run.find_layer(source) - layer) > 1:
                sources.append((source, j))
            else:
                sources.append((run.first, (source - run.first) % run.length, j, run.find_layer(source) - layer))
        return *sources, *(name in saved for name in graph.nodes[n].outputs)

    return all(
        describe(run.find_first(layer) + i) == describe(run.find_first(1) + i)
        for run in runs
        for i in range(run.length)
        for layer in range(2, run.count - 1)
    )


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
