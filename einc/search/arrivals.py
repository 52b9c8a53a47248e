"""When the first function specification of an operator can have what it reads of another one, at the earliest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from einc.core.tensor import TensorType
from einc.exchange.network import Network, make_mask
from einc.logical.plan import Candidate
from einc.machines.model import MS_PER_US, Machine
from einc.predict.peer_sums import find_least_latency_ms
from einc_runtime.dtypes import Floats, Ints
from einc_runtime.plan.peer_sums import MAX_PEER_BYTES

Flags = np.ndarray[Any, np.dtype[np.bool_]]

MAX_COMPARED_PAIRS = 20_000_000
"""Pairs of function specifications of two neighbours that are compared, candidate by candidate: some seconds. With
more, nothing has to arrive: the bound is lower, and holds."""

Side = Literal["made", "read"]

Axis = tuple[tuple[int, int], ...]
"""Intervals of one dimension, in ascending order."""


@dataclass(frozen=True, slots=True, eq=False)
class _PortBlocks:
    """Distinct blocks, (n, rank) each, and which of them are put out in partial copies. `axes` are the intervals of
    every dimension, where the blocks are all of their products; else it is None."""

    lower: Ints
    upper: Ints
    partial: Flags
    axes: tuple[Axis, ...] | None


class EarliestArrivals:
    """What is known of the blocks of candidates, and of pairs of them; `sites` sites of a machine take part."""

    def __init__(self, machine: Machine, sites: int) -> None:
        network = Network(machine.restrict(tuple(range(sites))), None)
        alone = [network.entering(make_mask((site,)))[0] for site in network.sites]
        self._rate = max(alone, default=0.0) or np.inf
        self._latency_ms = machine.transfer_latency_us * MS_PER_US
        self._least_latency_ms = find_least_latency_ms(machine)
        self._classes: dict[tuple[int, int, Side], tuple[list[bytes], Ints]] = {}
        self._kept: list[Sequence[Candidate]] = []  # so that no other ones get the identity of these
        self._blocks: dict[bytes, _PortBlocks] = {}
        self._measured: dict[tuple[bytes, bytes, int], float] = {}
        self._tables: dict[tuple[int, ...], Floats] = {}
        self._axes: dict[Axis, Axis] = {}
        self._overlaps: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def compare(
        self,
        makers: tuple[Sequence[Candidate], Ints],
        readers: tuple[Sequence[Candidate], Ints],
        ports: Iterable[tuple[int, int, int]],
    ) -> Floats:
        """Milliseconds for some candidates of the operator that makes something, and some of the one that reads it:
        (those, these). Each side is all candidates, and the positions of some; `ports` are outputs of the one, inputs
        of the other, and the bytes of an element."""
        arrivals: Floats = np.zeros((len(makers[1]), len(readers[1])))
        for j, k, itemsize in ports:
            made_names, made_classes = self._classify(makers[0], j, "made")
            read_names, read_classes = self._classify(readers[0], k, "read")
            rows, columns = made_classes[makers[1]], read_classes[readers[1]]
            some_made, some_read = (sorted(set(numbers.tolist())) for numbers in (rows, columns))
            sizes = [
                sum(len(self._blocks[names[n]].lower) for n in numbers)
                for names, numbers in ((made_names, some_made), (read_names, some_read))
            ]
            if sizes[0] * sizes[1] > MAX_COMPARED_PAIRS:
                continue
            key = id(makers[0]), j, id(readers[0]), k, itemsize
            if key not in self._tables:
                self._tables[key] = np.full((len(made_names), len(read_names)), np.nan)
            table = self._tables[key]
            missing = np.isnan(table[np.ix_(some_made, some_read)])
            for row, column in np.argwhere(missing).tolist():
                m, r = some_made[row], some_read[column]
                table[m, r] = self._find(made_names[m], read_names[r], itemsize)
            np.maximum(arrivals, table[np.ix_(rows, columns)], out=arrivals)
        return arrivals

    def _classify(self, candidates: Sequence[Candidate], port: int, side: Side) -> tuple[list[bytes], Ints]:
        """The names of distinct sets of blocks at a port, and the number of each candidate's."""
        key = id(candidates), port, side
        if key not in self._classes:
            self._kept.append(candidates)
            numbers: dict[bytes, int] = {}
            classes = [numbers.setdefault(self._describe_blocks(c, port, side), len(numbers)) for c in candidates]
            self._classes[key] = list(numbers), np.array(classes)
        return self._classes[key]

    def _describe_blocks(self, candidate: Candidate, port: int, side: Side) -> bytes:
        """The name of the distinct blocks of a candidate at a port."""
        functions = candidate.spec.functions
        blocks: list[TensorType] = [(f.inputs if side == "read" else f.outputs)[port] for f in functions]
        counts = sorted(Counter((block.lower, block.upper) for block in blocks).items())
        lower, upper = (np.array([bounds[end] for bounds, _ in counts], np.int64) for end in (0, 1))
        partial = np.array([count > 1 and side == "made" for _, count in counts])
        name = lower.tobytes() + upper.tobytes() + partial.tobytes() + bytes([lower.shape[1]])
        if name not in self._blocks:
            self._blocks[name] = _PortBlocks(lower, upper, partial, self._find_axes([bounds for bounds, _ in counts]))
        return name

    def _find_axes(self, blocks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[Axis, ...] | None:
        """The intervals of each dimension, those of equal ones the same object."""
        dimensions = zip(
            zip(*(lower for lower, _ in blocks), strict=True),
            zip(*(upper for _, upper in blocks), strict=True),
            strict=True,
        )
        axes = [tuple(sorted(set(zip(*ends, strict=True)))) for ends in dimensions]
        if math.prod(map(len, axes)) != len(blocks):
            return None
        return tuple(self._axes.setdefault(axis, axis) for axis in axes)

    def _find(self, maker: bytes, reader: bytes, itemsize: int) -> float:
        """What `_measure` says; equal layers and operators ask for the same pairs."""
        key = maker, reader, itemsize
        if key not in self._measured:
            self._measured[key] = self._measure(self._blocks[maker], self._blocks[reader], itemsize)
        return self._measured[key]

    def _measure(self, made_blocks: _PortBlocks, read_blocks: _PortBlocks, itemsize: int) -> float:
        """Ms after which all that one function specification reads can be at its site: the least of all of them."""
        every, any_partial = bool(made_blocks.partial.all()), bool(made_blocks.partial.any())
        if made_blocks.axes is not None and read_blocks.axes is not None and every == any_partial:
            missing = self._find_least_missing(made_blocks.axes, read_blocks.axes, partial=every)
        else:
            overlaps = _measure_overlaps(made_blocks, read_blocks)
            nearby = np.where(made_blocks.partial[None], 0, overlaps).max(axis=1)
            missing = int((overlaps.sum(axis=1) - nearby).min())
        entering = missing * itemsize
        gathers = any_partial or entering <= MAX_PEER_BYTES
        latency_ms = self._least_latency_ms if gathers else self._latency_ms
        return latency_ms + entering / self._rate if entering else 0.0

    def _find_least_missing(self, made_axes: Sequence[Axis], read_axes: Sequence[Axis], *, partial: bool) -> int:
        """Of all blocks that are read, the fewest elements that lie in another block than the one that has most of
        them, or in any one where all are partial copies. Both counts are products over the dimensions."""
        counts = {(1, 1)}
        for axes in zip(made_axes, read_axes, strict=True):
            overlaps = self._list_overlaps(*axes)
            counts = {(a * in_all, m * most) for a, m in counts for in_all, most in overlaps}
        return min(in_all if partial else in_all - most for in_all, most in counts)

    def _list_overlaps(self, made_axis: Axis, read_axis: Axis) -> set[tuple[int, int]]:
        """For the intervals that are read, how much each has in common with all that are made, and with one at most."""
        key = id(made_axis), id(read_axis)
        if key not in self._overlaps:
            lengths = [[max(0, min(end, u) - max(start, lo)) for lo, u in made_axis] for start, end in read_axis]
            self._overlaps[key] = {(sum(row), max(row)) for row in lengths}
        return self._overlaps[key]


def _measure_overlaps(made_blocks: _PortBlocks, read_blocks: _PortBlocks) -> Ints:
    """The elements that blocks have in common: (blocks read, blocks made)."""
    common = np.ones((len(read_blocks.lower), len(made_blocks.lower)), np.int64)
    for d in range(read_blocks.lower.shape[1]):  # in pairs of vectors, which is several times as fast as all at once
        upper = np.minimum(made_blocks.upper[:, d], read_blocks.upper[:, d, None])
        common *= np.maximum(0, upper - np.maximum(made_blocks.lower[:, d], read_blocks.lower[:, d, None]))
    return common
