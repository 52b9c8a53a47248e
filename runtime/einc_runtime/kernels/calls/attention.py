"""Calls of the kernel `attention`, and its sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.plan.meaning.attention import divide_keys

MAX_WINDOW = 1 << 62
LOWEST_POSITION, HIGHEST_POSITION = -(1 << 61), MAX_WINDOW + (1 << 61)
"""Positions beyond these see what these see, with any window. Sums and differences with them fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class QueryRows:
    """Queries of one sequence and the keys of that sequence, both in coordinates of their blocks.

    A query (or its position, where positions are an input) plus `ahead` is its place among the keys. The first key of
    the sequence is at `origin`, which may be before the block. Where keys lie in blocks, they count from the first key
    of their sequence, whose blocks are those of `table_row`.
    """

    queries: slice
    keys: tuple[int, int]
    ahead: int
    origin: int
    table_row: int = 0

    def split(self, count: int) -> Iterator[QueryRows]:
        """Parts with at most `count` queries each."""
        for start in range(self.queries.start, self.queries.stop, count):
            yield replace(self, queries=slice(start, min(start + count, self.queries.stop)))


@dataclass(frozen=True, slots=True)
class KeyVisibility:
    """The keys that a query sees: those up to its own place if causal, and only the last `window` of them if not 0."""

    causal: bool
    window: int

    @property
    def limited(self) -> bool:
        return self.causal or self.window > 0

    def span(self, lowest: int, highest: int, keys: tuple[int, int]) -> tuple[int, int]:
        """The range of keys that queries at places from `lowest` to `highest` may see."""
        lo = max(keys[0], lowest - self.window + 1) if self.window else keys[0]
        up = min(keys[1], highest + 1) if self.causal else keys[1]
        return lo, max(lo, up)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arrays and attributes of one invocation, which fit each other. `dtype` is the type that it computes in, and
    keys and values may be floats of 8 bits. With `blocks`, they are in blocks of `block_size` tokens, and `first_row`
    is the sequence of the first row of this table. With `spans`, a query sees the keys of its row alone, from the first
    to before the second, counted from the first key of its sequence."""

    q: Array
    k: Array
    v: Array
    mask: Array | None
    positions: Array | None
    blocks: Array | None
    spans: Array | None
    o: Array
    lse: Array
    dtype: DType
    scale: float
    softcap: float  # 0 means none
    visible: KeyVisibility
    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    first_query: int
    first_key: int
    first_row: int
    block_size: int

    @staticmethod
    def parse(invocation: Invocation[Array]) -> AttentionCall:
        inputs, (o, lse) = invocation.inputs, invocation.outputs
        extras = invocation.attribute("extras", list)
        q, k, v = inputs[:3]
        extra_operands = dict(zip(extras, inputs[3:], strict=True))
        first_query, first_key = (block.lower[1] for block in invocation.input_blocks[:2])
        q_lens, k_lens = invocation.attribute("q_lens", list), invocation.attribute("k_lens", list)
        blocks, first_row, block_size = extra_operands.get("blocks"), 0, 0
        if blocks is not None:
            first_row = invocation.input_blocks[3 + extras.index("blocks")].lower[0]
            block_size = divide_keys(k_lens, blocks.shape, k.shape[1])
        causal, window = invocation.attribute("causal", bool), invocation.attribute("window", int)
        scale, softcap = invocation.attribute("scale", float), invocation.number("softcap", 0.0)
        dtype = storage_dtype(compute_type(dtype_name(q)))
        return AttentionCall(
            q, k, v, extra_operands.get("mask"), extra_operands.get("positions"), blocks, extra_operands.get("spans"),
            o, lse, dtype, scale, softcap, KeyVisibility(causal, window), tuple(q_lens), tuple(k_lens),
            first_query, first_key, first_row, block_size,
        )  # fmt: skip

    def sequences(self) -> Iterator[QueryRows]:
        """The sequences that have queries in the block; some may have no keys in it."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        q_end, k_end = -self.first_query, -self.first_key
        for number, (q_len, k_len) in enumerate(zip(self.q_lens, self.k_lens, strict=True)):
            q_start, k_start, q_end, k_end = q_end, k_end, q_end + q_len, k_end + k_len
            if q_end <= 0 or q_start >= queries:
                continue
            if self.blocks is not None:
                yield QueryRows(slice(max(q_start, 0), min(q_end, queries)), (0, k_len), 0, 0, number - self.first_row)
                continue
            lo, up = max(k_start, 0), min(k_end, keys)
            ahead = k_start if self.positions is not None else k_end - q_end
            yield QueryRows(slice(max(q_start, 0), min(q_end, queries)), (lo, max(lo, up)), ahead, k_start)

    def find_spans(self, rows: QueryRows) -> tuple[Array, Array] | None:
        """The first key that each query sees, and the end of them, in the block; None without spans, which are read
        now."""
        if self.spans is None:
            return None
        ends = np.clip(self.spans[rows.queries].astype(np.int64), 0, HIGHEST_POSITION) + rows.origin
        return ends[:, 0], ends[:, 1]

    def find_places(self, rows: QueryRows, lo: int, up: int) -> slice | Array:
        """Where keys from `lo` to `up` of a sequence lie. The table of blocks is read now."""
        if self.blocks is None:
            return slice(lo, up)
        keys, size = np.arange(lo, up), self.block_size
        numbers = np.clip(self.blocks[rows.table_row].astype(np.int64), 0, self.k.shape[1] // size - 1)
        places: Array = numbers[keys // size] * size + keys % size
        return places

    def max_pairs(self) -> int:
        """About how many pairs of queries and keys see each other; an upper bound where positions are an input."""
        total = 0
        for rows in self.sequences():
            for part in rows.split(max(1, (rows.queries.stop - rows.queries.start) // 8)):
                lo, up = part.keys
                if self.positions is None:
                    lo, up = self.visible.span(
                        part.queries.start + part.ahead, part.queries.stop + part.ahead, part.keys
                    )
                total += (part.queries.stop - part.queries.start) * (up - lo)
        return total
