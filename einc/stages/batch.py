"""How the operators of a graph are cut into equal parts of the batch, which are computed one after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einc.errors import UsageError
from einc.graph.graph import Graph, Node, TensorKind
from einc.ops.base import Operator
from einc.ops.wrapping import BatchPart, build_parts, find_parts_fault
from einc.search.dimensions import find_axes
from einc_runtime.plan.schema import Block


@dataclass(frozen=True, slots=True)
class BatchCut:
    """A graph whose batch is cut into `parts`. `index_of[n]` is the position of the index that cuts node n; None for
    nodes that are computed once: those in `late` after all parts, as they read what these make, the others before."""

    graph: Graph
    parts: int
    index_of: tuple[int | None, ...]
    late: frozenset[int]

    def make_operator(self, number: int) -> Operator:
        """The operator of a node for one part."""
        operator, index = self.graph.nodes[number].operator, self.index_of[number]
        return operator if index is None or self.parts == 1 else BatchPart(operator, index, self.parts)


def cut_batch(graph: Graph, parts: int) -> BatchCut:
    """The parts of a graph's batch. Raises UsageError where it has no such parts."""
    if parts == 1:
        return BatchCut(graph, 1, (0,) * len(graph.nodes), frozenset())
    axes = find_axes(graph)
    if axes.batch is None:
        raise UsageError(
            f"the model has no batch that could be divided: {axes.explain_no_batch(graph)}",
            hint="micro-batches and replicas are parts of a batch; without it, a plan has one of each",
        )
    readers = graph.consumers()
    shared = [t.name for t in graph.tensors if t.kind is TensorKind.STATE and len(readers[t.name]) > 1]
    if shared:
        raise UsageError(
            f"state '{shared[0]}' is read by several operators, and cannot be divided into parts of a batch",
            hint="plan it with one stage, micro-batch and replica",
        )
    index_of: list[int | None] = []
    late: set[int] = set()
    blocks_of_parts: dict[str, tuple[Block, ...]] = {}  # by tensor, what each part makes of it
    made_late: set[str] = set()
    reasons: list[str] = []
    for number, node in enumerate(graph.nodes):
        indices = sorted(axes.list_indices(number, axes.batch), key=lambda index: not index.spans)
        faults = [_find_fault(node, index.position, parts, blocks_of_parts) for index in indices if index.parallel]
        positions = [index.position for index in indices if index.parallel]
        possible = [position for position, fault in zip(positions, faults, strict=True) if fault is None]
        index = possible[0] if possible and made_late.isdisjoint(node.inputs) else None
        index_of.append(index)
        if index is not None:
            functions = build_parts(node.operator, index, parts)
            blocks_of_parts.update(
                {name: tuple([f.outputs[j] for f in functions]) for j, name in enumerate(node.outputs)}
            )
        elif not made_late.isdisjoint(node.inputs) or not blocks_of_parts.keys().isdisjoint(node.inputs):
            late.add(number)
            made_late.update(node.outputs)
            reasons += [f"operator '{node.name}': {fault}" for fault in faults if fault is not None]
        else:
            reasons += [f"operator '{node.name}': {fault}" for fault in faults if fault is not None]
    if 2 * sum(index is not None for index in index_of) < len(graph.nodes):
        reason = f": {reasons[0]}" if reasons else ""
        raise UsageError(
            f"the batch cannot be divided into {parts} equal parts{reason}",
            hint="the parts are micro-batches times replicas; they must divide the batch evenly",
        )
    return BatchCut(graph, parts, tuple(index_of), frozenset(late))


def _find_fault(node: Node, index: int, parts: int, blocks_of_parts: Mapping[str, tuple[Block, ...]]) -> str | None:
    """Why a node cannot compute part after part along an index; None if it can."""
    fault = find_parts_fault(node.operator, index, parts)
    if fault is not None:
        return fault
    for part, function in enumerate(build_parts(node.operator, index, parts)):
        for name, block in zip(node.inputs, function.inputs, strict=True):
            if name in blocks_of_parts and not blocks_of_parts[name][part].contains(block):
                held = blocks_of_parts[name][part]
                return f"part {part + 1} of it reads {block} of '{name}', of which that part has {held}"
    return None
