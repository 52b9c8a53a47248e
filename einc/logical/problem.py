"""A graph as an optimization problem: candidates per node, and which pairs of them cause a repartition
(paper, Section 4.3, sub-cost 1).

The cost of a plan is a sum of one term per node (join and aggregation of its candidate) and one term per edge: the size
of what the consumer reads of the tensor if its tiling differs from the producer's there. Most operators read tensors
whole, as in the paper; slices, and equations with windows, do not. Inputs and weights have no edge and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc.core.spec import Tiling, clip_tiling
from einc.core.tensor import Array, TensorType
from einc.graph.graph import Graph
from einc.logical.candidates import enumerate_candidates, enumerate_flexible_candidates
from einc.logical.pins import Pin, PinnedOffers
from einc.logical.plan import Candidate
from einc.ops.base import Operator


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A computed tensor, or `size` elements of it, that goes from a node to one input of another.

    Nodes are numbered in the graph's order. `produced` and `required` hold, per candidate of the producer and of the
    consumer, the number of its tiling of what is read: equal numbers are equal tilings.
    """

    producer: int
    consumer: int
    size: int
    produced: Array
    required: Array


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """For every node its candidates, the edges that it consumes (in the order of its inputs) and those it feeds."""

    candidates: tuple[tuple[Candidate, ...], ...]
    arriving: tuple[tuple[Edge, ...], ...]
    leaving: tuple[tuple[Edge, ...], ...]

    def repartitions(self, chosen: Sequence[int]) -> list[int]:
        """Per node the repartition cost of its inputs, for one candidate number per node."""
        return [
            sum(
                edge.size
                for edge in edges
                if edge.produced[chosen[edge.producer]] != edge.required[chosen[edge.consumer]]
            )
            for edges in self.arriving
        ]

    def select(self, candidates: tuple[tuple[Candidate, ...], ...], kept: Sequence[Array]) -> Problem:
        """The problem with the candidates at positions `kept` of every node; these are `candidates`."""

        def restrict(edge: Edge) -> Edge:
            produced, required = edge.produced[kept[edge.producer]], edge.required[kept[edge.consumer]]
            return replace(edge, produced=produced, required=required)

        arriving = tuple(tuple(map(restrict, edges)) for edges in self.arriving)
        return Problem(candidates, arriving, tuple(tuple(map(restrict, edges)) for edges in self.leaving))

    def cost(self, chosen: Sequence[int]) -> int:
        """The total cost of a plan."""
        chosen_candidates = (options[c] for options, c in zip(self.candidates, chosen, strict=True))
        return sum(candidate.join + candidate.aggregation for candidate in chosen_candidates) + sum(
            self.repartitions(chosen)
        )


def build_problem(graph: Graph, sites: int, *, flexible: bool = False, pins: Sequence[Pin] = ()) -> Problem:
    """Enumerates the candidates of all nodes and numbers their tilings.

    These are the paper's. With `flexible`, those over fewer sites and those computed on several follow them. A node
    that is pinned has those that its pin allows.

    Raises UsageError for a pin that matches no operator, or that names a cut that is not possible.
    """
    enumerate_offer = enumerate_flexible_candidates if flexible else enumerate_candidates
    offers = {node.operator: enumerate_offer(node.operator, sites) for node in graph.nodes}
    pinned = PinnedOffers(graph, pins, sites)
    return connect(graph, tuple(pinned.restrict(node, offers[node.operator]) for node in graph.nodes))


def connect(graph: Graph, options: tuple[tuple[Candidate, ...], ...]) -> Problem:
    """The problem with these candidates of the nodes."""
    numbers = _TilingNumbers()
    producers = graph.producers()
    arriving: list[list[Edge]] = [[] for _ in options]
    leaving: list[list[Edge]] = [[] for _ in options]
    for consumer, node in enumerate(graph.nodes):
        for k, tensor in enumerate(node.inputs):
            if tensor in producers:
                source, j = producers[tensor]
                producer = graph.positions[source.name]
                produced = numbers.of(options[producer], "output_tilings", j, find_part(node.operator, k))
                required = numbers.of(options[consumer], "input_tilings", k)
                edge = Edge(producer, consumer, node.operator.reads[k].size, produced, required)
                arriving[consumer].append(edge)
                leaving[producer].append(edge)
    return Problem(options, tuple(map(tuple, arriving)), tuple(map(tuple, leaving)))


def find_part(operator: Operator, k: int) -> TensorType | None:
    """The part of its input `k` that an operator reads; None if it reads all of it."""
    part = operator.reads[k]
    return None if part == operator.inputs[k].type else part


class _TilingNumbers:
    """Gives equal tilings equal numbers; a set of candidates is visited once, however many nodes share it."""

    __slots__ = ("_arrays", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[Tiling, int] = {}
        # Keyed by the identity of the candidates, which the caller keeps alive: hashing them would visit every block.
        self._arrays: dict[tuple[int, str, int, TensorType | None], Array] = {}

    def of(self, options: tuple[Candidate, ...], side: str, position: int, part: TensorType | None = None) -> Array:
        """Per candidate the number of its tiling, where `side` is its field of tilings; of `part` alone if given."""
        key = (id(options), side, position, part)
        if key not in self._arrays:
            self._arrays[key] = self._number([getattr(candidate, side)[position] for candidate in options], part)
        return self._arrays[key]

    def _number(self, tilings: list[Tiling], part: TensorType | None) -> Array:
        import numpy as np

        seen: dict[int, int] = {}
        for tiling in tilings:  # a tiling object stands in many candidates: hash it once
            if id(tiling) not in seen:
                seen[id(tiling)] = self._numbers.setdefault(clip_tiling(tiling, part), len(self._numbers))
        return np.array([seen[id(tiling)] for tiling in tilings], dtype=np.int64)


def compute_own_costs(options: Sequence[Candidate]) -> list[int]:
    """The cost of join and aggregation for each candidate, which no neighbour influences."""
    return [candidate.join + candidate.aggregation for candidate in options]
