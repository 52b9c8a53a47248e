"""The operators of a plan as a graph to look at: layers that repeat are one, and edges say what moves along them.

Layers repeat where a run of operators stands several times in a row, with the same kinds, cuts and connections, and
names that differ in numbers alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einc.plan_reading.timing import make_labeller
from einc.report.tables import format_cut
from einc_runtime.plan.regions import region_bytes
from einc_runtime.plan.schema import Bundle, TransferTask
from einc_runtime.strict_json import Document

Signature = tuple[object, ...]

MAX_PERIOD = 200
"""Operators of a layer, at most."""


@dataclass(frozen=True, slots=True)
class Run:
    """Operators `start` to `start + period * count`, which are `count` equal layers."""

    start: int
    period: int
    count: int


@dataclass(frozen=True, slots=True)
class FoldedNode:
    """An operator that is drawn, by its position in the plan; of equal layers, those of the first one are drawn.

    `run` is the position of its run, or None. `count` is how many operators it stands for.
    """

    operation: int
    run: int | None
    count: int


@dataclass(frozen=True, slots=True)
class FoldedEdge:
    """A tensor that one drawn node makes and another one reads, both by position in `FoldedGraph.nodes`.

    `size` is the bytes that it brings to the reader from other sites, for one layer. `back` says that it leads from the
    end of a layer to the beginning of the next one.
    """

    source: int
    target: int
    tensor: str
    size: int
    back: bool


@dataclass(frozen=True, slots=True)
class FoldedGraph:
    """The drawn nodes in the order of the plan, the edges between them, and the runs of equal layers."""

    nodes: tuple[FoldedNode, ...]
    edges: tuple[FoldedEdge, ...]
    runs: tuple[Run, ...]


def fold_graph(bundle: Bundle, operations: Sequence[Document]) -> FoldedGraph:
    """The graph of a plan; `operations` are those of the document of `einc explain`, all of them."""
    makers = {tensor: n for n, stored in enumerate(bundle.operations) for tensor in stored.outputs}
    signatures = [_sign(n, bundle, operations[n], makers) for n in range(len(operations))]
    runs = find_runs(signatures)
    first: dict[int, int] = {}  # of every operator, the one that is drawn in its place
    layer: dict[int, tuple[int, int]] = {}  # its run and the number of its layer
    for r, run in enumerate(runs):
        for n in range(run.start, run.start + run.period * run.count):
            first[n] = run.start + (n - run.start) % run.period
            layer[n] = r, (n - run.start) // run.period
    drawn = [n for n in range(len(operations)) if first.get(n, n) == n]
    position = {n: at for at, n in enumerate(drawn)}
    nodes = tuple(
        FoldedNode(n, layer[n][0] if n in layer else None, runs[layer[n][0]].count if n in layer else 1) for n in drawn
    )
    moved = _count_moved_bytes(bundle)
    edges: dict[tuple[int, int, bool], FoldedEdge] = {}
    for n, operation in enumerate(bundle.operations):
        for tensor in dict.fromkeys(operation.inputs):
            if tensor not in makers:
                continue
            maker = makers[tensor]
            source, target = position[first.get(maker, maker)], position[first.get(n, n)]
            back = maker in layer and n in layer and layer[maker][0] == layer[n][0] and layer[maker][1] < layer[n][1]
            name, size = bundle.tensors[tensor].name, moved.get((operation.name, tensor), 0)
            edge = FoldedEdge(source, target, name, size, back or target <= source)
            known = edges.setdefault((source, target, edge.back), edge)
            if size > known.size:
                edges[source, target, edge.back] = edge
    return FoldedGraph(nodes, tuple(edges[key] for key in sorted(edges)), runs)


def find_runs(signatures: Sequence[Signature]) -> tuple[Run, ...]:
    """Runs of equal parts that do not overlap: those that leave the fewest operators first, of equals the shortest."""
    ranked_runs: list[tuple[int, int, int, int]] = []
    for period in range(1, min(MAX_PERIOD, len(signatures) // 2) + 1):
        same = [signature == later for signature, later in zip(signatures, signatures[period:], strict=False)]
        start = 0
        while start + period <= len(same):
            end = start
            while end < len(same) and same[end]:
                end += 1
            count = (end - start) // period + 1
            if count > 1:
                ranked_runs.append((-(count - 1) * period, period, start, count))
            start = end + 1
    taken = [False] * len(signatures)
    runs = []
    for _, period, start, count in sorted(ranked_runs):
        if period * count >= 4 and not any(taken[start : start + period * count]):
            taken[start : start + period * count] = [True] * (period * count)
            runs.append(Run(start, period, count))
    return tuple(sorted(runs, key=lambda run: run.start))


def generalize_name(name: str) -> str:
    """A name with all its numbers replaced, so that those of equal layers are the same."""
    return re.sub(r"[0-9]+", "*", name)


def _sign(n: int, bundle: Bundle, operation: Document, makers: Mapping[int, int]) -> Signature:
    """What two operators have in common that are the same part of two layers; sources by their distance."""
    sources = tuple(
        n - makers[tensor] if tensor in makers else bundle.tensors[tensor].kind
        for tensor in bundle.operations[n].inputs
    )
    return generalize_name(operation["name"]), operation["op"], format_cut(operation), sources


def _count_moved_bytes(bundle: Bundle) -> Mapping[tuple[str, int], int]:
    """The bytes that transfers bring of each tensor for each operator. What serves an output is not counted here."""
    label: Callable[[Any], tuple[str, bool]] = make_labeller(bundle)
    moved: dict[tuple[str, int], int] = defaultdict(int)
    for task in bundle.tasks:
        if isinstance(task, TransferTask):
            name, is_output = label(task)
            if not is_output:
                moved[name, bundle.buffers[task.read.buffer].tensor] += region_bytes(bundle, task.read)
    return moved
