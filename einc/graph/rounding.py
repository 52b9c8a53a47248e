"""Rounded tensors: products with weights that say `inputs=8` become products of integers, or of floats of few bits.

Before them stands an operator for the largest magnitude of each row, one for all products that read the same rows.
Groups with scales of their own need none. A product that no kernel computes from a rounded tensor takes its tensor as
it is, as every other reader of such a weight does.
"""

from __future__ import annotations

from dataclasses import replace

from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.ops.base import Operator
from einc.ops.dequantize import Dequantize
from einc.ops.quantized_product import QuantizedProduct
from einc.ops.rounded_product import make_rounded_product


def round_inputs(graph: Graph) -> Graph:
    """The graph after fusion with rounded products in it; names of new tensors end with `.largest`."""
    taken = {tensor.name for tensor in graph.tensors}
    largest_names: dict[tuple[str, Operator], str] = {}
    nodes: list[Node] = []
    tensors = list(graph.tensors)
    for node in graph.nodes:
        operator = node.operator
        if not (isinstance(operator, QuantizedProduct | Dequantize) and operator.rounds_inputs):
            nodes.append(node)
            continue
        plain = replace(operator, rounds_inputs=False)
        product = None if isinstance(plain, Dequantize) else make_rounded_product(plain)
        if product is None:
            nodes.append(replace(node, operator=plain))
            continue
        source, *weight = node.inputs
        if not product.needs_largest:
            nodes.append(replace(node, operator=product))
            continue
        search = product.find_largest()
        name = largest_names.get((source, search))
        if name is None:
            name = largest_names[source, search] = _choose_name(f"{source}.largest", taken)
            nodes.append(Node(name, search, (source,), (name,), node.span))
            tensors.append(GraphTensor(name, product.largest, TensorKind.VALUE, span=node.span))
        nodes.append(replace(node, operator=product, inputs=(source, name, *weight)))
    return replace(graph, tensors=tuple(tensors), nodes=tuple(nodes))


def _choose_name(preferred: str, taken: set[str]) -> str:
    name, count = preferred, 1
    while name in taken:
        count += 1
        name = f"{preferred}_{count}"
    taken.add(name)
    return name
