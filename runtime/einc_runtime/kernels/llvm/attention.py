"""The kernel `attention` as machine code: one call for all heads and sequences; see `attention_code.py`.

numpy computes what this code cannot: f64, operands that are not dense along the last axis, and small invocations.

Few queries, as in a step of decoding, have code of their own (`few_queries_code.py`), which computes no masks, no many
queries of one sequence, and no large groups of query heads: lanes hold rows well there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, ScratchArray, address, dtype_name
from einc_runtime.kernels.calls.attention import AttentionCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import AttentionArguments, name_heads, name_scratch
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.few_rows_layout import BYTES_PER_NS
from einc_runtime.kernels.numpy.attention import make_attention
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner

if TYPE_CHECKING:
    from concurrent.futures import Future
from typing import TYPE_CHECKING

from einc_runtime.kernels.llvm.arguments import FewQueriesArguments

if TYPE_CHECKING:
    from concurrent.futures import Future

from einc_runtime.kernels.calls.attention import HIGHEST_POSITION, LOWEST_POSITION


def find_visible_keys(s: AttentionCall, first: Array, last: Array) -> None:
    """Writes the keys that every query sees, from `first` to `last`, within the block."""
    for rows in s.sequences():
        (lo, up), queries = rows.keys, rows.queries
        positions = np.arange(queries.start, queries.stop) if s.positions is None else s.positions[queries]
        after = np.clip(positions.astype(np.dtype(np.int64)), LOWEST_POSITION, HIGHEST_POSITION) + (rows.ahead + 1)
        last[queries] = np.clip(after, lo, up) if s.visible.causal else up
        first[queries] = np.clip(after - s.visible.window, lo, last[queries]) if s.visible.window else lo
        spans = s.find_spans(rows)
        if spans is not None:
            np.minimum(np.maximum(first[queries], spans[0]), up, out=first[queries], casting="unsafe")
            np.maximum(np.minimum(last[queries], spans[1]), first[queries], out=last[queries], casting="unsafe")


MAX_QUERIES = 4
"""Queries of one sequence: each of them reads the keys that it sees."""
MAX_GROUP_HEADS = 8
"""Query heads that share the keys of a head."""
MAX_HEAD_WIDTH = 256
"""Features of a key or a value."""
DECODE_TILE_KEYS = 256
"""Keys in a tile."""


_WIDE = np.dtype(np.float32)


def find_tile(s: AttentionCall, most: int) -> int:
    """The keys of a tile, at most so many, which has to lie in one block."""
    if s.blocks is None:
        return most
    return next(keys for keys in range(min(most, s.block_size), 0, -1) if s.block_size % keys == 0)


def name_blocks(s: AttentionCall) -> dict[str, int]:
    """Where the table of blocks is, by the names that both kinds of arguments have."""
    if s.blocks is None:
        return {"blocks": 0, "blocks_row": 0, "block_count": 0, "block_size": 0}
    return {
        "blocks": address(s.blocks),
        "blocks_row": s.blocks.strides[0],
        "block_count": s.k.shape[1] // s.block_size,
        "block_size": s.block_size,
    }


def prepare_few_queries(call: AttentionCall, repetitions: int) -> Kernel | None:
    """The kernel of an invocation with few queries, all of whose rows are dense; None for others."""
    group = call.q.shape[0] // call.k.shape[0]
    widths = call.q.shape[2], call.v.shape[2]
    longest = max((rows.queries.stop - rows.queries.start for rows in call.sequences()), default=0)
    plain = call.k.dtype == call.q.dtype and call.mask is None and call.spans is None and call.dtype == _WIDE
    if not plain or not 1 <= longest <= MAX_QUERIES:
        return None
    if group > MAX_GROUP_HEADS or not 1 <= min(widths) <= max(widths) <= MAX_HEAD_WIDTH or call.k.shape[1] >= 1 << 30:
        return None
    arrays = (call.q, call.k, call.v, call.o, *(() if call.blocks is None else (call.blocks,)))
    if any(x.strides[-1] != x.itemsize and x.shape[-1] > 1 for x in arrays):
        return None
    if find_tile(call, DECODE_TILE_KEYS) % LANES:
        return None
    elements = call.k.shape[0] * call.max_pairs() * sum(widths)
    if not compiler.is_worthwhile(elements, repetitions):
        return None
    prepared = _FewQueries.of(call)
    return Kernel(prepared.bind, prepared.scratch, elements * call.k.itemsize / BYTES_PER_NS)


@dataclass(frozen=True, slots=True)
class _FewQueries:
    """An invocation, its code, and a worker's memory for it."""

    call: AttentionCall
    code: Future[compiler.Compiled]
    memory: Mapping[str, ScratchArray]
    """By the names that they have in `FewQueriesArguments`."""
    scratch: int

    @staticmethod
    def of(s: AttentionCall) -> _FewQueries:
        from einc_runtime.kernels.llvm.few_queries_code import FewQueriesForm, emit_few_queries

        group = s.q.shape[0] // s.k.shape[0]
        bits = 0 if s.positions is None else 8 * s.positions.itemsize
        limits = (s.visible.causal, s.visible.window) if bits else (False, 0)
        table_bytes = 0 if s.blocks is None else s.blocks.itemsize
        widths = s.q.shape[2], s.v.shape[2]
        form = FewQueriesForm(dtype_name(s.q), group, *widths, s.softcap, bits, *limits, table_bytes)
        scratch = ScratchAllocator()
        memory = {
            "of_queries": scratch.take((group, form.vectors_k, LANES), _WIDE),
            "of_totals": scratch.take((group, form.vectors_v, LANES), _WIDE),
            "of_scores": scratch.take((group, DECODE_TILE_KEYS), _WIDE),
            "of_products": scratch.take((group, LANES, LANES), _WIDE),
            "of_stats": scratch.take((group, 3, LANES), _WIDE),
        }
        return _FewQueries(s, emit_few_queries(form), memory, scratch.size)

    def bind(self, memory: Array) -> Run:
        s = self.call
        table = _list_keys(s)
        arguments = FewQueriesArguments(
            heads=s.k.shape[0],
            queries=s.q.shape[1],
            table=address(table),
            positions=0 if s.positions is None else address(s.positions),
            position_step=0 if s.positions is None else s.positions.strides[0],
            **name_blocks(s),
            **name_heads(q=s.q, k=s.k, v=s.v, o=s.o, lse=s.lse),
            scale=int(np.float32(s.scale).view(np.int32)),
            tile=find_tile(s, DECODE_TILE_KEYS),
            **name_scratch(self.memory, memory),
        )
        return compiler.CompiledCall(self.code, list(arguments), memory, table, *(s.q, s.k, s.v, s.o, s.lse))


def _list_keys(s: AttentionCall) -> Array:
    """Of every query its first key, the end of its keys, the key behind its place as far as that is known, and its row
    in the table of blocks."""
    table = np.zeros((s.q.shape[1], 4), np.int64)
    if s.positions is None:
        find_visible_keys(s, table[:, 0], table[:, 1])
    else:
        for rows in s.sequences():
            table[rows.queries] = (*rows.keys, rows.ahead + 1, rows.table_row)
    return table


GROUP_ROWS = 512
"""Query rows, with all heads of a group, that go through their keys together."""
TILE_KEYS = 240
"""Keys in a tile: with 32 rows, scores take 30 KiB, about the size of a core's first cache. Tiles begin at multiples of
this from the first key of a sequence, so that a row's sums do not depend on the other rows."""

_LIMIT, _PLACE = np.dtype(np.int32), np.dtype(np.int64)


def build_attention(invocation: Invocation[Array]) -> Kernel:
    call = AttentionCall.parse(invocation)
    few = prepare_few_queries(call, invocation.repetitions)
    return prepare_attention(call, invocation.repetitions) if few is None else few


def prepare_attention(call: AttentionCall, repetitions: int) -> Kernel:
    pairs = call.q.shape[0] * call.max_pairs()
    arrays = (call.q, call.k, call.v, call.o, call.mask, call.blocks)
    dense = all(x is None or x.strides[-1] == x.itemsize or x.shape[-1] == 1 for x in arrays)
    few = call.k.shape[1] < 1 << 30 and call.k.dtype == call.q.dtype
    suits = call.dtype == np.float32 and dense and few
    if not suits or not compiler.is_worthwhile(compiler.NUMPY_CALLS_SAVED * pairs, repetitions):
        return make_attention(call)
    allocation = _AttentionMemory.allocate(call)

    def bind(memory: Array) -> Run:
        return _bind(call, allocation, memory)

    width = call.q.shape[2] + call.v.shape[2]
    return Kernel(bind, allocation.scratch, pairs * (width / 50 + 0.5))


@dataclass(frozen=True, slots=True)
class _AttentionMemory:
    """A worker's memory for an invocation, and its parts: (first query, queries, where the sequence's keys begin, its
    row in the table of blocks)."""

    parts: tuple[tuple[int, int, int, int], ...]
    code: Future[compiler.Compiled]
    limits: tuple[Array, Array] | None
    """The first and last keys that queries see, where they are known beforehand; else `limit_arrays` holds them."""
    limit_arrays: tuple[ScratchArray, ScratchArray]
    memory: Mapping[str, ScratchArray]
    """By the names that they have in `AttentionArguments`."""
    scratch: int

    @staticmethod
    def allocate(s: AttentionCall) -> _AttentionMemory:
        from einc_runtime.kernels.llvm.attention_code import emit_attention
        from einc_runtime.kernels.llvm.attention_layout import RegisterTile

        group = s.q.shape[0] // s.k.shape[0]
        parts = [part for rows in s.sequences() for part in rows.split(max(1, GROUP_ROWS // group))]
        rows = max((group * (part.queries.stop - part.queries.start) for part in parts), default=0)
        shape = RegisterTile(12, 1 if rows <= LANES else 2) if compiler.has_wide_registers() else RegisterTile(6, 1)
        lanes, numbers = shape.lanes, shape.numbers
        blocks = -(-rows // lanes)
        deep_k, deep_v = (-(-x.shape[2] // LANES) * LANES for x in (s.k, s.v))
        scratch = ScratchAllocator()
        wide = np.dtype(np.float32)
        copied = s.mask is not None or s.k.dtype != wide
        fixed, queries = s.positions is None and s.spans is None, s.q.shape[1]
        limits = np.empty(queries, _LIMIT), np.empty(queries, _LIMIT)
        if fixed:
            find_visible_keys(s, *limits)
        return _AttentionMemory(
            tuple((p.queries.start, p.queries.stop - p.queries.start, p.origin, p.table_row) for p in parts),
            emit_attention(
                dtype_name(s.q),
                s.mask is not None,
                s.v.shape[2] % numbers,
                shape,
                s.softcap,
                0 if s.blocks is None else s.blocks.itemsize,
            ),
            limits=limits if fixed else None,
            limit_arrays=(
                scratch.take((0 if fixed else queries,), _LIMIT),
                scratch.take((0 if fixed else queries,), _LIMIT),
            ),
            memory={
                "of_rows": scratch.take((lanes, max(deep_k, deep_v)), wide),
                "of_queries": scratch.take((blocks, deep_k, lanes), wide),
                "of_totals": scratch.take((blocks, deep_v, lanes), wide),
                "of_scores": scratch.take((TILE_KEYS + numbers, lanes), wide),
                "of_limits": scratch.take((blocks, 2, lanes), _LIMIT),
                "of_spans": scratch.take((blocks, 4), _PLACE),
                "of_stats": scratch.take((blocks, 2, lanes), wide),
                "of_keys": scratch.take((copied * TILE_KEYS, deep_k), wide),
                "of_values": scratch.take((copied * TILE_KEYS, deep_v), wide),
                "of_places": scratch.take((TILE_KEYS,), _LIMIT),
            },
            scratch=scratch.size,
        )


def _bind(s: AttentionCall, allocation: _AttentionMemory, memory: Array) -> Run:
    """One invocation with one worker's memory."""
    firsts, lasts = allocation.limits or (allocation.limit_arrays[0].of(memory), allocation.limit_arrays[1].of(memory))
    table = np.array(allocation.parts, _PLACE).reshape(-1, 4)
    deep_k, deep_v = (-(-x.shape[2] // LANES) * LANES for x in (s.k, s.v))
    arguments = AttentionArguments(
        heads=s.k.shape[0],
        group=s.q.shape[0] // s.k.shape[0],
        parts=len(table),
        table=address(table),
        firsts=address(firsts),
        lasts=address(lasts),
        **name_blocks(s),
        mask=0 if s.mask is None else address(s.mask),
        **name_heads(q=s.q, k=s.k, v=s.v, o=s.o, lse=s.lse),
        width_k=s.k.shape[2],
        width_v=s.v.shape[2],
        deep_k=deep_k,
        deep_v=deep_v,
        scale=int(np.float32(s.scale).view(np.int32)),
        tile=find_tile(s, TILE_KEYS),
        **name_scratch(allocation.memory, memory),
    )
    extras = (array for array in (s.mask, s.blocks) if array is not None)
    arrays = (memory, table, firsts, lasts, s.q, s.k, s.v, s.o, s.lse, *extras)
    calls: list[Resolved] = [(compiler.CompiledCall(allocation.code, list(arguments), *arrays), [])]
    if allocation.limits is None:
        calls.insert(0, (find_visible_keys, [s, firsts, lasts]))
    return make_runner(calls)
