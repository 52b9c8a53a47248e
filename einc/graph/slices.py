"""Slices of what is computed: where a tensor is read in parts alone, the parts are computed instead of it.

A product whose result is only cut into parts (gate and up, or queries, keys and values, from one weight) becomes one
product per part, each of which reads its part of the weight. Then every part is cut by itself, in line with its
reader; a cut of the whole would leave most of what a reader needs on other sites. The slices that remain are absorbed
by their readers where these can read parts (`graph.fuse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from einc.core.tensor import TensorDesc, TensorType
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.ops.base import Restriction
from einc.ops.shorthands import cut_out

MAX_SLICES = 256
"""A tensor with more slices than this is computed whole: each pair of them is compared."""


def push_slices(graph: Graph) -> Graph:
    """The graph in which operators whose only readers are slices compute these slices one by one.

    This is done where the slices do not overlap, and where the parts together read and write no more bytes of memory
    than the operator and its slices. Nodes that no output needs should be pruned first: such a reader would keep an
    operator whole.
    """
    if all(node.operator.part is None for node in graph.nodes):
        return graph
    pusher = _Pusher(graph)
    for node in reversed(graph.nodes):  # the parts read slices of the operator's inputs, which are visited later
        pusher.visit(node)
    return pusher.finish()


class _Pusher:
    """The graph as it is rewritten from the last node to the first."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._table = graph.tensor_table()
        self._saved = frozenset(graph.outputs)
        self._kept: dict[str, Node] = {}  # by name, from the last to the first
        self._readers: dict[str, list[str]] = {}  # of every tensor, the names of the kept nodes that read it
        self._instead: dict[str, list[GraphTensor]] = {}  # by tensor that is gone: the new tensors

    def visit(self, node: Node) -> None:
        """Keeps the node, or its parts in place of the slices that read it."""
        if any(self._table[name].kind is TensorKind.STATE for name in node.inputs):
            self._keep(node)  # later, the state may be written over
            return
        slices = [self._kept[name] for name in self._readers.get(node.outputs[0], ())]
        if node.operator.part is not None and node.outputs[0] not in self._saved:
            slices = self._join(node, slices)
            if not slices:
                return
        parts = None if node.outputs[0] in self._saved else _find_parts(node, slices)
        if parts is None:
            self._keep(node)
            return
        tensors: dict[tuple[str, TensorType], GraphTensor] = {}
        cuts: list[Node] = []
        for slicer, part in zip(slices, parts, strict=True):
            inputs: list[str] = []
            for name, box in zip(node.inputs, part.boxes, strict=True):
                desc = self._table[name].desc
                if box != desc.type and (name, box) not in tensors:
                    cut = cut_out(desc, box)
                    slice_tensor = tensors[name, box] = self._declare(name, cut.outputs[0])
                    cuts.append(Node(slice_tensor.name, cut, (name,), (slice_tensor.name,), node.span))
                inputs.append(name if box == desc.type else tensors[name, box].name)
            del self._kept[slicer.name]
            self._keep(replace(slicer, operator=part.operator, inputs=tuple(inputs)))
        for cut_node in cuts:
            self._keep(cut_node)
        self._instead[node.outputs[0]] = list(tensors.values())

    def _join(self, node: Node, readers: Sequence[Node]) -> list[Node]:
        """Makes slices of a slice slices of what it reads; returns its other readers."""
        remaining_readers: list[Node] = []
        for reader in readers:
            joined = None if reader.operator.part is None else reader.operator.fuse(0, node.operator)
            if joined is None:
                remaining_readers.append(reader)
            else:
                self._keep(replace(reader, operator=joined, inputs=node.inputs))
        self._readers[node.outputs[0]] = [remaining.name for remaining in remaining_readers]
        if not remaining_readers:
            self._instead[node.outputs[0]] = []
        return remaining_readers

    def finish(self) -> Graph:
        tensors = [new for tensor in self._graph.tensors for new in self._instead.get(tensor.name, [tensor])]
        return replace(self._graph, tensors=tuple(tensors), nodes=tuple(reversed(self._kept.values())))

    def _keep(self, node: Node) -> None:
        self._kept[node.name] = node
        for name in dict.fromkeys(node.inputs):
            self._readers.setdefault(name, []).append(node.name)

    def _declare(self, name: str, desc: TensorDesc) -> GraphTensor:
        """A new tensor for a part of the tensor `name`, with a name of its own."""
        number = 2
        while f"{name}.{number}" in self._table:
            number += 1
        tensor = GraphTensor(f"{name}.{number}", desc, TensorKind.VALUE, None, self._table[name].span)
        self._table[tensor.name] = tensor
        return tensor


def _find_parts(node: Node, slices: Sequence[Node]) -> list[Restriction] | None:
    """What computes every slice of the node's output in its place; None where the node is better left whole."""
    if len(node.outputs) != 1 or not 1 <= len(slices) <= MAX_SLICES:
        return None
    boxes = [box for slicer in slices if (box := slicer.operator.part) is not None]
    if len(boxes) != len(slices) or any(
        first_box.overlaps(second_box) for first_box, second_box in combinations(boxes, 2)
    ):
        return None
    parts = [part for box in boxes if (part := node.operator.restrict(box)) is not None]
    if len(parts) != len(boxes):
        return None
    sliced, copied = node.operator.outputs[0], sum(box.size for box in boxes)
    width = sliced.dtype.itemsize
    present = _count_bytes(node.operator.inputs, node.operator.reads) + (sliced.type.size + 2 * copied) * width
    pushed = sum(_count_bytes(node.operator.inputs, part.boxes) for part in parts) + copied * width
    return parts if pushed <= present else None


def _count_bytes(tensors: Sequence[TensorDesc], boxes: Sequence[TensorType]) -> int:
    return sum(box.size * desc.dtype.itemsize for desc, box in zip(tensors, boxes, strict=True))
