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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.exchange.network import Network, make_mask
from einc.graph.graph import Graph, Node
from einc.logical.candidates import enumerate_flexible_candidates
from einc.logical.plan import Candidate
from einc.machines.model import MS_PER_US, Machine
from einc.ops.base import Operator
from einc.predict.costs import describe_operator
from einc.predict.launches import compute_least_ms, find_joining
from einc.predict.peer_sums import find_least_latency_ms
from einc.search.tables import list_shapes

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

WEIGHTS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Weights of the path: 0 asks for the work alone, 1 for the path alone. Between them, the bound changes little."""

MAX_PATHS = 8
"""Paths that are looked at: blocks of models have about as many."""

MAX_BOUNDED_SITES = 128
"""On more sites there is no bound: kernels of all candidates would take long to time."""

MAX_COMPARED_PAIRS = 20_000_000
"""Pairs of function specifications of two neighbours that are compared, candidate by candidate: some seconds. With
more, nothing has to arrive: the bound is lower, and holds."""


@dataclass(frozen=True, slots=True, eq=False)
class _TimedOffer:
    """The candidates of an operator: the shortest and the longest kernel of each, and the work of all, in ms."""

    candidates: tuple[Candidate, ...]
    shortest: Floats
    longest: Floats
    work: Floats

    def keep(self, chosen: Flags) -> _TimedOffer:
        """Those candidates alone."""
        positions = np.flatnonzero(chosen)
        few = tuple(self.candidates[p] for p in positions.tolist())
        return _TimedOffer(few, self.shortest[positions], self.longest[positions], self.work[positions])


@dataclass(frozen=True, slots=True, eq=False)
class _PortBlocks:
    """Distinct blocks, (n, rank) each, and which of them are put out in partial copies."""

    lower: Ints
    upper: Ints
    partial: Flags


def bound_plans(graph: Graph, machine: Machine, sites: int, known_ms: float) -> float | None:
    """Milliseconds that every plan on the first `sites` sites takes, at most `known_ms`, which one plan takes.

    None on more than MAX_BOUNDED_SITES sites, and where sites share cores: there, tasks are changed before they run.
    """
    if machine.cores is not None or not graph.nodes or sites > MAX_BOUNDED_SITES:
        return None
    return _Bound(graph, machine, sites, known_ms).find()


def bound_kernels(graph: Graph, machine: Machine, sites: int) -> float:
    """Milliseconds that the kernels of every plan take on the first `sites` sites: less than `bound_plans` says, in a
    tenth of its time. 0 where that one has no bound."""
    if machine.cores is not None or not graph.nodes or sites > MAX_BOUNDED_SITES:
        return 0.0
    return _Bound(graph, machine, sites, np.inf).bound_kernels()


class _Bound:
    """The offers of all operators, each made once, and what is compared between neighbours."""

    def __init__(self, graph: Graph, machine: Machine, sites: int, known_ms: float) -> None:
        self._graph, self._machine, self._sites, self._known_ms = graph, machine, sites, known_ms
        network = Network(machine.restrict(tuple(range(sites))), None)
        alone = [network.entering(make_mask((site,)))[0] for site in network.sites]
        self._rate = max(alone, default=0.0) or np.inf
        self._least_latency_ms = find_least_latency_ms(machine)
        self._offers: dict[tuple[Operator, bool], _TimedOffer] = {}
        self._joining = find_joining(graph, machine)
        self._itemsizes = {tensor.name: tensor.desc.dtype.itemsize for tensor in graph.tensors}
        self._reads: dict[tuple[Operator, int], bool] = {}
        self._names: dict[tuple[int, int, str], bytes] = {}
        self._blocks: dict[bytes, _PortBlocks] = {}
        self._measured: dict[tuple[bytes, int], dict[bytes, float]] = {}

    def find(self) -> float:
        every = [self._offer(node) for node in self._graph.nodes]
        paths = self._find_paths([float(offer.shortest.min()) for offer in every])
        slowest = max(float(offer.longest.min()) for offer in every)
        bounds = [self._weigh(weight, path, every) for path in paths for weight in WEIGHTS]
        return min(self._known_ms, max(slowest, *bounds))

    def bound_kernels(self) -> float:
        """All kernels, shared evenly, or those of a path, one after the other."""
        every = [self._offer(node) for node in self._graph.nodes]
        shortest = [float(offer.shortest.min()) for offer in every]
        on_path = (sum(shortest[n] for n in path) for path in self._find_paths(shortest))
        return max(sum(float(offer.work.min()) for offer in every), *on_path)

    def _weigh(self, weight: float, path: Sequence[int], every: Sequence[_TimedOffer]) -> float:
        """The least mean of the path, with this weight, and of the work of all operators."""
        off_path = dict.fromkeys(range(len(every)))
        for n in path:
            del off_path[n]
        off_path_ms = (1 - weight) * sum(float(every[n].work.min()) for n in off_path)
        costs = {id(every[n]): (1 - weight) * every[n].work + weight * every[n].shortest for n in path}
        slack = self._known_ms - off_path_ms - sum(float(costs[id(every[n])].min()) for n in path)
        kept = {id(every[n]): every[n].keep(costs[id(every[n])] - costs[id(every[n])].min() <= slack) for n in path}
        compared: dict[tuple[object, ...], Floats] = {}
        least: Floats = np.zeros(1)
        before = -1
        for n in path:
            offer = kept[id(every[n])]
            if not offer.candidates:
                return self._known_ms  # any plan whose mean is less is known to take no less
            cost = (1 - weight) * offer.work + weight * offer.shortest
            if before >= 0:
                producer, ports = kept[id(every[before])], self._list_ports(before, n)
                key = id(producer), id(offer), ports
                if key not in compared:
                    compared[key] = self._compare(producer, offer, ports)
                cost = cost + (least[:, None] + weight * compared[key]).min(axis=0)
            least, before = cost, n
        return off_path_ms + float(least.min())

    def _offer(self, node: Node) -> _TimedOffer:
        key = node.operator, node.name in self._joining
        if key not in self._offers:
            candidates = enumerate_flexible_candidates(node.operator, self._sites)
            times = [self._time(*key, candidate) for candidate in candidates]
            shortest, longest, work = np.array(times).T
            self._offers[key] = _TimedOffer(candidates, shortest, longest, work / self._sites)
        return self._offers[key]

    def _time(self, operator: Operator, joins: bool, candidate: Candidate) -> tuple[float, float, float]:
        """The shortest and the longest kernel, and all of them, each at the site where it is fastest."""
        latency = self._machine.kernel_latency_us
        kinds = tuple(dict.fromkeys(self._machine.sites[: self._sites]))
        known: dict[object, tuple[float, float]] = {}
        times: list[tuple[float, float]] = []
        for function in candidate.spec.functions:
            shapes = list_shapes(function)
            key = (
                shapes if operator.costs_by_shape else (describe_operator(operator, function), shapes if joins else ())
            )
            if key not in known:
                in_chain, work = (
                    min(
                        compute_least_ms(operator, function, site, latency, joins=joins, in_chain=in_chain)
                        for site in kinds
                    )
                    for in_chain in (True, False)
                )
                known[key] = in_chain, work
            times.append(known[key])
        chained, works = zip(*times, strict=True)
        return min(chained), max(chained), sum(works) * candidate.replicas

    def _find_paths(self, weights: Sequence[float]) -> list[tuple[int, ...]]:
        """The longest path through every node by these weights, the longest first, at most MAX_PATHS.

        They follow reads that no function specification does without. Which of them has exchanges that no cut avoids is
        not known before.
        """
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

    def _list_ports(self, before: int, n: int) -> tuple[tuple[int, int, int], ...]:
        """What a node reads of another one: the output, the input, and the bytes of an element."""
        producer, read = self._graph.nodes[before].outputs, self._graph.nodes[n].inputs
        return tuple(
            (producer.index(name), k, self._itemsizes[name]) for k, name in enumerate(read) if name in producer
        )

    def _compare(self, producer: _TimedOffer, read: _TimedOffer, ports: Sequence[tuple[int, int, int]]) -> Floats:
        """Ms until the first function specification has what it reads: (candidates of one node, of the next)."""
        arrivals: Floats = np.zeros((len(producer.candidates), len(read.candidates)))
        for j, k, itemsize in ports:
            makers = [self._describe_blocks(c, j, "made") for c in producer.candidates]
            readers = [self._describe_blocks(c, k, "read") for c in read.candidates]
            rows, columns = (
                {key: number for number, key in enumerate(dict.fromkeys(some))} for some in (makers, readers)
            )
            sizes = [sum(len(self._blocks[key].lower) for key in some) for some in (rows, columns)]
            if sizes[0] * sizes[1] > MAX_COMPARED_PAIRS:
                continue
            table = np.array([self._measure_row(maker, columns, itemsize) for maker in rows])
            places = np.ix_([rows[key] for key in makers], [columns[key] for key in readers])
            np.maximum(arrivals, table[places], out=arrivals)
        return arrivals

    def _describe_blocks(self, candidate: Candidate, port: int, side: str) -> bytes:
        """The name of the distinct blocks of a candidate at a port."""
        key = id(candidate), port, side
        if key not in self._names:
            functions = candidate.spec.functions
            blocks = [(f.inputs if side == "read" else f.outputs)[port] for f in functions]
            rows = np.array([[*block.lower, *block.upper] for block in blocks], np.int64).reshape(len(blocks), -1)
            distinct, copies = np.unique(rows, axis=0, return_counts=True)
            rank = distinct.shape[1] // 2
            partial = (copies > 1) & (side == "made")
            name = distinct.tobytes() + partial.tobytes() + bytes([rank])
            self._names[key] = name
            self._blocks[name] = _PortBlocks(distinct[:, :rank], distinct[:, rank:], partial)
        return self._names[key]

    def _measure_row(self, maker: bytes, readers: Iterable[bytes], itemsize: int) -> list[float]:
        """What `_measure` says of every reader; the same pairs are asked for with every weight of every path."""
        known = self._measured.setdefault((maker, itemsize), {})
        for reader in readers:
            if reader not in known:
                known[reader] = self._measure(maker, reader, itemsize)
        return [known[reader] for reader in readers]

    def _measure(self, maker: bytes, reader: bytes, itemsize: int) -> float:
        """Ms after which all that one function specification reads can be at its site: the least of all of them."""
        producer, read = self._blocks[maker], self._blocks[reader]
        common = np.ones((len(read.lower), len(producer.lower)), np.int64)  # elements of (blocks read, blocks made)
        for d in range(read.lower.shape[1]):  # in pairs of vectors, which is several times as fast as all at once
            upper = np.minimum(producer.upper[:, d], read.upper[:, d, None])
            common *= np.maximum(0, upper - np.maximum(producer.lower[:, d], read.lower[:, d, None]))
        nearby = np.where(producer.partial[None], 0, common).max(axis=1)
        entering = int((common.sum(axis=1) - nearby).min()) * itemsize
        latency = self._least_latency_ms if producer.partial.any() else self._machine.transfer_latency_us * MS_PER_US
        return latency + entering / self._rate if entering else 0.0
