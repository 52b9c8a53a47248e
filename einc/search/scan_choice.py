"""Which scans of a graph may be faster in blocks, and in how many: an estimate, before whole plans are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from einc.graph.graph import Graph
from einc.machines.model import MS_PER_US, Machine
from einc.ops.base import Operator
from einc.ops.scan_blocks import block_scan
from einc.predict.costs import compute_occupied_ms, describe_operator

MAX_BLOCKS = 4096
"""Blocks of all sites: with more, what is carried to each of them takes longer than the steps of a block."""

WORTHWHILE = 0.8
"""Scans are tried in blocks if that is estimated to take at most this part of their time: what moves is left out."""


def choose_blocks(graph: Graph, machine: Machine, sites: int) -> dict[str, int]:
    """The number of blocks of each scan that may be faster in blocks; other scans are left out."""

    @cache  # equal layers have equal operators
    def choose(operator: Operator) -> int | None:
        whole_ms = _estimate_ms([operator], machine, sites)
        best_ms, best = WORTHWHILE * whole_ms, None
        for blocks in _list_counts(sites):
            parts = block_scan(operator, blocks)
            if parts is None:
                break
            blocked_ms = _estimate_ms([part.operator for part in parts], machine, sites)
            blocked_ms += 2 * machine.transfer_latency_us * MS_PER_US  # pairs come together, and starts go out
            if blocked_ms < best_ms:
                best_ms, best = blocked_ms, blocks
        return best

    scans = [node for node in graph.nodes if node.operator.is_program]
    chosen = {node.name: choose(node.operator) for node in scans}
    return {name: blocks for name, blocks in chosen.items() if blocks is not None}


def _list_counts(sites: int) -> Iterator[int]:
    """A block for each site, and twice as many, and so on: a site has more lanes with them."""
    blocks = sites if sites > 1 else 2
    while blocks <= max(MAX_BLOCKS, sites):
        yield blocks
        blocks *= 2


def _estimate_ms(operators: Sequence[Operator], machine: Machine, sites: int) -> float:
    """The time of kernels one after the other, each cut along the index that makes it fastest."""
    return sum(min(_list_times_ms(operator, machine, sites)) for operator in operators)


def _list_times_ms(operator: Operator, machine: Machine, sites: int) -> Iterator[float]:
    site, latency_us = machine.sites[0], machine.kernel_latency_us
    for cut in (None, *operator.indices):
        intervals = tuple(
            index.intervals(min(sites, index.max_intervals) if index is cut else 1) for index in operator.indices
        )
        functions = operator.build_spec(intervals).functions
        yield max(
            compute_occupied_ms(describe_operator(operator, function), site, latency_us) for function in functions
        )
