"""Nodes that compute what an earlier node has computed are left out: each rule of a gradient writes what it needs."""

from __future__ import annotations

from dataclasses import replace

from einc.graph.graph import Graph, Node, TensorKind, updates_state
from einc.ops.base import Operator


def compute_once(graph: Graph) -> Graph:
    """The graph in which equal operators of the same tensors are one node, the first of them.

    Outputs keep their names: a node that makes one stays.
    """
    known: dict[tuple[Operator, tuple[str, ...]], Node] = {}
    names: dict[str, str] = {}
    nodes: list[Node] = []
    saved = set(graph.outputs)
    for node in graph.nodes:
        inputs = tuple(names.get(name, name) for name in node.inputs)
        node = replace(node, inputs=inputs)
        if updates_state(node.operator):
            nodes.append(node)
            continue
        first = known.setdefault((node.operator, inputs), node)
        if first is node or saved.intersection(node.outputs):
            nodes.append(node)
        else:
            names.update(zip(node.outputs, first.outputs, strict=True))
    tensors = tuple(t for t in graph.tensors if t.kind is not TensorKind.VALUE or t.name not in names)
    return replace(graph, tensors=tensors, nodes=tuple(nodes))
