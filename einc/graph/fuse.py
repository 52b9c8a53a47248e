"""Fusion: operators that can be computed inside one another become one operator, so that no data moves between them.

The operators decide whether two of them fuse (`Operator.fuse`); this pass only finds the candidates. A producer joins
the group of its consumers if all of them have become one node and its result is not saved. A slice, or a quantized
weight that is widened, joins all of its consumers if each of them can read what it reads, since that costs nothing.
Nodes are visited from the last to the first, so that the consumers of a tensor have been fused as far as possible
before its producer is visited.

Rounded tensors: products with weights that say `inputs=8` become products of integers, or of floats of few bits.

Before them stands an operator for the largest magnitude of each row, one for all products that read the same rows.
Groups with scales of their own need none. A product that no kernel computes from a rounded tensor takes its tensor as
it is, as every other reader of such a weight does.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial

from einc.graph.graph import Graph, GraphTensor, Node, TensorKind, find_updaters, put_in_order, updates_state
from einc.graph.slices import push_slices
from einc.ops.base import Operator
from einc.ops.dequantize import Dequantize
from einc.ops.quantized_product import QuantizedProduct
from einc.ops.rounded_product import make_rounded_product


def prune(graph: Graph) -> Graph:
    """The graph without nodes that reach no output, nor a state that a later run reads before it is written over;
    declared inputs and weights stay: they are its interface."""
    readers = graph.consumers()
    needed = {graph.nodes[n].outputs[0] for state, n in find_updaters(graph).items() if len(readers[state]) > 1}
    needed.update(graph.outputs)
    kept = []
    for node in map(partial(_keep_needed, needed=needed), reversed(graph.nodes)):
        if needed.intersection(node.outputs):
            needed.update(node.inputs, node.outputs)
            kept.append(node)
    tensors = tuple(t for t in graph.tensors if t.kind is not TensorKind.VALUE or t.name in needed)
    return replace(graph, tensors=tensors, nodes=tuple(reversed(kept)))


def _keep_needed(node: Node, needed: Set[str]) -> Node:
    """The node without the outputs that nothing needs, where its operator need not compute them."""
    kept = [j for j, name in enumerate(node.outputs) if name in needed]
    changed = node.operator.keep_outputs(kept) if 0 < len(kept) < len(node.outputs) else None
    if changed is None:
        return node
    operator, read = changed
    outputs = tuple(node.outputs[j] for j in kept)
    return replace(
        node, name=outputs[0], operator=operator, inputs=tuple(node.inputs[k] for k in read), outputs=outputs
    )


def fuse(graph: Graph) -> Graph:
    """The graph with maximal fused groups; a group has the name, the outputs and the span of its last node.

    A tensor that occurs several times among a node's inputs is read once if the operator allows it. Nodes that no
    output needs are pruned first, because such a reader would keep a group apart; then slices are pushed towards the
    inputs. Last, products of integers get the largest elements of their rows.
    """
    graph = push_slices(prune(graph))
    saved = frozenset(graph.outputs)
    updaters = find_updaters(graph)
    kept: dict[str, Node] = {}  # by name, from the last to the first
    readers: dict[str, list[str]] = {}  # of every tensor, the names of the kept nodes that read it
    for node in reversed(graph.nodes):
        consumers = [kept[name] for name in readers.get(node.outputs[0], ())]
        shared = len(consumers) > 1 and not node.operator.joins_every_reader
        alone = len(node.outputs) == 1 and node.outputs[0] not in saved
        states = [updaters[name] for name in node.inputs if name in updaters]  # which no later node may read
        late = states and any(graph.positions[consumer.name] > min(states) for consumer in consumers)
        if alone and consumers and not shared and not late:
            fused = [fused_node for consumer in consumers if (fused_node := _fuse_nodes(consumer, node)) is not None]
            if len(fused) == len(consumers):
                for consumer, fused_node in zip(consumers, fused, strict=True):
                    _remove_reader(readers, consumer)
                    kept[fused_node.name] = fused_node
                    _add_reader(readers, fused_node)
                continue
        kept[node.name] = _merge_repeated_inputs(node)
        _add_reader(readers, kept[node.name])
    nodes = tuple(reversed(kept.values()))
    gone = {name for node in graph.nodes if node.name not in kept for name in node.outputs}
    tensors = tuple(t for t in graph.tensors if t.name not in gone)
    return round_inputs(replace(graph, tensors=tensors, nodes=nodes))


def _fuse_nodes(consumer: Node, producer: Node) -> Node | None:
    (name,) = producer.outputs
    if updates_state(producer.operator):
        return None
    if producer.operator.part is None and consumer.inputs.count(name) != 1:
        return None
    fused = consumer
    while name in fused.inputs:
        k = fused.inputs.index(name)
        operator = fused.operator.fuse(k, producer.operator)
        if operator is None and not updates_state(fused.operator):
            operator = _fuse_programs(fused.operator, k, producer.operator)
        if operator is None and len(fused.inputs) == 2 and (exchanged := fused.operator.exchange()) is not None:
            fused, k = replace(fused, operator=exchanged, inputs=fused.inputs[::-1]), 1 - k
            operator = exchanged.fuse(k, producer.operator)
        if operator is None:
            return None
        fused = replace(fused, operator=operator, inputs=fused.inputs[:k] + producer.inputs + fused.inputs[k + 1 :])
    return _merge_repeated_inputs(fused)


def _fuse_programs(consumer: Operator, k: int, producer: Operator) -> Operator | None:
    """`consumer` with `producer` in place of its input `k`, where one of them is an index program or a recurrence."""
    if not (consumer.is_program or producer.is_program):
        return None
    from einc.ops.index_fusion import fuse_index_programs
    from einc.ops.recurrence_fusion import fuse_recurrences

    return fuse_index_programs(consumer, k, producer) or fuse_recurrences(consumer, k, producer)


def _merge_repeated_inputs(node: Node) -> Node:
    """The node with repeated inputs merged as far as its operator allows."""
    first = 0
    while first < len(node.inputs):
        for second in range(len(node.inputs) - 1, first, -1):
            if node.inputs[second] == node.inputs[first]:
                operator = node.operator.merge(first, second)
                if operator is not None:
                    inputs = node.inputs[:second] + node.inputs[second + 1 :]
                    node = replace(node, operator=operator, inputs=inputs)
        first += 1
    return node


def _add_reader(readers: dict[str, list[str]], node: Node) -> None:
    for name in dict.fromkeys(node.inputs):
        readers.setdefault(name, []).append(node.name)


def _remove_reader(readers: dict[str, list[str]], node: Node) -> None:
    for name in dict.fromkeys(node.inputs):
        readers[name].remove(node.name)


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
    return replace(graph, tensors=put_in_order(tensors, nodes), nodes=tuple(nodes))


def _choose_name(preferred: str, taken: set[str]) -> str:
    name, count = preferred, 1
    while name in taken:
        count += 1
        name = f"{preferred}_{count}"
    taken.add(name)
    return name
