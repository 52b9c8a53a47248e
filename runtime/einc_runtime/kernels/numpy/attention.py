"""The kernel `attention` {causal, scale, q_lens, k_lens, window, softcap, extras} in numpy; it writes results and lse.

Scores are computed one tile at a time: some query rows of one sequence, with all query heads of a group stacked as
further rows, against some of the keys that those rows can see. One matrix product serves a group of heads, and keys
that no row of a block sees are never multiplied. The tiles of one row block are combined by running maxima and sums.
Small tiles take several heads at a time. 16-bit floats are widened first: the whole head where many row blocks need it
and it is not too large, else tile by tile.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, ScratchArray
from einc_runtime.kernels.calls.attention import HIGHEST_POSITION, LOWEST_POSITION, AttentionCall, QueryRows

STACKED = 256
"""Query rows in a tile, with all heads of a group: enough for a fast matrix product."""
TILE_QUERIES = 64
"""Queries of one head in a tile where they see different keys: about half as many scores per row are wasted."""
THIN, THIN_KEYS = 16, 256
"""Keys in a tile of at most `THIN` rows: small matrix products are fastest without packing."""
LARGE_TILE_KEYS = 512
"""Keys in a larger tile."""
SCORES = 1 << 17
"""Scores in a tile of several heads: half a MiB of f32, which fits into a core's cache."""
MAX_WIDENED_ELEMENTS = 1 << 22
"""Elements of keys and values that are widened at once: 16 MiB of f32."""


def build_attention(invocation: Invocation[Array]) -> Kernel:
    """softmax(scale * q k^T) v, over the keys that each query sees; 0, with an lse of -inf, where it sees none."""
    return make_attention(AttentionCall.parse(invocation))


def make_attention(call: AttentionCall) -> Kernel:
    tiles = AttentionTiles.choose(call)

    def bind(memory: Array) -> Run:
        return AttentionWorker(call, tiles, memory).run

    width = call.q.shape[2] + call.v.shape[2]
    scoring = call.q.shape[0] * call.max_pairs() * (width / 30 + 1.5)
    return Kernel(bind, tiles.scratch, scoring + 0.1 * (call.k.size + call.v.size))


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The sizes of tiles, and a worker's memory for one."""

    heads: int
    keys: int
    all_keys: bool  # whether all keys are widened at once
    rows: tuple[QueryRows, ...]
    scratch: int
    queries: ScratchArray
    scores: ScratchArray
    wide_keys: ScratchArray | None
    wide_values: ScratchArray | None
    totals: ScratchArray
    parts: ScratchArray
    lines: tuple[ScratchArray, ...]
    hidden: ScratchArray
    places: ScratchArray

    @staticmethod
    def choose(call: AttentionCall) -> AttentionTiles:
        q, k, v, dtype = call.q, call.k, call.v, call.dtype
        group = q.shape[0] // k.shape[0]
        row_limit = max(STACKED // group, 1)
        if call.visible.limited:
            row_limit = min(row_limit, TILE_QUERIES) if group > 1 else TILE_QUERIES
        rows = tuple(block for part in call.sequences() for block in part.split(row_limit))
        longest = max((block.queries.stop - block.queries.start for block in rows), default=1)
        stacked = group * longest
        tile = LARGE_TILE_KEYS if stacked > THIN else THIN_KEYS
        keys = max(1, min(tile, max((up - lo for lo, up in (block.keys for block in rows)), default=1)))
        heads = max(1, min(k.shape[0], SCORES // (stacked * keys)))
        used_often = any(a.keys == b.keys for a, b in itertools.pairwise(rows))
        all_keys = used_often and heads * k.shape[1] * (k.shape[2] + v.shape[2]) <= MAX_WIDENED_ELEMENTS
        span = k.shape[1] if all_keys else keys
        scratch = ScratchAllocator()
        flags = np.dtype(np.bool_)

        def take(*shape: int) -> ScratchArray:
            return scratch.take((math.prod((heads, *shape)),), dtype)

        return AttentionTiles(
            heads,
            keys,
            all_keys,
            rows,
            queries=take(stacked, q.shape[2]),
            scores=take(stacked, row_pitch(keys)),
            wide_keys=take(span, k.shape[2]) if k.dtype != dtype else None,
            wide_values=take(span, v.shape[2]) if v.dtype != dtype or call.mask is not None else None,
            totals=take(stacked, v.shape[2]),
            parts=take(stacked, v.shape[2]),
            lines=tuple(take(stacked, 1) for _ in range(5)),
            hidden=scratch.take((max(longest * keys, span),), flags),
            places=scratch.take((longest,), np.dtype(np.int64)),
            scratch=scratch.size,
        )


class AttentionWorker:
    """One invocation with one worker's memory."""

    def __init__(self, call: AttentionCall, tiles: AttentionTiles, memory: Array) -> None:
        self.s, self.tiles = call, tiles
        self.group = call.q.shape[0] // call.k.shape[0]
        self.hidden, self.places = tiles.hidden.of(memory), tiles.places.of(memory)
        self.queries, self.scores = tiles.queries.of(memory), tiles.scores.of(memory)
        self.wide_keys = tiles.wide_keys.of(memory) if tiles.wide_keys else None
        self.wide_values = tiles.wide_values.of(memory) if tiles.wide_values else None
        self.totals, self.parts = tiles.totals.of(memory), tiles.parts.of(memory)
        self.lines = [line.of(memory) for line in tiles.lines]
        self.tokens = _count_up(max(call.q.shape[1], call.k.shape[1]))
        self.widened: tuple[int, int, int] | None = None  # the first head and the keys that are now in wide memory
        self.least = np.finfo(call.dtype).min

    def run(self) -> None:
        self.widened = None
        for head in range(0, self.s.k.shape[0], self.tiles.heads):
            heads = slice(head, min(head + self.tiles.heads, self.s.k.shape[0]))
            for rows in self.tiles.rows:
                self._compute_rows(heads, rows)

    def _compute_rows(self, heads: slice, rows: QueryRows) -> None:
        """Computes all tiles of a row block."""
        s, group = self.s, self.group
        count, queries = heads.stop - heads.start, rows.queries.stop - rows.queries.start
        stacked = group * queries
        query_heads = slice(heads.start * group, heads.stop * group)
        places = self.places[:queries]
        if s.positions is None:
            np.add(self.tokens[rows.queries], rows.ahead, out=places)
        else:
            np.copyto(places, s.positions[rows.queries])
            np.clip(places, LOWEST_POSITION, HIGHEST_POSITION, out=places)
            np.add(places, rows.ahead, out=places)
        lowest, highest = int(places.min()), int(places.max())
        lo, up = s.visible.span(lowest, highest, rows.keys)
        q = reshape_start(self.queries, query_heads.stop - query_heads.start, queries, s.q.shape[2])
        np.copyto(q, s.q[query_heads, rows.queries], casting="unsafe")
        np.multiply(q, s.scale, out=q)
        q = q.reshape(count, stacked, -1)
        totals = reshape_start(self.totals, count, stacked, s.v.shape[2])
        largest, sums, rescale = (reshape_start(line, count, stacked, 1) for line in self.lines[:3])
        largest.fill(self.least)
        sums.fill(0)
        tiles = -(-(up - lo) // self.tiles.keys)
        for tile in range(tiles):
            keys = (lo + tile * (up - lo) // tiles, lo + (tile + 1) * (up - lo) // tiles)
            extent = keys[1] - keys[0]
            scores = reshape_start(self.scores, count, stacked, row_pitch(extent))[..., :extent]
            own_keys, values = self._widen_operands(heads, keys)
            np.matmul(q, own_keys.swapaxes(1, 2), out=scores)
            if s.softcap:
                np.tanh(np.divide(scores, s.softcap, out=scores), out=scores)
                np.multiply(scores, s.softcap, out=scores)
            self.weigh(
                scores.reshape(count, group, queries, -1), places, (lowest, highest), keys, largest, sums, rescale
            )
            if tile == 0:
                np.matmul(scores, values, out=totals)
            else:
                products = reshape_start(self.parts, *totals.shape)
                np.matmul(scores, values, out=products)
                np.add(np.multiply(totals, rescale, out=totals), products, out=totals)
        if not tiles:
            totals.fill(0)
        np.log(sums, out=rescale)
        lse = s.lse[query_heads, rows.queries]
        np.add(rescale.reshape(lse.shape), largest.reshape(lse.shape), out=lse)
        np.copyto(totals, 0, where=sums == 0)  # nothing is seen; hidden values that are not numbers make others here
        np.divide(totals, np.maximum(sums, 1, out=sums), out=totals)
        o = s.o[query_heads, rows.queries]
        np.copyto(o, totals.reshape(o.shape), casting="unsafe")

    def weigh(
        self,
        scores: Array,
        places: Array,
        extremes: tuple[int, int],
        keys: tuple[int, int],
        largest: Array,
        sums: Array,
        rescale: Array,
    ) -> None:
        """Turns scores [heads, group, queries, keys] into weights exp(score - largest), 0 where a key is hidden.

        `largest` and `sums` of every row's scores and weights are updated. `rescale` becomes the factor for weights of
        earlier tiles.
        """
        self.hide(scores, places, extremes, keys)
        rows = scores.reshape(*largest.shape[:-1], -1)
        new, part = (reshape_start(line, *largest.shape) for line in self.lines[3:])
        np.maximum.reduce(rows, axis=-1, out=new, keepdims=True)
        np.maximum(largest, new, out=new)
        np.subtract(rows, new, out=rows)
        np.exp(rows, out=rows)
        np.add.reduce(rows, axis=-1, out=part, keepdims=True)
        np.exp(np.subtract(largest, new, out=rescale), out=rescale)
        np.add(np.multiply(sums, rescale, out=sums), part, out=sums)
        np.copyto(largest, new)

    def _widen_operands(self, heads: slice, keys: tuple[int, int]) -> tuple[Array, Array]:
        """Keys and values of some heads, widened. Values that the mask hides become 0, since they may be anything."""
        s = self.s
        lo, up = (0, s.k.shape[1]) if self.tiles.all_keys else keys
        views = [s.k[heads, lo:up], s.v[heads, lo:up]]
        fresh = self.widened != (heads.start, lo, up)
        self.widened = (heads.start, lo, up)
        for n, memory in enumerate((self.wide_keys, self.wide_values)):
            if memory is not None:
                wide = reshape_start(memory, *views[n].shape)
                if fresh:
                    np.copyto(wide, views[n], casting="unsafe")
                views[n] = wide
        if s.mask is not None and fresh:
            np.copyto(views[1], 0, where=self.find_masked((lo, up))[:, np.newaxis])
        inside = slice(keys[0] - lo, keys[1] - lo)
        return views[0][:, inside], views[1][:, inside]

    def find_masked(self, keys: tuple[int, int]) -> Array:
        assert self.s.mask is not None
        masked: Array = np.logical_not(self.s.mask[keys[0] : keys[1]], out=self.hidden[: keys[1] - keys[0]])
        return masked

    def hide(self, scores: Array, places: Array, extremes: tuple[int, int], keys: tuple[int, int]) -> None:
        """Sets scores [..., queries, keys] to -inf where a query does not see a key."""
        (lowest, highest), (lo, up), visible = extremes, keys, self.s.visible
        first, last = max(lo, lowest + 1), min(up, highest - visible.window + 1)
        if visible.causal and first < up:
            hidden = reshape_start(self.hidden, len(places), up - first)
            np.greater(self.tokens[first:up], places[:, np.newaxis], out=hidden)
            np.copyto(scores[..., first - lo :], -np.inf, where=hidden)
        if visible.window and lo < last:
            hidden = reshape_start(self.hidden, len(places), last - lo)
            np.less_equal(self.tokens[lo:last], places[:, np.newaxis] - visible.window, out=hidden)
            np.copyto(scores[..., : last - lo], -np.inf, where=hidden)
        if self.s.mask is not None:
            np.copyto(scores, -np.inf, where=self.find_masked(keys))


@lru_cache(maxsize=16)
def _count_up(count: int) -> Array:
    """0, 1, 2, ... in an array that is shared by all kernels of one extent, and never written."""
    numbers = np.arange(count, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers


def reshape_start(memory: Array, *shape: int) -> Array:
    """The start of a flat array as an array of this shape."""
    return memory[: math.prod(shape)].reshape(shape)


def row_pitch(keys: int) -> int:
    """Scores from row to row: an odd number of cache lines, since rows at powers of two conflict in the cache."""
    return (-(-keys // 16) | 1) * 16
