"""A time that no plan can beat: of all plans whose cuts an operator offers, with any placement and any exchanges.

Every plan has these properties:

1. A site runs one kernel at a time, so a plan takes at least the kernels of all operators, divided by the sites.
2. What an operator reads of another one arrives when the kernels that make it have ended. A function specification has
   at its site what one function specification of the other operator makes there; the rest crosses the links into the
   site, after the latency of a transfer. Partial copies lie on different sites: all that is read of them arrives or
   is combined after an arrival. So along a path of operators, the first function specification of each ends no earlier
   than that of the one before, plus what must arrive, plus the shortest of its own kernels.

Both hold for the same plan, and the second for every path, hence also every weighted mean. Several paths with equal
weights lead through operators beside each other, so that none of these is taken to run on a few sites, where its
kernels together take least. The work of an operator is shared by the paths that lead through it. Then the mean is a sum
over paths. The least of each, over the cuts of its operators, is a shortest path through their candidates, and the sum
of these is no more than the least mean over all cuts together. The bound is the greatest of such sums. The paths are
the longest one, by the operators' least times, and then those with most that is on no path before.

A kernel of an operator that several sites compute counts for all of them. Candidates that cannot be part of a plan
faster than a known one are left out: the bound is then the least of both, as a plan with one of them takes longer.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einc.graph.graph import Graph, Node
from einc.graph.layers import find_longest_repetition
from einc.logical.candidates import enumerate_flexible_candidates
from einc.logical.plan import Candidate
from einc.machines.model import Machine
from einc.machines.site_counts import MAX_TIMED_SITES
from einc.ops.base import Operator
from einc.predict.launches import compute_least_ms, find_joining
from einc.search.arrivals import EarliestArrivals
from einc.search.kernel_costs import describe_known, list_cost_keys
from einc_runtime.dtypes import Floats, Ints

WEIGHTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Weights of all paths together: 1 leaves the work out. Between them, the bound changes little."""

MAX_PATHS = 8
"""Paths that are looked at: those of blocks of models are fewer."""

COVERED = 1e-6
"""What an operator counts for a path that an earlier path leads through, too: it only decides between equal paths."""

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

    Steps `first` to `first + length * (count - 1)` lead between equal operators, which equal paths lead through, as
    those `length` steps later do.
    """

    nodes: tuple[int, ...]
    ports: tuple[Ports, ...]
    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.count


@dataclass(frozen=True, slots=True, eq=False)
class _Mean:
    """A weighted mean of the work and of some paths, `weight` for all of these together: their numbers, and of every
    node how many of them lead through it."""

    weight: float
    paths: tuple[int, ...]
    crossing: tuple[int, ...]


def bound_plans(graph: Graph, machine: Machine, sites: int, known_ms: float) -> float | None:
    """Milliseconds that every plan on the first `sites` sites takes, at most `known_ms`, which one plan takes.

    None on more than MAX_TIMED_SITES sites, and where sites share cores: there, tasks are changed before they run.
    """
    if machine.cores is not None or not graph.nodes or sites > MAX_TIMED_SITES:
        return None
    return _Bound(graph, machine, sites, known_ms).find()


def bound_kernels(graph: Graph, machine: Machine, sites: int, rounds: float = 1.0) -> float:
    """Milliseconds that the kernels of every plan take on the first `sites` sites: less than `bound_plans` says, in a
    tenth of its time. 0 where that one has no bound. Sites that do all work `rounds` times may do so in a pipeline."""
    if machine.cores is not None or not graph.nodes or sites > MAX_TIMED_SITES:
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
        least = max(float(np.sum([offer.work.min() for offer in every])), *(float(o.longest.min()) for o in every))
        covering, through = self._find_paths(every)
        path_nodes = list(dict.fromkeys([*covering, *through]))
        means = self._list_means(path_nodes, len(covering))
        kept = self._keep(means, every)
        if kept is None or least >= self._known_ms:
            return self._known_ms  # any other plan is known to take no less
        paths = [self._describe(path, path_nodes, every) for path in path_nodes]
        compared: dict[object, Floats] = {}
        return min(self._known_ms, max(least, *(self._weigh(mean, paths, every, kept, compared) for mean in means)))

    def bound_kernels(self, rounds: float) -> float:
        """All kernels, shared evenly, or those of a path, one after the other."""
        every = [self._offer(node) for node in self._graph.nodes]
        on_path = (sum(float(every[n].shortest.min()) for n in path) for path in self._find_paths(every)[0])
        return max(rounds * sum(float(offer.work.min()) for offer in every), *on_path)

    def _list_means(self, path_nodes: Sequence[tuple[int, ...]], covering: int) -> list[_Mean]:
        """Of each path alone, and of the first ones together, up to all that are `covering`."""
        means = []
        alone, together = ((k,) for k in range(len(path_nodes))), (tuple(range(n)) for n in range(2, covering + 1))
        for group in (*alone, *together):
            counts = Counter(n for k in group for n in path_nodes[k])
            crossing = tuple(counts[n] for n in range(len(self._graph.nodes)))
            means += [_Mean(weight, group, crossing) for weight in WEIGHTS]
        return means

    def _keep(self, means: Sequence[_Mean], every: Sequence[_TimedOffer]) -> dict[int, Ints] | None:
        """The candidates of each offer that a plan may have which is faster than the known one; None if there are none.

        Without what has to arrive, all operators with the candidates that make a mean least, and one with another.
        """
        offers = {id(offer): offer for offer in every}
        slack = {key: np.full(len(offer.work), np.inf) for key, offer in offers.items()}
        for mean in means:
            share = mean.weight / len(mean.paths)
            kinds = Counter((id(offer), crossing) for offer, crossing in zip(every, mean.crossing, strict=True))
            costs = {
                (key, crossing): (1 - mean.weight) * offers[key].work + share * crossing * offers[key].shortest
                for key, crossing in kinds
            }
            left = self._known_ms - sum(count * float(costs[some].min()) for some, count in kinds.items())
            if left < 0:
                return None
            spare = {key: np.full(len(offer.work), -np.inf) for key, offer in offers.items()}
            for (key, _), cost in costs.items():
                np.maximum(spare[key], left - (cost - cost.min()), out=spare[key])
            for key, some in spare.items():
                np.minimum(slack[key], some, out=slack[key])
        kept = {key: np.flatnonzero(some >= 0) for key, some in slack.items()}
        return kept if all(len(some) for some in kept.values()) else None

    def _describe(
        self, nodes: tuple[int, ...], path_nodes: Sequence[tuple[int, ...]], every: Sequence[_TimedOffer]
    ) -> _Path:
        """The path with the equal layers that it leads through, which `_weigh` need not look at one by one."""
        ports = ((), *(self._list_ports(before, n) for before, n in itertools.pairwise(nodes)))
        members = [frozenset(path) for path in path_nodes]
        kinds = [(id(every[n]), *(n in path for path in members)) for n in nodes]
        numbers: dict[object, int] = {}
        keys = [(*pair, read) for pair, read in zip(itertools.pairwise(kinds), ports[1:], strict=True)]
        first, length, count = find_longest_repetition([numbers.setdefault(key, len(numbers)) for key in keys])
        return _Path(nodes, ports, first + 1, length, count)

    def _weigh(
        self,
        mean: _Mean,
        paths: Sequence[_Path],
        every: Sequence[_TimedOffer],
        kept: Mapping[int, Ints],
        compared: dict[object, Floats],
    ) -> float:
        """No more than the least mean of all plans with the candidates that are kept; `compared` has what arrives
        between neighbours."""
        share = mean.weight / len(mean.paths)
        offers = {id(offer): offer for offer in every}
        total = sum(
            (1 - mean.weight) * float(offer.work[kept[id(offer)]].min())
            for offer, crossing in zip(every, mean.crossing, strict=True)
            if not crossing
        )
        costs: dict[tuple[int, int], Floats] = {}

        def cost(n: int) -> Floats:
            key, crossing = id(every[n]), mean.crossing[n]
            if (key, crossing) not in costs:
                offer, some = offers[key], kept[key]
                costs[key, crossing] = share * offer.shortest[some] + (1 - mean.weight) / crossing * offer.work[some]
            return costs[key, crossing]

        for path in (paths[k] for k in mean.paths):

            def step(times: Floats, i: int, path: _Path = path) -> Floats:
                before, reader, ports = id(every[path.nodes[i - 1]]), id(every[path.nodes[i]]), path.ports[i]
                if (before, reader, ports) not in compared:
                    makers, readers = ((offers[side].candidates, kept[side]) for side in (before, reader))
                    compared[before, reader, ports] = self._arrivals.compare(makers, readers, ports)
                reached: Floats = (times[:, None] + share * compared[before, reader, ports]).min(axis=0)
                return cost(path.nodes[i]) + reached

            total += float(_walk(path, cost(path.nodes[0]), step).min())
        return total

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
        for key, function in zip(list_cost_keys(operator, candidate), candidate.spec.functions, strict=True):
            if key not in known:
                cost = describe_known(operator, function, key)
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

    def _find_paths(self, every: Sequence[_TimedOffer]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """The longest path by shortest kernels, and then the longest by those that no path before leads through, until
        there are none; and the longest through the first node of each kind. At most MAX_PATHS of both.

        They follow reads that no function specification does without. Which has exchanges that no cut avoids is not
        known before.
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

        def find_longest(lengths: Sequence[float]) -> tuple[int, ...]:
            reached = list(lengths)
            for n, read_nodes in enumerate(sources):
                reached[n] += max((reached[m] for m in read_nodes), default=0.0)
            path = [max(range(len(nodes)), key=lambda n: (reached[n], n))]  # what takes no time may wait for much
            while sources[path[-1]]:
                path.append(max(sources[path[-1]], key=reached.__getitem__))
            return tuple(reversed(path))

        covering: list[tuple[int, ...]] = []
        left = {n for n, weight in enumerate(weights) if weight}
        while left and len(covering) < MAX_PATHS:
            covering.append(find_longest([w if n in left else COVERED * w for n, w in enumerate(weights)]))
            left.difference_update(covering[-1])
        firsts = {id(offer): n for n, offer in reversed(list(enumerate(every)))}.values()
        through = (find_longest([sum(weights) if m == n else w for m, w in enumerate(weights)]) for n in sorted(firsts))
        return covering, list(itertools.islice(dict.fromkeys(through), MAX_PATHS))

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
