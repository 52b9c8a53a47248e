"""Scans of a graph in blocks: nodes that take the place of one, each named after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from einc.graph.graph import Graph, GraphTensor, Node, TensorKind, put_in_order
from einc.ops.scan_blocks import block_scan
from einc.ops.scan_parts import ScanPart


def name_parts(node: Node, part: ScanPart) -> tuple[str, ...]:
    """The names of the tensors of a part: those of a result are the node's own."""
    if part.result is not None:
        return (node.outputs[part.result],)
    count = len(part.operator.outputs)
    return tuple(f"{node.name}.{part.name}{f'.{k}' if k else ''}" for k in range(count))


def block_scans(graph: Graph, blocks: Mapping[str, int]) -> Graph:
    """The graph in which the scans with these names have so many blocks.

    A node stays as it is where it is no scan that has blocks, or where a tensor has the name of one of its parts.
    """
    known = graph.tensor_table()
    nodes: list[Node] = []
    added: list[GraphTensor] = []
    for node in graph.nodes:
        parts = block_scan(node.operator, blocks[node.name]) if node.name in blocks else None
        replacing = [] if parts is None else list(_place_parts(node, parts))
        names = [name for part in replacing for name in part.outputs if name not in node.outputs]
        if not replacing or any(name in known for name in names):
            nodes.append(node)
            continue
        nodes += replacing
        added += [
            GraphTensor(name, desc, TensorKind.VALUE, None, node.span)
            for part in replacing
            for name, desc in zip(part.outputs, part.operator.outputs, strict=True)
            if name not in node.outputs
        ]
    return replace(graph, tensors=put_in_order((*graph.tensors, *added), nodes), nodes=tuple(nodes))


def _place_parts(node: Node, parts: Iterable[ScanPart]) -> Iterable[Node]:
    placed: dict[str, tuple[str, ...]] = {}
    for part in parts:
        names = name_parts(node, part)
        placed[part.name] = names
        inputs = tuple(node.inputs[x] if isinstance(x, int) else placed[x[0]][x[1]] for x in part.inputs)
        yield Node(names[0], part.operator, inputs, names, node.span)


def find_blocks(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Of which scans tensors with these shapes have parts, in how many blocks: those that `block_scans` has made."""
    blocks = {}
    for node in graph.nodes:
        for name in (f"{node.name}.starts", f"{node.name}.totals"):
            if shapes.get(name):
                blocks[node.name] = shapes[name][0]
    return blocks
