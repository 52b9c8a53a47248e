"""The kernel `attention` in one order: a row's keys are added in their order, in tiles from the start of its sequence.

That is what machine code does for all invocations (`llvm/attention_code.py`). In f64, and where there is no machine
code, numpy adds key after key. It takes memory while it runs: such machines are not what this code is for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.attention import AttentionCall, QueryRows
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.attention import prepare_attention
from einc_runtime.kernels.numpy.attention import TILE_QUERIES
from einc_runtime.kernels.reproducible.dense import build_on_dense, has_dense_rows


def build_attention(invocation: Invocation[Array]) -> Kernel:
    call = AttentionCall.parse(invocation)
    if call.dtype != np.float32 or not compiler.is_available():
        cost = 10.0 * call.q.shape[0] * call.max_pairs() * call.q.shape[2]
        return Kernel(lambda _: lambda: _attend(call), nanoseconds=cost)

    def build(inputs: Sequence[Array], outputs: Sequence[Array]) -> Kernel:
        return prepare_attention(AttentionCall.parse(invocation.on(inputs, outputs)))

    return build_on_dense(invocation.inputs, invocation.outputs, build, has_dense_rows)


def _attend(call: AttentionCall) -> None:
    for sequence in call.sequences():
        for rows in sequence.split(TILE_QUERIES):
            for head in range(call.k.shape[0]):
                _attend_rows(call, rows, head)


def _attend_rows(s: AttentionCall, rows: QueryRows, head: int) -> None:
    """Some queries of one sequence, with all heads that share a head of keys."""
    group = s.q.shape[0] // s.k.shape[0]
    heads, (lo, up) = slice(head * group, (head + 1) * group), rows.keys
    q = s.q[heads, rows.queries].astype(s.dtype) * s.dtype.type(s.scale)
    k, v = s.k[head, lo:up].astype(s.dtype), s.v[head, lo:up].astype(s.dtype)
    hidden = _find_hidden(s, rows)
    if s.mask is not None:
        v[~s.mask[lo:up]] = 0  # what nothing sees may be anything
    scores = np.zeros((*q.shape[:2], up - lo), s.dtype)
    for feature in range(q.shape[2]):
        scores += q[..., feature, np.newaxis] * k[:, feature]
    if s.softcap:
        cap = s.dtype.type(s.softcap)
        scores = np.tanh(scores / cap) * cap
    scores[:, hidden] = -np.inf
    largest = scores.max(axis=-1, initial=np.finfo(s.dtype).min)
    weights = np.exp(scores - largest[..., np.newaxis])
    total, sums = np.zeros((*q.shape[:2], v.shape[1]), s.dtype), np.zeros(q.shape[:2], s.dtype)
    for key in range(up - lo):
        sums += weights[..., key]
        total += weights[..., key, np.newaxis] * v[key]
    s.lse[heads, rows.queries] = np.log(sums) + largest
    result = total / np.maximum(sums, 1)[..., np.newaxis] + s.dtype.type(0)  # no -0, which depends on hidden keys
    np.copyto(s.o[heads, rows.queries], result, casting="unsafe")


def _find_hidden(s: AttentionCall, rows: QueryRows) -> Array:
    """Which keys of the sequence each query does not see."""
    lo, up = rows.keys
    queries = np.arange(rows.queries.start, rows.queries.stop) if s.positions is None else s.positions[rows.queries]
    query_places, keys = (queries.astype(np.int64) + rows.ahead)[:, np.newaxis], np.arange(lo, up)
    hidden: Array = np.zeros((len(query_places), up - lo), np.bool_)
    if s.visible.causal:
        hidden |= keys > query_places
    if s.visible.window:
        hidden |= keys <= query_places - s.visible.window
    if s.mask is not None:
        hidden |= ~s.mask[lo:up]
    return hidden
