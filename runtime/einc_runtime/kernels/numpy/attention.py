"""The kernel `attention` {causal, scale, q_lens, k_lens, window, softcap, extras} in numpy; it writes results and lse.

It is the definition, and what small invocations, f64 and processors without machine code run: some queries of one
sequence at a time, with all keys that any of them may see. It takes memory for their scores while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.attention import HIGHEST_POSITION, LOWEST_POSITION, AttentionCall, QueryRows

BLOCK_QUERIES = 64
"""Queries of one head computed at once: where they see different keys, about half as many scores are wasted."""
BLOCK_SCORES = 1 << 17
"""Scores that are computed at once, of as many heads as fit: half a MiB of f32, which stays in a core's cache."""

Multiply = Callable[[Array, Array], Array]
"""Products of stacks of matrices."""


def build_attention(invocation: Invocation[Array]) -> Kernel:
    """softmax(scale * q k^T) v, over the keys that each query sees; 0, with an lse of -inf, where it sees none."""
    return make_attention(AttentionCall.parse(invocation))


def make_attention(call: AttentionCall, multiply: Multiply = np.matmul) -> Kernel:
    """The kernel; `multiply` decides in which order is added up."""

    def run() -> None:
        for rows in (block for sequence in call.sequences() for block in sequence.split(BLOCK_QUERIES)):
            for heads in _divide_heads(call, rows):
                _attend(call, rows, heads, multiply)

    width = call.q.shape[2] + call.v.shape[2]
    scoring = call.q.shape[0] * call.max_pairs() * (width / 30 + 1.5)
    return Kernel(lambda _: run, nanoseconds=scoring + 0.1 * (call.k.size + call.v.size))


def _divide_heads(call: AttentionCall, rows: QueryRows) -> Iterator[slice]:
    """The heads of keys in parts that are computed at once."""
    heads, scores = call.k.shape[0], (rows.queries.stop - rows.queries.start) * (rows.keys[1] - rows.keys[0])
    count = max(1, BLOCK_SCORES // max(1, scores * (call.q.shape[0] // heads)))
    for first in range(0, heads, count):
        yield slice(first, min(first + count, heads))


def _attend(call: AttentionCall, rows: QueryRows, heads: slice, multiply: Multiply) -> None:
    """Some queries of one sequence, and some heads of keys with all heads of queries that share them."""
    dtype, count, group = call.dtype, heads.stop - heads.start, call.q.shape[0] // call.k.shape[0]
    part = slice(heads.start * group, heads.stop * group), rows.queries
    places = _find_places(call, rows)
    lo, up = call.visible.span(int(places.min()), int(places.max()), rows.keys)
    spans = call.find_spans(rows)
    if spans is not None:
        lo = min(max(lo, int(spans[0].min())), up)
        up = max(lo, min(up, int(spans[1].max())))
    keys_at = call.find_places(rows, lo, up)
    q, keys, values = (
        call.q[part].astype(dtype) * dtype.type(call.scale),
        call.k[heads, keys_at],
        call.v[heads, keys_at],
    )
    keys, values = keys.astype(dtype, copy=False), values.astype(dtype, copy=call.mask is not None)
    if call.mask is not None:
        values[:, ~call.mask[lo:up]] = 0  # what nothing sees may be anything
    scores = multiply(q.reshape(count, group * len(places), q.shape[2]), keys.swapaxes(1, 2))
    if call.softcap:
        cap = dtype.type(call.softcap)
        scores = np.tanh(scores / cap) * cap
    np.copyto(
        scores.reshape(count, group, len(places), up - lo), -np.inf, where=_find_hidden(call, places, spans, lo, up)
    )
    largest = scores.max(axis=-1, initial=np.finfo(dtype).min, keepdims=True)
    weights = np.exp(np.subtract(scores, largest, out=scores), out=scores)
    sums = multiply(weights, np.ones((up - lo, 1), dtype))
    totals = multiply(weights, values)
    lse = call.lse[part]
    np.copyto(lse, (np.log(sums) + largest).reshape(lse.shape))
    np.copyto(totals, 0, where=sums == 0)  # nothing is seen; hidden values that are not numbers make others here
    result = totals / np.maximum(sums, 1) + dtype.type(0)  # no -0, which depends on hidden keys
    np.copyto(call.o[part], result.reshape(call.o[part].shape), casting="unsafe")


def _find_places(call: AttentionCall, rows: QueryRows) -> Array:
    """The place of each query among the keys."""
    if call.positions is None:
        return np.arange(rows.queries.start, rows.queries.stop) + rows.ahead
    return np.clip(call.positions[rows.queries].astype(np.int64), LOWEST_POSITION, HIGHEST_POSITION) + rows.ahead


def _find_hidden(call: AttentionCall, places: Array, spans: tuple[Array, Array] | None, lo: int, up: int) -> Array:
    """Which of the keys from `lo` to `up` each query does not see."""
    keys = np.arange(lo, up)
    hidden: Array = np.zeros((len(places), up - lo), np.bool_)
    if call.visible.causal:
        hidden |= keys > places[:, np.newaxis]
    if call.visible.window:
        hidden |= keys <= places[:, np.newaxis] - call.visible.window
    if call.mask is not None:
        hidden |= ~call.mask[lo:up]
    if spans is not None:
        hidden |= (keys < spans[0][:, np.newaxis]) | (keys >= spans[1][:, np.newaxis])
    return hidden
