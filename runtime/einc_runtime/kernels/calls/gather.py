"""Invocations of the kernels that move rows to where data says (`embedding`, `append`): attributes, arrays and blocks
held against each other, and what follows of where rows are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation


@dataclass(frozen=True, slots=True)
class Embedding:
    """`table` has the rows from `lower` on of a vocabulary of so many; `target` gets one for each of `ids`."""

    ids: Array
    table: Array
    target: Array
    vocabulary: int
    lower: int

    @staticmethod
    def parse(invocation: Invocation[Array]) -> Embedding:
        invocation.allow("vocabulary")
        (ids, table), target = invocation.operands(2), invocation.output
        vocabulary = invocation.attribute("vocabulary", int)
        if ids.dtype.kind != "i" or table.ndim != 2 or table.dtype != target.dtype or table.dtype == np.bool_:
            raise PlanFault(f"embedding of {ids.dtype}{ids.shape} in {table.dtype}{table.shape} as {target.dtype}")
        if target.shape != (*ids.shape, table.shape[1]):
            raise PlanFault(f"embedding of shape {ids.shape} in {table.shape} into {target.shape}")
        lower, upper = invocation.input_blocks[1].lower[0], invocation.input_blocks[1].upper[0]
        if upper - lower != len(table) or upper > vocabulary:
            raise PlanFault(f"embedding with {len(table)} rows, {lower} to {upper} of {vocabulary}")
        return Embedding(ids, table, target, vocabulary, lower)


@dataclass(frozen=True, slots=True)
class Append:
    """A block of a cache, and new rows for its sequences.

    A new row at `positions[t]` of its sequence, which has `extents[t]` rows, belongs to row `positions[t] + origins[t]`
    of the block, if it has that one.
    """

    cache: Array
    new: Array
    positions: Array
    target: Array
    extents: Array
    origins: Array

    @staticmethod
    def parse(invocation: Invocation[Array]) -> Append:
        invocation.allow("cache_lens", "new_lens")
        (cache, new, positions), target = invocation.operands(3), invocation.output
        cache_lens, new_lens = (np.array(invocation.integers(n), np.int64) for n in ("cache_lens", "new_lens"))
        if cache.shape != target.shape or cache.dtype != target.dtype or new.dtype != target.dtype or cache.ndim != 3:
            raise PlanFault(f"append to {cache.dtype}{cache.shape} as {target.dtype}{target.shape}")
        if new.ndim != 3 or new.shape[::2] != cache.shape[::2] or positions.shape != new.shape[1:2]:
            raise PlanFault(f"append of {new.shape} at {positions.shape} positions to {cache.shape}")
        if positions.dtype.kind != "i" or len(cache_lens) != len(new_lens):
            raise PlanFault("append takes integer positions, and as many sequences of new rows as of the cache")
        rows, fresh = invocation.output_blocks[0], invocation.input_blocks[1]
        (low, up), (first, last) = ((block.lower[1], block.upper[1]) for block in (rows, fresh))
        cache_ends, new_ends = np.cumsum(cache_lens), np.cumsum(new_lens)
        if up - low != cache.shape[1] or last - first != new.shape[1] or up > cache_ends[-1] or last > new_ends[-1]:
            raise PlanFault(f"append of new rows {first} to {last} to rows {low} to {up}, which are not there")
        begun, ended = np.searchsorted(cache_ends, low, side="right"), np.searchsorted(cache_ends, up)
        if first > new_ends[begun] - new_lens[begun] or last < new_ends[ended]:
            raise PlanFault(f"append to rows {low} to {up} lacks new rows: it has {first} to {last}")
        sequence = np.searchsorted(new_ends, np.arange(first, last), side="right")
        extents = cache_lens[sequence]
        return Append(cache, new, positions, target, extents, cache_ends[sequence] - extents - low)
