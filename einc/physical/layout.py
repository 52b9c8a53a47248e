"""In which order the dimensions of a tensor lie in memory, so that kernels find operands as they want them.

An operator may want dimensions in another order than the one that they stand in: attention, whose queries and results
stand by heads, and which projections from and to all heads make and take by tokens, in one product without a copy.
What only maps elements hands that wish on. Tensors that are loaded or saved lie as they stand.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from einc.graph.graph import Graph, Node, TensorKind
from einc.ops.base import MappedOperator

Order = tuple[int, ...]
"""Dimensions from the slowest to the fastest."""


def memory_orders(graph: Graph) -> Mapping[str, Order]:
    """The tensors that do not lie as they stand. Of several wishes for one tensor the first holds."""
    free = {tensor.name for tensor in graph.tensors if tensor.kind is TensorKind.VALUE} - set(graph.outputs)
    found: dict[str, Order] = {}
    alike: dict[str, list[str]] = {name: [] for name in free}
    for node in graph.nodes:
        for name, wanted in zip((*node.inputs, *node.outputs), node.operator.memory_orders, strict=True):
            if wanted is not None and name in free:
                found.setdefault(name, wanted)
        for one, other in _alike(node):
            if {one, other} <= free:
                alike[one].append(other)
                alike[other].append(one)
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        for other in alike[name]:
            if other not in found:
                found[other] = found[name]
                waiting.append(other)
    return found


def _alike(node: Node) -> list[tuple[str, str]]:
    """Inputs and outputs whose dimensions follow the same indices one by one."""
    operator = node.operator
    if not isinstance(operator, MappedOperator):
        return []
    inputs = zip(node.inputs, operator.input_maps, strict=True)
    outputs = zip(node.outputs, operator.output_maps, strict=True)
    return [(one, other) for (one, own), (other, maps) in itertools.product(inputs, outputs) if own == maps]
