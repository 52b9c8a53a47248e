"""Graphs whose plans have results with the same bits, however they are cut."""

from __future__ import annotations

from dataclasses import replace

from einc.graph.graph import Graph
from einc.ops.wrapping import ReproducibleOperator
from einc_runtime.plan.reproducible import require_order


def make_reproducible(graph: Graph) -> Graph:
    """The computation with operators whose results do not depend on how they are cut."""
    for node in graph.nodes:
        require_order(node.operator.kernel.name, f"operator '{node.name}'")
    nodes = tuple(replace(node, operator=ReproducibleOperator(node.operator)) for node in graph.nodes)
    return replace(graph, nodes=nodes)
