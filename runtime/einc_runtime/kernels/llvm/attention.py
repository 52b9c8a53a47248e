"""The kernel `attention` as machine code: one call for all heads and sequences; see `attention_code.py`.

numpy computes what this code cannot: f64, operands that are not dense along the last axis, and small invocations.
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
from einc_runtime.kernels.llvm.attention_arguments import AttentionArguments, name_heads, name_scratch
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.few_queries import prepare_few_queries
from einc_runtime.kernels.llvm.visible_keys import find_visible_keys
from einc_runtime.kernels.numpy.attention import make_attention
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner

if TYPE_CHECKING:
    from concurrent.futures import Future

WORK = 8
"""A pair of a query and a key is as much work as so many elements of other kernels, at least."""
GROUP_ROWS = 512
"""Query rows, with all heads of a group, that go through their keys together."""
TILE_KEYS = 240
"""Keys in a tile: with 32 rows, scores take 30 KiB, about the size of a core's first cache. Tiles begin at multiples of
this from the first key of a sequence, so that a row's sums do not depend on the other rows."""

_LIMIT, _PLACE = np.dtype(np.int32), np.dtype(np.int64)


def build_attention(invocation: Invocation[Array]) -> Kernel:
    call = AttentionCall.parse(invocation)
    few = prepare_few_queries(call)
    return prepare_attention(call) if few is None else few


def prepare_attention(call: AttentionCall) -> Kernel:
    pairs = call.q.shape[0] * call.max_pairs()
    arrays = (call.q, call.k, call.v, call.o, call.mask)
    dense = all(x is None or x.strides[-1] == x.itemsize or x.shape[-1] == 1 for x in arrays)
    few = call.k.shape[1] < 1 << 30
    if call.dtype != np.float32 or not (dense and few and compiler.is_worthwhile(WORK * pairs)):
        return make_attention(call)
    allocation = _AttentionMemory.allocate(call)

    def bind(memory: Array) -> Run:
        return _bind(call, allocation, memory)

    width = call.q.shape[2] + call.v.shape[2]
    return Kernel(bind, allocation.scratch, pairs * (width / 50 + 0.5))


@dataclass(frozen=True, slots=True)
class _AttentionMemory:
    """A worker's memory for an invocation, and its parts: (first query, queries, where the sequence's keys begin)."""

    parts: tuple[tuple[int, int, int], ...]
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
        fixed, queries = s.positions is None, s.q.shape[1]
        limits = np.empty(queries, _LIMIT), np.empty(queries, _LIMIT)
        if fixed:
            find_visible_keys(s, *limits)
        return _AttentionMemory(
            tuple((part.queries.start, part.queries.stop - part.queries.start, part.origin) for part in parts),
            emit_attention(dtype_name(s.q), s.mask is not None, s.v.shape[2] % numbers, shape, s.softcap),
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
    table = np.array(allocation.parts, _PLACE).reshape(-1, 3)
    deep_k, deep_v = (-(-x.shape[2] // LANES) * LANES for x in (s.k, s.v))
    arguments = AttentionArguments(
        heads=s.k.shape[0],
        group=s.q.shape[0] // s.k.shape[0],
        parts=len(table),
        table=address(table),
        firsts=address(firsts),
        lasts=address(lasts),
        mask=0 if s.mask is None else address(s.mask),
        **name_heads(q=s.q, k=s.k, v=s.v, o=s.o, lse=s.lse),
        width_k=s.k.shape[2],
        width_v=s.v.shape[2],
        deep_k=deep_k,
        deep_v=deep_v,
        scale=int(np.float32(s.scale).view(np.int32)),
        tile=TILE_KEYS,
        **name_scratch(allocation.memory, memory),
    )
    arrays = (memory, table, firsts, lasts, s.q, s.k, s.v, s.o, s.lse, *(() if s.mask is None else (s.mask,)))
    calls: list[Resolved] = [(compiler.CompiledCall(allocation.code, list(arguments), *arrays), [])]
    if s.positions is not None:
        calls.insert(0, (find_visible_keys, [s, firsts, lasts]))
    return make_runner(calls)
