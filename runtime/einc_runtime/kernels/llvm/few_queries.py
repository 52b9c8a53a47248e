"""The kernel `attention` for few queries, as in a step of decoding: see `few_queries_code.py`.

`attention.py` computes what this code cannot: masks, many queries of one sequence, and large groups of query heads, for
which it uses lanes well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, ScratchArray, address, dtype_name
from einc_runtime.kernels.calls.attention import AttentionCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.attention_arguments import FewQueriesArguments, name_heads, name_scratch
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.visible_keys import find_visible_keys

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_QUERIES = 4
"""Queries of one sequence: each of them reads the keys that it sees."""
MAX_GROUP_HEADS = 8
"""Query heads that share the keys of a head."""
MAX_HEAD_WIDTH = 256
"""Features of a key or a value."""
DECODE_TILE_KEYS = 256
"""Keys in a tile."""

BYTES_PER_NS = 12.0
"""What one of several workers reads from memory."""

_WIDE = np.dtype(np.float32)


def prepare_few_queries(call: AttentionCall) -> Kernel | None:
    """The kernel of an invocation with few queries, all of whose rows are dense; None for others."""
    group = call.q.shape[0] // call.k.shape[0]
    widths = call.q.shape[2], call.v.shape[2]
    longest = max((rows.queries.stop - rows.queries.start for rows in call.sequences()), default=0)
    if call.mask is not None or call.dtype != _WIDE or not 1 <= longest <= MAX_QUERIES:
        return None
    if group > MAX_GROUP_HEADS or not 1 <= min(widths) <= max(widths) <= MAX_HEAD_WIDTH or call.k.shape[1] >= 1 << 30:
        return None
    if any(x.strides[-1] != x.itemsize and x.shape[-1] > 1 for x in (call.q, call.k, call.v, call.o)):
        return None
    elements = call.k.shape[0] * call.max_pairs() * sum(widths)
    if not compiler.is_worthwhile(elements):
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
        form = FewQueriesForm(dtype_name(s.q), group, s.q.shape[2], s.v.shape[2], s.softcap, bits, *limits)
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
            **name_heads(q=s.q, k=s.k, v=s.v, o=s.o, lse=s.lse),
            scale=int(np.float32(s.scale).view(np.int32)),
            tile=DECODE_TILE_KEYS,
            **name_scratch(self.memory, memory),
        )
        return compiler.CompiledCall(self.code, list(arguments), memory, table, *(s.q, s.k, s.v, s.o, s.lse))


def _list_keys(s: AttentionCall) -> Array:
    """Of every query its first key, the end of its keys, and the key behind its place as far as that is known."""
    table = np.zeros((s.q.shape[1], 3), np.int64)
    if s.positions is None:
        find_visible_keys(s, table[:, 0], table[:, 1])
    else:
        for rows in s.sequences():
            table[rows.queries] = (*rows.keys, rows.ahead + 1)
    return table
