"""A time that no plan with given cuts can beat, whatever its placement and its exchange programs.

The bound holds since every plan that `einc.physical.build` makes, with any scheduler, has these properties:

1. The functions of an operator are on different sites, and a site runs one kernel or combining task at a time.
2. A kernel starts after the kernels that make what it reads have ended. What is not made at its site crosses a link
   into it, after a transfer latency, and all that enters a site shares the capacity of the links into that site.
3. Of a block that is in k partial copies, these lie on k sites. So all of them but one move, alone or combined, before
   a last task combines all of them; and each site that reads the result receives at least as many bytes as it reads.
4. Elements with k partial copies and R readers take at least k + R - 2 transfers: k - 1 to combine them at one place,
   and one more for every other reader (which has at most one of the copies).
5. Of the kernels that are ready, a site runs the first in the order of the graph. Operators that read only inputs and
   weights are ready at once; if they have a function for every site, later kernels wait for all of them.

From these follow, in topological order, the earliest start and end of every function (its *head*), and in the other
direction what must follow its end (its *tail*). The bound is the largest of

- head + tail over all functions: the longest chain;
- for any set of work, the least head of it, plus its sum spread evenly over the sites, plus its least tail. Work is
  kernels and combining; and, with all links of the machine in place of the sites, bytes that must move.

Sets that begin at a head h are all work that starts at h or later, so only as many sets are looked at as there are
heads and tails. Inputs and weights are taken to lie wherever they are read, and sites not to share cores. Where inputs
lie `once`, the fifth property does not hold; the others do. A kernel counts with what it takes at least where it runs
by the launch of another one, and what combines, which may run so, with what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.graph.graph import Graph, Node
from einc.logical.plan import Candidate
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine
from einc.predict.costs import describe_operator
from einc.predict.launches import compute_least_ms, find_joining
from einc.predict.peer_sums import find_least_latency_ms
from tests.support.plan_edges import MadeBlocks, ReadEdge, connect, group_blocks, measure_links, stack_bounds

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class _Work:
    """So many ms, or bytes, that begin at `head` ms at the earliest, and `tail` ms at least before the end."""

    head: float
    amount: float
    tail: float


class PlanBounds:
    """Bounds for plans of one graph on the first `sites` sites of a machine; `once` is how inputs and weights lie."""

    def __init__(self, graph: Graph, machine: Machine, sites: int, *, once: bool = False) -> None:
        if machine.cores is not None or any(site.kernels for site in machine.sites):
            raise ValueError(f"{machine.name} has cores or measured rates, which these bounds do not know")
        self._graph, self._machine, self._sites, self._once = graph, machine, sites, once
        self._joining = find_joining(graph, machine)
        norms = any(node.operator.kernel.name in ("rmsnorm", "layernorm") for node in graph.nodes)
        self._adds_alone = not (norms and machine.joins_launches)
        self._combining = machine.kernel_latency_us * MS_PER_US if self._adds_alone else 0.0
        self._links = measure_links(machine, sites)
        self._latency, self._peer_latency = machine.transfer_latency_us * MS_PER_US, find_least_latency_ms(machine)
        reads_peers = self._peer_latency < self._latency
        self._passes = 2 - reads_peers + self._adds_alone  # what peers have is read over links
        self._hbm = max(site.hbm_gbs for site in machine.sites[:sites]) * BYTES_PER_MS
        self._times: dict[tuple[int, int], Array] = {}
        self._bounds: dict[tuple[int, int, bool], tuple[Array, Array]] = {}
        self._blocks: dict[tuple[int, int], MadeBlocks] = {}
        self._kept: list[Candidate] = []  # so that no other candidate gets the identity of one that is known
        position = {node.name: n for n, node in enumerate(graph.nodes)}
        ports = {name: (position[node.name], j) for name, (node, j) in graph.producers().items()}
        itemsizes = {tensor.name: tensor.desc.dtype.itemsize for tensor in graph.tensors}
        self._reads: list[list[tuple[int, int, int, int, bool]]] = []
        for node in graph.nodes:
            names = node.inputs
            self._reads.append(
                [
                    (*ports[name], k, itemsizes[name], name not in names[:k])
                    for k, name in enumerate(names)
                    if name in ports
                ]
            )
        self._saved = [(*ports[name], itemsizes[name]) for name in dict.fromkeys(graph.outputs) if name in ports]

    def bound(self, candidates: Sequence[Candidate], limit: float = math.inf) -> float:
        """Milliseconds; `candidates` has that of every node. What is above `limit` need not be the best bound."""
        times = [self.find_times(n, candidate) for n, candidate in enumerate(candidates)]
        spread = sum(float(node_times.sum()) for node_times in times) / self._sites
        return spread if spread > limit else _Run(self, candidates, times, limit).bound()

    # What does not depend on other nodes, kept by candidate.

    def find_times(self, n: int, candidate: Candidate) -> Array:
        """The least ms of the kernel of each function."""
        operator = self._graph.nodes[n].operator
        key = id(operator), id(candidate), self._graph.nodes[n].name in self._joining
        if key not in self._times:
            self._kept.append(candidate)
            once = [self._time_kernel(self._graph.nodes[n], function) for function in candidate.spec.functions]
            self._times[key] = np.array(once * candidate.replicas)
        return self._times[key]

    def _time_kernel(self, node: Node, function: Any) -> float:
        latency = self._machine.kernel_latency_us
        sites = self._machine.sites[: self._sites]
        joins, cost = node.name in self._joining, describe_operator(node.operator, function)
        return min(
            compute_least_ms(node.operator, function, cost, site, latency, joins=joins, in_chain=True) for site in sites
        )

    def find_blocks(self, candidate: Candidate, position: int) -> MadeBlocks:
        """The distinct blocks of an output."""
        key = id(candidate), position
        if key not in self._blocks:
            self._blocks[key] = group_blocks(candidate, *self.find_bounds(candidate, position, inputs=False))
        return self._blocks[key]

    def find_bounds(self, candidate: Candidate, position: int, *, inputs: bool) -> tuple[Array, Array]:
        """Lower and upper bounds of the blocks that every function of the spec reads, or writes."""
        key = id(candidate), position, inputs
        if key not in self._bounds:
            self._kept.append(candidate)
            sides = [function.inputs if inputs else function.outputs for function in candidate.spec.functions]
            self._bounds[key] = stack_bounds([side[position] for side in sides])
        return self._bounds[key]


class _Run:
    """The bound of one plan."""

    def __init__(self, bounds: PlanBounds, candidates: Sequence[Candidate], times: list[Array], limit: float) -> None:
        self._of, self._limit = bounds, limit
        self._p, self._kernels = bounds._sites, len(candidates)
        self._times = times
        self._arriving: list[list[ReadEdge]] = []
        self._leaving: list[list[ReadEdge]] = [[] for _ in candidates]
        self._released: dict[tuple[int, int], tuple[Array, Array, Array]] = {}
        for m, reads in enumerate(bounds._reads):
            self._arriving.append([])
            for n, j, k, itemsize, counted in reads:
                blocks = bounds.find_blocks(candidates[n], j)
                required = [
                    np.concatenate([side_bounds] * candidates[m].replicas)
                    for side_bounds in bounds.find_bounds(candidates[m], k, inputs=True)
                ]
                edge = connect((n, j), m, blocks, *required, itemsize, counted=counted)
                self._arriving[m].append(edge)
                self._leaving[n].append(edge)
        for n, j, itemsize in bounds._saved:  # the outputs come to a site for each block, and no kernel follows
            blocks = bounds.find_blocks(candidates[n], j)
            m = len(self._arriving)
            edge = connect((n, j), m, blocks, blocks.lower, blocks.upper, itemsize, counted=True)
            self._arriving.append([edge])
            self._leaving[n].append(edge)
            self._leaving.append([])
            self._times.append(np.zeros(len(blocks.lower)))
        partial = any((edge.blocks.copies > 1).any() for edges in self._arriving for edge in edges)
        self._latency = bounds._peer_latency if partial else bounds._latency
        count = len(self._times)
        self._starts: list[Array] = [np.zeros(0)] * count
        self._ends: list[Array] = [np.zeros(0)] * count
        self._all: list[float] = [0.0] * count
        self._afters: list[Array] = [np.zeros(0)] * count
        self._needs: list[Array] = []

    def bound(self) -> float:
        offsets = np.cumsum([0] + [len(node_times) for node_times in self._times])
        every = np.concatenate(self._times)
        heads = np.zeros(len(every))
        ancestors = np.zeros((len(every), len(every)), dtype=bool)
        queued = 0.0  # ms of kernels that every site runs before those of later operators
        for m, times in enumerate(self._times):
            rows = slice(offsets[m], offsets[m + 1])
            for edge in self._arriving[m]:
                needed = edge.blocks.needed  # (blocks, functions of the producer)
                feeds = (
                    needed.T.astype(np.float64) @ (edge.size > 0)
                ) > 0  # (functions of the producer, of the reader)
                before = slice(offsets[edge.producer], offsets[edge.producer + 1])
                ancestors[rows, before] |= feeds.T
                ancestors[rows] |= (feeds.T.astype(np.float32) @ ancestors[before].astype(np.float32)) > 0
            starts = self._find_starts(m)
            if m < self._kernels:
                np.maximum(starts, queued, out=starts)
                if not self._of._once and not self._arriving[m] and len(times) == self._p:
                    queued += float(times.min())
            order = np.argsort(heads[: offsets[m]], kind="stable")[::-1]
            if len(order):
                work = np.cumsum(ancestors[rows][:, order] * every[order], axis=1) / self._p
                floor = np.where(ancestors[rows][:, order], heads[order] + work, 0.0).max(axis=1)
                starts = np.maximum(starts, floor)
            heads[rows] = starts
            self._starts[m], self._ends[m] = starts, starts + times
            self._all[m] = max(float(self._ends[m].max()), self._find_last_start(m) + float(times.min()))
            if self._all[m] > self._limit:
                return self._all[m]
        for n in range(len(self._times) - 1, -1, -1):
            self._afters[n] = self._find_afters(n)
        return self._conclude()

    def _releases(self, edge: ReadEdge) -> tuple[Array, Array, Array]:
        """Per block: when bytes of it can move first, when the last kernel that it takes ends, and the last but one."""
        key = edge.producer, edge.position
        if key in self._released:
            return self._released[key]
        ends = self._ends[edge.producer]
        maker_ends = np.where(edge.blocks.makers, ends[None], np.nan)
        first = np.nanmin(maker_ends, axis=1)
        partial = edge.blocks.copies > 1
        maker_ends = np.sort(np.where(edge.blocks.makers, ends[None], -np.inf), axis=1)
        last = np.where(partial, maker_ends[:, -1], first)
        second = np.where(partial, maker_ends[:, -2] if maker_ends.shape[1] > 1 else first, first)
        self._released[key] = first, last, second
        return first, last, second

    def _combine_ms(self, size: Array) -> Array:
        """The last task that combines so many bytes reads them at least twice, or once and at peers, spread over sites,
        and writes them where it runs alone."""
        passes = self._of._passes
        combined: Array = np.where(size > 0, self._of._combining + passes * size / (self._p * self._of._hbm), 0.0)
        return combined

    def _find_starts(self, m: int) -> Array:
        """The earliest start of every function of a node."""
        latency = self._latency
        starts = np.zeros(len(self._times[m]))
        releases, sizes, local = [], [], []
        for edge in self._arriving[m]:
            first, last, second = self._releases(edge)
            partial = (edge.blocks.copies > 1)[:, None]
            read = edge.size > 0
            combined = np.where(partial, self._combine_ms(edge.size), 0.0)
            waits = np.where(read, last[:, None] + combined, 0.0)
            np.maximum(waits, np.where(read & partial, second[:, None] + latency + combined, 0.0), out=waits)
            np.maximum(starts, waits.max(axis=0), out=starts)
            complete = np.sort(np.where(read & ~partial, first[:, None], -np.inf), axis=0)
            if len(complete) > 1:  # at most one of these blocks is made at the reader's site
                np.maximum(starts, complete[-2] + latency, out=starts)
            if edge.blocks.needed.any(axis=0).all():
                every = read.all(axis=0)
                starts[every] = np.maximum(starts[every], self._all[edge.producer])
            if edge.counted:
                releases.append(first)
                sizes.append(edge.size)
                local.append(~partial[:, 0])
        if releases:
            np.maximum(starts, self._time_arrivals(releases, sizes, local), out=starts)
        return starts

    def _time_arrivals(self, releases: Sequence[Array], sizes: Sequence[Array], local: Sequence[Array]) -> Array:
        """When all that must enter the site of each reader can be there: for every time, what is released later."""
        order = np.argsort(np.concatenate(releases), kind="stable")[::-1]
        entering = np.cumsum(np.concatenate(sizes)[order], axis=0)
        for number, (input_sizes, made_here) in enumerate(zip(sizes, local, strict=True)):
            blocks = [
                input_sizes * made_here[:, None] if n == number else np.zeros_like(block_sizes)
                for n, block_sizes in enumerate(sizes)
            ]
            entering -= np.maximum.accumulate(np.concatenate(blocks)[order], axis=0)
        times = np.concatenate(releases)[order][:, None] + self._latency + entering / self._of._links.site
        return np.where(entering > 0.5, times, 0.0).max(axis=0)

    def _moved(self, edge: ReadEdge) -> float:
        """Bytes that cross links at least, for all functions of the reader."""
        size, copies = edge.size, edge.blocks.copies
        complete = size[copies == 1]
        moved = float((complete.sum(axis=0) - complete.max(axis=0)).sum()) if len(complete) else 0.0
        partial = copies > 1
        if partial.any():
            moved += float(size[partial].sum() + ((copies[partial] - 2) * edge.read[partial]).sum())
        return max(0.0, moved, self._count_crossed(edge))

    def _count_crossed(self, edge: ReadEdge) -> float:
        """Bytes of single copies, times the links that they must cross.

        What one reader alone reads goes the whole way: from each block to one reader at its site, to some near it, and
        to others farther away. Bytes with several readers may be passed on from one to the next.
        """
        near = self._of._links.near
        if len(near) < 3:
            return 0.0
        ways = np.repeat(np.arange(len(near)), np.diff((0, *near)))[: edge.size.shape[1]]
        lone = edge.blocks.makers.sum(axis=1) == 1
        single = -np.sort(-edge.single[lone], axis=1)
        uncopied = (edge.size - np.where(lone[:, None], edge.single, 0.0))[edge.blocks.copies == 1]
        crossed = float((single * ways).sum())
        return crossed + float((uncopied.sum(axis=0) - uncopied.max(axis=0, initial=0.0)).sum())

    def _find_last_start(self, m: int) -> float:
        """When the last function of a node starts, at the earliest: all that must move crosses the links until then."""
        total, first = 0.0, math.inf
        for edge in self._arriving[m]:
            moved = self._moved(edge) if edge.counted else 0.0
            if moved > 0.5:
                total += moved
                read = (edge.size > 0).any(axis=1)
                first = min(first, float(self._releases(edge)[0][read].min()))
        if not total:
            return 0.0
        return first + self._latency + total / self._of._links.total

    def _find_afters(self, n: int) -> Array:
        """What must follow the end of every function of a node, in ms."""
        latency, rate = self._latency, self._of._links.site
        afters = np.zeros(len(self._times[n]))
        for edge in self._leaving[n]:
            tails = self._times[edge.consumer] + self._afters[edge.consumer]
            read = edge.size > 0
            partial = (edge.blocks.copies > 1)[:, None]
            combined = np.where(partial, self._combine_ms(edge.size), 0.0)
            local_tails = np.where(read, tails[None] + combined, 0.0)
            value = local_tails.max(axis=1)
            if read.shape[1] > 1:  # at most one reader is at the site that makes the block
                remote_tails = np.where(read, tails[None] + latency + edge.size / rate, 0.0)
                second = np.sort(remote_tails, axis=1)[:, -2]
                single = edge.blocks.makers.sum(axis=1) == 1
                value = np.where(single, np.maximum(value, second), value)
            # Of a block that several sites have whole, only one of them must serve the readers.
            np.maximum(afters, np.where(edge.blocks.needed, value[:, None], 0.0).max(axis=0), out=afters)
        return afters

    def _conclude(self) -> float:
        best = 0.0
        work, moves = [], []
        for n, times in enumerate(self._times):
            starts, afters = self._starts[n], self._afters[n]
            best = max(best, float((starts + times + afters).max()), self._all[n] + float(afters.min()))
            for t, head, tail in zip(times, starts, afters, strict=True):
                if t > 0:
                    work.append(_Work(float(head), float(t), float(tail)))
            tensors: dict[int, tuple[float, _Work]] = {}
            combined: dict[int, list[_Work]] = {}
            for edge in self._leaving[n]:
                tails = self._times[edge.consumer] + self._afters[edge.consumer]
                first = self._releases(edge)[0]
                if id(edge.blocks) not in combined:
                    combined[id(edge.blocks)] = self._combine(edge, first, tails)
                moved = self._moved(edge)
                if moved > 0.5:
                    read = (edge.size > 0).any(axis=1)
                    item = _Work(float(first[read].min()) + self._latency, moved, float(tails.min()))
                    known = tensors.get(id(edge.blocks))
                    if known is None or known[0] < moved:
                        tensors[id(edge.blocks)] = moved, item
            moves += [item for _, item in tensors.values()]
            work += [item for items in combined.values() for item in items]
        return max(best, _fill(work, self._p), _fill(moves, self._of._links.total))

    def _combine(self, edge: ReadEdge, first: Array, tails: Array) -> list[_Work]:
        """The tasks that combine the partial copies of a tensor: these read them all, and write the result if they
        run alone."""
        work = []
        for b in np.flatnonzero((edge.blocks.copies > 1) & (edge.size > 0).any(axis=1)):
            size = float((edge.blocks.copies[b] + self._of._adds_alone) * edge.read[b])
            tail = float(tails[edge.size[b] > 0].min())
            work.append(_Work(float(first[b]), self._of._combining + size / self._of._hbm, tail))
        return work


def _fill(work: Sequence[_Work], rate: float) -> float:
    """When all the work can be done at this rate: over all heads and tails, what lies between them."""
    if not work:
        return 0.0
    heads = np.array([item.head for item in work])
    amounts = np.array([item.amount for item in work]) / rate
    tails = np.array([item.tail for item in work])
    order = np.argsort(tails, kind="stable")[::-1]
    heads, amounts, tails = heads[order], amounts[order], tails[order]
    best = 0.0
    for head in np.unique(heads):
        inside = heads >= head
        sums = np.cumsum(amounts * inside)
        best = max(best, float((head + sums + tails)[inside].max()))
    return best
