"""Calls of the kernel `attention`: attributes, arrays and blocks checked against each other, and its sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from einc_runtime.dtypes import NARROW_FLOATS, Array, DType, compute_type, storage_dtype
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.plan.meaning.attention import EXTRAS, divide_keys
from einc_runtime.plan.meaning.terms import ends_of
from einc_runtime.plan.schema import Block

_T = TypeVar("_T")

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
    is the sequence of the first row of this table."""

    q: Array
    k: Array
    v: Array
    mask: Array | None
    positions: Array | None
    blocks: Array | None
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
        """Raises PlanFault for an invocation that is no attention."""
        invocation.allow("causal", "scale", "q_lens", "k_lens", "window", "softcap", "extras")
        inputs, outputs = invocation.inputs, invocation.outputs
        input_blocks, output_blocks = invocation.input_blocks, invocation.output_blocks
        extras = _list(invocation, "extras", str)
        if len(set(extras)) < len(extras) or not set(extras) <= set(EXTRAS) or len(inputs) != 3 + len(extras):
            raise PlanFault("attention has the inputs q, k and v, and its extras: mask, positions, and blocks")
        if len(outputs) != 2 or len(input_blocks) != len(inputs) or len(output_blocks) != 2:
            raise PlanFault("attention has two outputs, and a block for every input and output")
        q, k, v = inputs[:3]
        o, lse = outputs
        extra_operands = dict(zip(extras, inputs[3:], strict=True))
        kind = dtype_name(q)
        dtype = storage_dtype(compute_type(kind))
        if any(array.ndim != 3 for array in (q, k, v, o)) or lse.ndim != 2 or dtype.kind != "f":
            raise PlanFault("attention is of floating tensors with three dimensions")
        stored = dtype_name(k)
        if k.dtype != v.dtype or stored not in (kind, *NARROW_FLOATS):
            raise PlanFault(f"attention over {kind} has keys and values of that type or of one of 8 bits, not {stored}")
        if o.dtype != q.dtype or lse.dtype != dtype:
            raise PlanFault(f"attention over {kind} has results of that type, and an lse of {dtype.name}")
        expected = {"k": (k, (*k.shape[:2], q.shape[2])), "v": (v, (*k.shape[:2], v.shape[2])),
                    "o": (o, (*q.shape[:2], v.shape[2])), "lse": (lse, q.shape[:2])}  # fmt: skip
        for name, (array, tokens, kinds) in {
            "mask": (extra_operands.get("mask"), k.shape[1], "b"),
            "positions": (extra_operands.get("positions"), q.shape[1], "i"),
        }.items():
            if array is not None:
                expected[name] = (array, (tokens,))
                if array.dtype.kind not in kinds:
                    raise PlanFault(f"attention has {name} of type {array.dtype}")
        for name, (array, shape) in expected.items():
            if array.shape != shape:
                raise PlanFault(f"attention of q {q.shape} and k {k.shape} has {name} {array.shape}, expected {shape}")
        if k.shape[0] == 0 or q.shape[0] % k.shape[0] != 0:
            raise PlanFault(
                f"attention has {q.shape[0]} query heads for {k.shape[0]} heads of keys, expected a multiple"
            )
        first_query, first_key = _match_blocks(q, k, extras, input_blocks, output_blocks)
        q_lens, k_lens = _list(invocation, "q_lens", int), _list(invocation, "k_lens", int)
        if len(q_lens) != len(k_lens) or min((*q_lens, *k_lens), default=0) < 1:
            raise PlanFault("attention needs as many q_lens as k_lens, all positive")
        blocks, first_row, block_size = extra_operands.get("blocks"), 0, 0
        if blocks is not None:
            first_row = input_blocks[3 + extras.index("blocks")].lower[0]
            block_size = _find_block_size(blocks, extras, first_row, (q_lens, k_lens), (first_query, *q.shape), k)
        if sum(q_lens) < first_query + q.shape[1] or (blocks is None and sum(k_lens) < first_key + k.shape[1]):
            raise PlanFault("attention has blocks beyond the end of its sequences")
        causal, window = invocation.attribute("causal", bool), invocation.attribute("window", int)
        scale, softcap = invocation.number("scale"), invocation.number("softcap", 0.0)
        if not 0 <= window < MAX_WINDOW or softcap < 0:
            raise PlanFault(f"attention needs a window and a softcap of at least 0, found {window} and {softcap}")
        return AttentionCall(
            q, k, v, extra_operands.get("mask"), extra_operands.get("positions"), blocks, o, lse, dtype, scale, softcap,
            KeyVisibility(causal, window), tuple(q_lens), tuple(k_lens), first_query, first_key, first_row, block_size,
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


def _match_blocks(
    q: Array, k: Array, extras: Sequence[str], inputs: Sequence[Block], outputs: Sequence[Block]
) -> tuple[int, int]:
    """The first query and key of the blocks. Raises PlanFault where blocks belong to different heads or tokens."""
    corner_q, corner_k = inputs[0].lower, inputs[1].lower
    if len(corner_q) != 3 or len(corner_k) != 3 or corner_q[0] * k.shape[0] != corner_k[0] * q.shape[0]:
        raise PlanFault("attention has a block of query heads that does not match its block of key heads")
    tokens: dict[str, tuple[int, ...]] = {"mask": corner_k[1:2], "positions": corner_q[1:2]}
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        (inputs[2].lower[:2], corner_k[:2]),
        (outputs[0].lower[:2], corner_q[:2]),
        (outputs[1].lower, corner_q[:2]),
    ]
    pairs += [(block.lower, tokens.get(name, block.lower)) for name, block in zip(extras, inputs[3:], strict=True)]
    if any(corner != expected for corner, expected in pairs):
        raise PlanFault("attention has blocks of different heads or tokens")
    return corner_q[1], corner_k[1]


def _find_block_size(
    blocks: Array, extras: Sequence[str], first_row: int, lens: tuple[list[int], list[int]], q: Sequence[int], k: Array
) -> int:
    """The tokens of a block of keys, whose table begins with the row of a sequence; q is the first query, and the shape
    of the queries. Raises PlanFault where the table does not fit."""
    q_lens, k_lens = lens
    size = divide_keys(k_lens, blocks.shape, k.shape[1])
    first, last = (bisect_right(ends_of(tuple(q_lens)), query) for query in (q[0], q[0] + q[2] - 1))
    if blocks.dtype.kind != "i" or not size or "positions" not in extras or "mask" in extras:
        raise PlanFault(f"attention has a table of blocks {blocks.dtype}{blocks.shape} for {k.shape[1]} places of keys")
    if not first_row <= first <= last < first_row + len(blocks):
        raise PlanFault(f"attention lacks blocks of the sequences {first} to {last}")
    return size


def _list(invocation: Invocation[Array], name: str, kind: type[_T]) -> list[_T]:
    values = invocation.attribute(name, list)
    typed: list[_T] = [value for value in values if type(value) is kind]
    if len(typed) < len(values):
        raise PlanFault(f"the kernel attribute '{name}' should hold {kind.__name__} only")
    return typed
