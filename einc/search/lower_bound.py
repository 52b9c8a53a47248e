"""A time that no plan can beat: of all plans whose cuts an operator offers, with any placement and any exchanges.

Every plan has these properties:

1. A site runs one kernel at a time, so a plan takes at least the kernels of all operators, divided by the sites.
2. What an operator reads of another one arrives when the kernels that make it have ended. A function specification has
   at its site what one function specification of the other operator makes there; the rest crosses the links into the
   site, after the latency of a transfer. Partial copies lie on different sites: all that is read of them arrives or
   is combined after an arrival. So along a path of operators, the first function specification of each ends no earlier
   than that of the one before, plus what must arrive, plus the shortest of its own kernels.

Both hold for the same plan, hence also every weighted mean of the two. For a weight, the least mean over the cuts of
all operators together is a sum over operators and over neighbours on the path, and so a shortest path through the
candidates finds it. The bound is the greatest of these minima. The longest paths are looked at, by
the operators' least times.

A kernel of an operator that several sites compute counts for all of them. Candidates that cannot be part of a plan
faster than a known one are left out: the bound is then the least of both, as a plan with one of them takes longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.graph.graph import Graph, Node
from einc.graph.layers import find_longest_repetition
from einc.logical.candidates import enumerate_flexible_candidates
from einc.logical.plan import Candidate
from einc.machines.model import Machine
from einc.ops.base import Operator
from einc.predict.costs import describe_operator
from einc.predict.launches import compute_least_ms, find_joining
from einc.search.arrivals import EarliestArrivals
from einc.search.tables import list_shapes

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

WEIGHTS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Weights of the path: 0 asks for the work alone, 1 for the path alone. Between them, the bound changes little."""

MAX_PATHS = 8
"""Paths that are looked at: blocks of models have about as many."""

MAX_BOUNDED_SITES = 128
"""On more sites there is no bound: kernels of all candidates would take long to time."""

SUM_ROUNDING = 1e-12
"""What equal layers add to the times of a path differs by this part of them at most: sums of floats are rounded."""

Ports = tuple[tuple[int, int, int], ...]
"""What a node reads of the one before it: outputs of that one, inputs of the node, and the bytes of an element."""


@dataclass(frozen=True, slots=True, eq=False)
class _TimedOffer:
    """The candidates of an operator: the shortest and the longest kernel of each, and the work of all, in ms."""

    candidates: tuple[Candidate, ...]
    shortest: Floats
    longest: Floats
    work: Floats


@dataclass(frozen=True, slots=True)
class _Path:
    """Nodes that read each other in turn, each with the ports by which it reads the one before it.

    Steps `first` to `first + length * (count - 1)` lead between equal operators as those `length` steps later do.
    """

    nodes: tuple[int, ...]
    ports: tuple[Ports, ...]
    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.count


def bound_plans(graph: Graph, machine: Machine, sites: int, known_ms: float) -> float | None:
    """Milliseconds that every plan on the first `sites` sites takes, at most `known_ms`, which one plan takes.

    None on more than MAX_BOUNDED_SITES sites, and where sites share cores: there, tasks are changed before they run.
    """
    if machine.cores is not None or not graph.nodes or sites > MAX_BOUNDED_SITES:
        return None
    return _Bound(graph, machine, sites, known_ms).find()


def bound_kernels(graph: Graph, machine: Machine, sites: int, rounds: float = 1.0) -> float:
    """Milliseconds that the kernels of every plan take on the first `sites` sites: less than `bound_plans` says, in a
    tenth of its time. 0 where that one has no bound. Sites that do all work `rounds` times may do so in a pipeline."""
    if machine.cores is not None or not graph.nodes or sites > MAX_BOUNDED_SITES:
        return 0.0
    return _Bound(graph, machine, sites, np.inf).bound_kernels(rounds)


class _Bound:
    """The offers of all operators, each made once, and what is compared between neighbours."""

    def __init__(self, graph: Graph, machine: Machine, sites: int, known_ms: float) -> None:
        self._graph, self._machine, self._sites, self._known_ms = graph, machine, sites, known_ms
        self._arrivals = EarliestArrivals(machine, sites)
        self._kinds = tuple(dict.fromkeys(machine.sites[:sites]))
        self._offers: dict[tuple[Operator, bool], _TimedOffer] = {}
        self._joining = find_joining(graph, machine)
        self._itemsizes = {tensor.name: tensor.desc.dtype.itemsize for tensor in graph.tensors}
        self._reads: dict[tuple[Operator, int], bool] = {}

    def find(self) -> float:
        every = [self._offer(node) for node in self._graph.nodes]
        paths = [self._describe(path, every) for path in self._find_paths(every)]
        slowest = max(float(offer.longest.min()) for offer in every)
        bounds = [self._weigh(weight, path, every) for path in paths for weight in WEIGHTS]
        return min(self._known_ms, max(slowest, *bounds))

    def bound_kernels(self, rounds: float) -> float:
        """All kernels, shared evenly, or those of a path, one after the other."""
        every = [self._offer(node) for node in self._graph.nodes]
        on_path = (sum(float(every[n].shortest.min()) for n in path) for path in self._find_paths(every))
        return max(rounds * sum(float(offer.work.min()) for offer in every), *on_path)

    def _describe(self, nodes: tuple[int, ...], every: Sequence[_TimedOffer]) -> _Path:
        """The path with the equal layers that it leads through, which `_weigh` need not look at one by one."""
        ports = ((), *(self._list_ports(before, n) for before, n in itertools.pairwise(nodes)))
        numbers: dict[object, int] = {}
        keys = [
            (id(every[a]), id(every[b]), read)
            for (a, b), read in zip(itertools.pairwise(nodes), ports[1:], strict=True)
        ]
        first, length, count = find_longest_repetition([numbers.setdefault(key, len(numbers)) for key in keys])
        return _Path(nodes, ports, first + 1, length, count)

    def _weigh(self, weight: float, path: _Path, every: Sequence[_TimedOffer]) -> float:
        """The least mean of the path, with this weight, and of the work of all operators."""
        on_path = set(path.nodes)
        off_path_ms = (1 - weight) * sum(float(offer.work.min()) for n, offer in enumerate(every) if n not in on_path)
        offers = {id(every[n]): every[n] for n in path.nodes}
        costs = {key: (1 - weight) * offer.work + weight * offer.shortest for key, offer in offers.items()}
        least = {key: float(cost.min()) for key, cost in costs.items()}
        slack = self._known_ms - off_path_ms - sum(least[id(every[n])] for n in path.nodes)
        if slack < 0:
            return self._known_ms  # any plan whose mean is less is known to take no less
        kept = {key: np.flatnonzero(cost - least[key] <= slack) for key, cost in costs.items()}
        compared: dict[object, Floats] = {}

        def step(times: Floats, i: int) -> Floats:
            before, key, ports = id(every[path.nodes[i - 1]]), id(every[path.nodes[i]]), path.ports[i]
            if (before, key, ports) not in compared:
                makers, readers = ((offers[side].candidates, kept[side]) for side in (before, key))
                compared[before, key, ports] = weight * self._arrivals.compare(makers, readers, ports)
            reached: Floats = (times[:, None] + compared[before, key, ports]).min(axis=0)
            return costs[key][kept[key]] + reached

        first = id(every[path.nodes[0]])
        return off_path_ms + float(_walk(path, costs[first][kept[first]], step).min())

    def _offer(self, node: Node) -> _TimedOffer:
        key = node.operator, node.name in self._joining
        if key not in self._offers:
            candidates = enumerate_flexible_candidates(node.operator, self._sites)
            known: dict[object, tuple[float, float]] = {}
            times = [self._time(*key, candidate, known) for candidate in candidates]
            shortest, longest, work = np.array(times).T
            self._offers[key] = _TimedOffer(candidates, shortest, longest, work / self._sites)
        return self._offers[key]

    def _time(
        self, operator: Operator, joins: bool, candidate: Candidate, known: dict[object, tuple[float, float]]
    ) -> tuple[float, float, float]:
        """The shortest and the longest kernel, and all of them, each at the site where it is fastest; `known` keeps
        kernels for other candidates of the operator."""
        latency = self._machine.kernel_latency_us
        times: list[tuple[float, float]] = []
        for function in candidate.spec.functions:
            key: object = list_shapes(function) if operator.costs_by_shape else function
            if key not in known:
                cost = describe_operator(operator, function)
                in_chain, work = (
                    min(
                        compute_least_ms(operator, function, cost, site, latency, joins=joins, in_chain=in_chain)
                        for site in self._kinds
                    )
                    for in_chain in (True, False)
                )
                known[key] = in_chain, work
            times.append(known[key])
        chained, works = zip(*times, strict=True)
        return min(chained), max(chained), sum(works) * candidate.replicas

    def _find_paths(self, every: Sequence[_TimedOffer]) -> list[tuple[int, ...]]:
        """The longest path through every node by shortest kernels, the longest first, at most MAX_PATHS.

        They follow reads that no function specification does without. Which of them has exchanges that no cut avoids is
        not known before.
        """
        weights = [float(offer.shortest.min()) for offer in every]
        nodes, position, producers = self._graph.nodes, self._graph.positions, self._graph.producers()
        sources: list[list[int]] = [
            sorted(
                position[producers[name][0].name]
                for k, name in enumerate(node.inputs)
                if name in producers and self._always_reads(node, k)
            )
            for node in nodes
        ]
        readers: list[list[int]] = [[] for _ in nodes]
        for n, read_nodes in enumerate(sources):
            for source in read_nodes:
                readers[source].append(n)
        before, after = list(weights), list(weights)
        for n in range(len(nodes)):
            before[n] += max((before[m] for m in sources[n]), default=0.0)
        for n in reversed(range(len(nodes))):
            after[n] += max((after[m] for m in readers[n]), default=0.0)
        paths: list[tuple[int, ...]] = []
        covered: set[int] = set()
        for n in sorted(range(len(nodes)), key=lambda n: weights[n] - before[n] - after[n]):
            if n in covered or len(paths) == MAX_PATHS:
                continue
            start, end = [n], [n]
            while sources[start[-1]]:
                start.append(max(sources[start[-1]], key=before.__getitem__))
            while readers[end[-1]]:
                end.append(max(readers[end[-1]], key=after.__getitem__))
            path = (*reversed(start), *end[1:])
            covered.update(path)
            paths.append(path)
        return paths

    def _always_reads(self, node: Node, k: int) -> bool:
        """Whether every function specification of every candidate reads a part of this input."""
        key = node.operator, k
        if key not in self._reads:
            self._reads[key] = all(
                function.inputs[k].size
                for candidate in self._offer(node).candidates
                for function in candidate.spec.functions
            )
        return self._reads[key]

    def _list_ports(self, before: int, n: int) -> Ports:
        """What a node reads of another one."""
        producer, read = self._graph.nodes[before].outputs, self._graph.nodes[n].inputs
        return tuple(
            (producer.index(name), k, self._itemsizes[name]) for k, name in enumerate(read) if name in producer
        )


def _walk(path: _Path, times: Floats, step: Callable[[Floats, int], Floats]) -> Floats:
    """The least times at the end of a path, from those at its first node; `step` leads to the next one.

    Once a layer adds the same to all of them, so does every layer that follows and equals it.
    """
    i, before = 1, None
    while i < len(path.nodes):
        if path.first <= i < path.end and (i - path.first) % path.length == 0:
            if before is not None and np.ptp(added := times - before) <= SUM_ROUNDING * float(times.max()):
                layers = (path.end - i) // path.length
                times = times + layers * float(added.min())
                i, before = i + layers * path.length, None
                continue
            before = times
        times = step(times, i)
        i += 1
    return times
