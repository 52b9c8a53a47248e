"""Small operators and graphs for the optimizer's tests, and a brute force that shares no code with it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from einc.core.intervals import Intervals, ShardableIndex
from einc.core.spec import FunctionSpec, JoinAggSpec
from einc.core.tensor import DType, TensorDesc
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator


@dataclass(frozen=True)
class Toy(MappedOperator):
    """Any operator over index names: `Toy("ij jk -> ik", (("i", 8, None), ...))`; `.` is a scalar."""

    equation: str
    extents: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    family = "toy"

    def _sides(self) -> tuple[list[str], list[str]]:
        left, right = self.equation.split("->")
        return [t.strip(".") for t in left.split()], [t.strip(".") for t in right.split()]

    def _descs(self, terms: Sequence[str]) -> tuple[TensorDesc, ...]:
        extent = {name: size for name, size, _ in self.extents}
        return tuple(TensorDesc(tuple(t), tuple(extent[i] for i in t), DType.F32) for t in terms)

    @property
    def title(self) -> str:
        return self.equation

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self._descs(self._sides()[0])

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return self._descs(self._sides()[1])

    @property
    def attributes(self) -> Attributes:
        return {}

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return tuple(ShardableIndex(name, size, cuts) for name, size, cuts in self.extents)

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return tuple(tuple(DimMap(i) for i in term) for term in self._sides()[0])

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return tuple(tuple(DimMap(i) for i in term) for term in self._sides()[1])

    @property
    def aggregations(self) -> tuple[str, ...]:
        return ("sum",) * len(self.outputs)

    @property
    def kernel(self) -> KernelCall:
        return KernelCall("toy")

    def reference(self, *arrays: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def flops(self, function: FunctionSpec) -> int:
        return 0


def toy(equation: str, cuts: Mapping[str, tuple[int, ...]] | None = None, **extents: int) -> Toy:
    """A toy operator whose indices stand in the order of `extents`."""
    return Toy(equation, tuple((name, size, (cuts or {}).get(name)) for name, size in extents.items()))


class Builder:
    """Graphs by hand: `input` returns a tensor's name, `apply` the names of an operator's outputs."""

    def __init__(self, name: str = "toy") -> None:
        self.name = name
        self.tensors: list[GraphTensor] = []
        self.nodes: list[Node] = []

    def input(self, name: str, *shape: int, kind: TensorKind = TensorKind.INPUT) -> str:
        dims = tuple(f"d{d}" for d in range(len(shape)))
        self.tensors.append(GraphTensor(name, TensorDesc(dims, shape, DType.F32), kind))
        return name

    def apply(self, operator: Operator, *inputs: str, name: str | None = None) -> tuple[str, ...]:
        first = name or f"n{len(self.nodes)}"
        outputs = tuple(first if j == 0 else f"{first}_{j}" for j in range(len(operator.outputs)))
        self.tensors += [GraphTensor(o, d, TensorKind.VALUE) for o, d in zip(outputs, operator.outputs, strict=True)]
        self.nodes.append(Node(first, operator, inputs, outputs))
        return outputs

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.name, tuple(self.tensors), tuple(self.nodes), outputs)


def random_graph(seed: int, operators: int, tree: bool, square: int | None = None) -> Graph:
    """A random graph of toys over matrices and vectors; in a tree every tensor is read at most once, by one node.

    Extents are uneven, and some are too small to be cut as asked, unless `square` gives one extent to all.
    """
    rng = random.Random(seed)
    builder = Builder(f"random{seed}")
    shapes: dict[str, tuple[int, ...]] = {}
    free: list[str] = []  # what a new node may read

    def operand(rank: int, first: int | None = None) -> str:
        fits = [t for t in free if len(shapes[t]) == rank and (first is None or shapes[t][0] == first)]
        if fits and rng.random() < 0.85:
            chosen = rng.choice(fits)
            if tree:
                free.remove(chosen)
            return chosen
        name = f"x{len(builder.tensors)}"
        sizes = [square or rng.choice((1, 2, 3, 5, 6, 7, 8, 12)) for _ in range(rank)]
        if first is not None:
            sizes[0] = first
        shapes[name] = tuple(sizes)
        return builder.input(name, *sizes, kind=rng.choice((TensorKind.INPUT, TensorKind.WEIGHT)))

    for _ in range(operators):
        form = rng.choice(("matmul", "matmul", "copy", "transpose", "add", "rows", "twice", "outer", "split"))
        if form == "matmul":
            a = operand(2)
            b = operand(2, shapes[a][1])
            (i, j), k = shapes[a], shapes[b][1]
            operator, inputs = toy("ij jk -> ik", i=i, j=j, k=k), (a, b)
        elif form in ("copy", "transpose", "rows"):
            a = operand(2)
            i, j = shapes[a]
            cuts = {"i": tuple(sorted(rng.sample(range(1, i), min(i - 1, 3))))} if rng.random() < 0.3 else None
            equation = {"copy": "ij -> ij", "transpose": "ij -> ji", "rows": "ij -> i"}[form]
            operator, inputs = toy(equation, cuts, i=i, j=j), (a,)
        elif form in ("add", "twice"):
            a = operand(2)
            i, j = shapes[a]
            fitting = [t for t in free if shapes[t] == (i, j)]
            if form == "twice" and not tree:
                b = a
            elif fitting:
                b = rng.choice(fitting)
                if tree:
                    free.remove(b)
            else:
                b = builder.input(f"x{len(builder.tensors)}", i, j)
            operator, inputs = toy("ij ij -> ij", i=i, j=j), (a, b)
        elif form == "outer":
            a, b = operand(1), operand(1)
            operator, inputs = toy("i j -> ij", i=shapes[a][0], j=shapes[b][0]), (a, b)
        else:
            a = operand(2)
            i, j = shapes[a]
            operator, inputs = toy("ij -> ij i", i=i, j=j), (a,)
        if form == "split" and tree:  # both outputs must go to one consumer
            full, rows = builder.apply(operator, *inputs)
            operator, inputs = toy("ij i -> ij", i=i, j=j), (full, rows)
        outputs = builder.apply(operator, *inputs)
        for output, desc in zip(outputs, operator.outputs, strict=True):
            shapes[output] = desc.shape
            free.append(output)
    return builder.graph(builder.nodes[-1].outputs[0])


# ---- an independent definition of the plan space and its cost: slow, and straight from the paper's text ----


def counts(sites: int, most: Sequence[int]) -> list[tuple[int, ...]]:
    """All interval counts whose product is p', by trying everything."""
    every = [c for c in itertools.product(*(range(1, min(m, sites) + 1) for m in most)) if prod(c) <= sites]
    best = max(map(prod, every))
    return [c for c in every if prod(c) == best]


def specs(operator: Operator, sites: int) -> list[tuple[Intervals, JoinAggSpec]]:
    """Every request and its spec, in lexicographic order of the intervals."""
    requests = sorted(
        tuple(index.intervals(n) for index, n in zip(operator.indices, c, strict=True))
        for c in counts(sites, [index.max_intervals for index in operator.indices])
    )
    return [(request, operator.build_spec(request)) for request in requests]


def own_cost(spec: JoinAggSpec) -> int:
    """Join and aggregation."""
    join = sum(block.size for f in spec.functions for block in f.inputs)
    aggregation = 0
    for j in range(len(spec.functions[0].outputs)):
        for block, m in Counter(f.outputs[j] for f in spec.functions).items():
            aggregation += (m - 1) * block.size
    return join + aggregation


def repartitions(graph: Graph, chosen: Mapping[str, JoinAggSpec]) -> Iterator[tuple[int, int]]:
    """(size, position of the consumer) of every repartition; only edges between nodes of `chosen` count."""
    producers = graph.producers()
    for position, node in enumerate(graph.nodes):
        for k, tensor in enumerate(node.inputs):
            if tensor in producers and node.name in chosen and producers[tensor][0].name in chosen:
                source, j = producers[tensor]
                have = {f.outputs[j] for f in chosen[source.name].functions}
                want = {f.inputs[k] for f in chosen[node.name].functions}
                if have != want:
                    yield source.operator.outputs[j].type.size, position


def rank_of_plan(graph: Graph, chosen: Mapping[str, JoinAggSpec]) -> tuple[int, int]:
    """(cost, earliness): what a plan is compared by, before its intervals."""
    moved = list(repartitions(graph, chosen))
    cost = sum(own_cost(spec) for spec in chosen.values()) + sum(size for size, _ in moved)
    return cost, sum(len(graph.nodes) - position for _, position in moved)


def brute_force(graph: Graph, sites: int) -> tuple[int, int, tuple[Intervals, ...]]:
    """(cost, earliness, intervals of all nodes) of the best plan, by trying every plan."""
    options = [specs(node.operator, sites) for node in graph.nodes]
    sides = [
        [
            (
                request,
                own_cost(spec),
                [frozenset(f.inputs[k] for f in spec.functions) for k in range(len(spec.functions[0].inputs))],
                [frozenset(f.outputs[j] for f in spec.functions) for j in range(len(spec.functions[0].outputs))],
            )
            for request, spec in offered
        ]
        for offered in options
    ]
    position = {node.name: n for n, node in enumerate(graph.nodes)}
    producers = graph.producers()
    edges = [
        (
            position[producers[t][0].name],
            producers[t][1],
            n,
            k,
            producers[t][0].operator.outputs[producers[t][1]].type.size,
        )
        for n, node in enumerate(graph.nodes)
        for k, t in enumerate(node.inputs)
        if t in producers
    ]
    best: tuple[int, int, tuple[Intervals, ...]] | None = None
    for combination in itertools.product(*sides):
        moved = [(size, n) for a, j, n, k, size in edges if combination[a][3][j] != combination[n][2][k]]
        cost = sum(option[1] for option in combination) + sum(size for size, _ in moved)
        if best is not None and cost > best[0]:
            continue
        rank = (cost, sum(len(graph.nodes) - n for _, n in moved), tuple(option[0] for option in combination))
        if best is None or rank < best:
            best = rank
    assert best is not None
    return best
