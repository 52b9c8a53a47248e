"""Which dimensions of a graph's tensors are cut together, found from the operators' specs alone.

Cutting an index of an operator cuts some dimensions of the tensors that it reads and writes. Dimensions that one index
cuts belong to one *axis*, and so do those of all operators that share a tensor: the tokens of a model are one axis from
its input to its output, and the hidden dimension of an MLP is one from the first product's weight to the second's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from einc.graph.graph import Graph, Node, TensorKind
from einc.logical.reach import Reach, find_reaches

Place = tuple[str, int]
"""A tensor's name and one of its dimensions."""


@dataclass(frozen=True, slots=True)
class CutIndex:
    """A shardable index (a position) of a node, and the axis that it belongs to (a number).

    `spans` says that it cuts all dimensions of its axis in the node's tensors, and not only some of several. `weighs`
    says that it cuts a weight.
    """

    position: int
    axis: int
    extent: int
    parallel: bool
    spans: bool
    weighs: bool


@dataclass(frozen=True)  # no slots: it remembers what it computes
class Axes:
    """The axes of a graph: what it has of them in every node.

    `nodes` holds the indices that can be cut, in the operator's order, and `kept` the axes that both an input and an
    output have; `lost` are axes that a node reads and cannot be cut along, and `entering` those of the graph's inputs.
    `computes` counts the nodes that depend on an input or a state, or aggregate: what rewrites a weight,
    as the factors of batch norms do, has no batch.
    """

    nodes: tuple[tuple[CutIndex, ...], ...]
    kept: tuple[frozenset[int], ...]
    lost: tuple[frozenset[int], ...]
    entering: frozenset[int]
    count: int
    computes: int

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """For every axis the nodes that have an index of it, in the graph's order."""
        nodes_of_axis: list[list[int]] = [[] for _ in range(self.count)]
        for number, indices in enumerate(self.nodes):
            for axis in dict.fromkeys(index.axis for index in indices):
                nodes_of_axis[axis].append(number)
        return tuple(map(tuple, nodes_of_axis))

    @cached_property
    def weighted(self) -> frozenset[int]:
        """The axes that cut a weight in a product, that is, in an operator that also aggregates."""
        return frozenset(
            index.axis
            for indices in self.nodes
            if any(not part.parallel for part in indices)
            for index in indices
            if index.weighs
        )

    @cached_property
    def mixed(self) -> frozenset[int]:
        """The axes along which some operator makes a position from several ones, as attention does of tokens."""
        return frozenset(
            axis
            for indices, kept in zip(self.nodes, self.kept, strict=True)
            for axis in kept
            if not any(index.parallel and index.spans for index in indices if index.axis == axis)
        )

    @cached_property
    def batch(self) -> int | None:
        """The axis whose positions no operator mixes, that most operators have; it must be half of them."""
        return self.find_widest(set(range(self.count)) - self.weighted - self.mixed)

    def explain_no_batch(self, graph: Graph) -> str:
        """Why there is none, for a message: it names the first operator that ends what might have been one."""
        candidates = self.entering - self.weighted - self.mixed
        node = next((node for node, lost in zip(graph.nodes, self.lost, strict=True) if lost & candidates), None)
        reason = "no dimension runs from an input to the outputs with independent positions"
        if node is None:
            return reason
        location = f" ({node.span.file}:{node.span.line})" if node.span is not None and node.span.file else ""
        ended = f"the {node.operator.family} '{node.name}'{location}"
        return f"{reason}; one ends at {ended}, which cannot be cut along it"

    def find_widest(self, candidates: Iterable[int], first: int | None = None) -> int | None:
        """Of these axes the first that most operators can be cut along in parallel, if these are half of those that
        `computes` counts; or that most of the `first` operators can, which are fewer than all."""
        widths = {
            axis: sum(
                any(i.parallel for i in self.list_indices(node, axis))
                for node in self.members[axis]
                if first is None or node < first
            )
            for axis in candidates
        }
        best = max(widths, key=lambda axis: (widths[axis], -axis), default=None)
        enough = 1 if first is not None else self.computes / 2
        return best if best is not None and widths[best] >= enough else None

    def list_indices(self, node: int, axis: int) -> Iterator[CutIndex]:
        """The indices of a node that belong to an axis."""
        return (index for index in self.nodes[node] if index.axis == axis)


def find_axes(graph: Graph) -> Axes:
    """The axes, numbered in the order in which the graph's nodes first cut them."""
    leaders: dict[Place, Place] = {}

    def find(port: Place) -> Place:
        leader = leaders.setdefault(port, port)
        while leader != leaders[leader]:
            leaders[leader] = leaders[leaders[leader]]
            leader = leaders[leader]
        leaders[port] = leader
        return leader

    weights = {tensor.name for tensor in graph.tensors if tensor.kind is TensorKind.WEIGHT or tensor.stored is not None}
    weights |= _find_rewritten(graph, weights)
    ranks = {tensor.name: tensor.desc.rank for tensor in graph.tensors}
    reaches = {node.operator: find_reaches(node.operator) for node in graph.nodes}
    cuts = [[(reach, _list_places(node, reach)) for reach in reaches[node.operator]] for node in graph.nodes]
    for node_cuts in cuts:
        for _, places in node_cuts:
            for joined_port in places[1:]:
                leaders[find(joined_port)] = find(places[0])
    numbers: dict[Place, int] = {}
    axis_of: dict[Place, int] = {}
    for node_cuts in cuts:
        for _, places in node_cuts:
            for port in places:
                if port not in axis_of:
                    axis_of[port] = numbers.setdefault(find(port), len(numbers))

    def list_axes(tensors: Sequence[str]) -> list[tuple[Place, int]]:
        places = [(name, d) for name in dict.fromkeys(tensors) for d in range(ranks[name])]
        return [(port, axis_of[port]) for port in places if port in axis_of]

    nodes, kept, lost = [], [], []
    for node, node_cuts in zip(graph.nodes, cuts, strict=True):
        reads, writes = list_axes(node.inputs), list_axes(node.outputs)
        kept.append(frozenset([axis for _, axis in reads]) & frozenset([axis for _, axis in writes]))
        sizes = Counter(axis for _, axis in dict([*reads, *writes]).items())
        indices = []
        for position, (reach, places) in enumerate(node_cuts):
            if places:
                axis = axis_of[places[0]]
                spans = sizes[axis] == len(set(places))
                weighs = any(node.inputs[k] in weights for k, _ in reach.inputs)
                indices.append(CutIndex(position, axis, reach.extent, reach.parallel, spans, weighs))
        nodes.append(tuple(indices))
        lost.append(frozenset([axis for _, axis in reads]) - {index.axis for index in indices})
    entering = frozenset(axis for _, axis in list_axes([t.name for t in graph.tensors if t.kind is TensorKind.INPUT]))
    return Axes(tuple(nodes), tuple(kept), tuple(lost), entering, len(numbers), _count_computing(graph, nodes))


def _find_rewritten(graph: Graph, weights: Set[str]) -> set[str]:
    """What a training step makes of single weights before the loss, as weights of 16 bits."""
    states = {tensor.name for tensor in graph.tensors if tensor.kind is TensorKind.STATE} & weights
    return {node.outputs[0] for node in graph.nodes if len(node.inputs) == 1 and node.inputs[0] in states}


def _count_computing(graph: Graph, indices: Sequence[Sequence[CutIndex]]) -> int:
    kinds = (TensorKind.INPUT, TensorKind.STATE)
    changing = {tensor.name for tensor in graph.tensors if tensor.kind in kinds}
    count = 0
    for node, cut in zip(graph.nodes, indices, strict=True):
        depends = not changing.isdisjoint(node.inputs)
        changing.update(node.outputs if depends else ())
        count += depends or not all(index.parallel for index in cut)
    return count


def _list_places(node: Node, reach: Reach) -> Sequence[Place]:
    """The dimensions of the graph's tensors that an index of a node cuts."""
    return [
        *((node.inputs[k], d) for k, d in reach.inputs),
        *((node.outputs[j], d) for j, d in reach.outputs),
    ]
