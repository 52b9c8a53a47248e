"""Leaving out what no saved output needs."""

from __future__ import annotations

from dataclasses import replace

from einc.graph.graph import Graph, TensorKind


def prune(graph: Graph) -> Graph:
    """The graph without nodes that reach no output; declared inputs and weights stay, for they are its interface."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs, node.outputs)
            kept.append(node)
    tensors = tuple(t for t in graph.tensors if t.kind is not TensorKind.VALUE or t.name in needed)
    return replace(graph, tensors=tensors, nodes=tuple(reversed(kept)))
