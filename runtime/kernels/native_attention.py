"""The kernel `attention` with machine code between numpy's matrix products: one pass finds the largest score of every
row, and one makes the weights and their sum. Keys that a row does not see are not looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array
from runtime.kernels import native
from runtime.kernels.attention_signature import Signature, parse
from runtime.kernels.base import Kernel
from runtime.kernels.native_map import move
from runtime.kernels.numpy_attention import Tiles, Worker, pitch, tiled


def build_attention(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    signature = parse(attributes, inputs, outputs, input_blocks, output_blocks)
    fits = signature.dtype == np.float32 and native.worthwhile(signature.q.shape[0] * signature.most_pairs())
    return tiled(signature, NativeWorker if fits else Worker)


class NativeWorker(Worker):
    tile_keys, tile_scores = 2048, 1 << 19  # 2 MiB: two passes over them cost less than smaller matrix products

    def __init__(self, signature: Signature, tiles: Tiles, memory: Array) -> None:
        super().__init__(signature, tiles, memory)
        self._weigh, self._add = _weighing(), _adding()
        self._limits = np.zeros((2, len(self.places)), np.int64)
        self._arguments = np.zeros(10, np.int64)
        self._where = native.address(self._arguments)

    def weigh(
        self,
        scores: Array,
        places: Array,
        extremes: tuple[int, int],
        keys: tuple[int, int],
        largest: Array,
        sums: Array,
        worth: Array,
    ) -> None:
        (lo, up), visible, queries = keys, self.s.visible, len(places)
        first, last = self._limits[:, :queries]
        first.fill(0)
        last.fill(up - lo)
        if visible.causal:
            np.clip(np.add(places, 1 - lo, out=last), 0, up - lo, out=last)
        if visible.window:
            np.clip(np.add(places, 1 - lo - visible.window, out=first), 0, last, out=first)
        if self.s.mask is not None:
            np.copyto(scores, -np.inf, where=self.masked(keys))
        arrays = (first, last, scores, largest, sums, worth)
        numbers = [scores.shape[0] * scores.shape[1], queries, up - lo, pitch(up - lo) * scores.itemsize]
        self._call(self._weigh, numbers, arrays)

    def add(self, totals: Array, worth: Array, products: Array) -> None:
        self._call(self._add, [worth.size, totals.shape[-1]], (totals, worth, products))

    def widen(self, source: Array, target: Array) -> None:
        function, arguments = move(source, target)
        function(*arguments)

    def _call(self, function: native.Compiled, numbers: list[int], arrays: tuple[Array, ...]) -> None:
        arguments = [*numbers, *map(native.address, arrays)]
        self._arguments[: len(arguments)] = arguments
        function(self._where)


@cache
def _weighing() -> native.Compiled:
    """See `Worker.weigh`: for blocks of rows, a row per query, which sees the keys from `first` to `last`."""
    from runtime.kernels.native_emitter import F32, I64, Emitter, Value
    from runtime.kernels.native_vectors import exp

    e = Emitter()
    b = e.b
    blocks, queries, keys, step, firsts, lasts, scores, largest, sums, worths = (e.argument() for _ in range(10))
    with e.loop(blocks) as block, e.loop(queries) as query:
        number = b.add(b.mul(block, queries), query)
        first, last = (e.read(table, query, I64) for table in (firsts, lasts))
        row = b.add(scores, b.mul(number, step))
        seen, count = b.add(row, b.mul(first, I64(4))), b.sub(last, first)
        before = e.splat(e.read(largest, number, F32))
        found = e.fold(count, e.number(-math.inf), e.larger, lambda at, mask: e.load(seen, at, "f32", mask))
        most = e.larger(before, found)

        def weight(position: Value, mask: Value | None) -> Value:
            value = exp(e, b.fsub(e.load(seen, position, "f32", mask), most))
            e.store(value, seen, position, "f32", mask)
            return value

        total = e.fold(count, e.number(0.0), lambda one, other: b.fadd(one, other), weight)
        e.clear(row, first)
        e.clear(b.add(row, b.mul(last, I64(4))), b.sub(keys, last))
        worth = exp(e, b.fsub(before, most))
        e.write(worths, number, worth)
        e.write(sums, number, e.multiply_add(e.splat(e.read(sums, number, F32)), worth, total))
        e.write(largest, number, most)
    return native.compiled(e.finish())


@cache
def _adding() -> native.Compiled:
    """See `Worker.add`."""
    from runtime.kernels.native_emitter import F32, I64, Emitter, Value

    e = Emitter()
    b = e.b
    rows, width, totals, worths, products = (e.argument() for _ in range(5))
    with e.loop(rows) as number:
        offset = b.mul(b.mul(number, width), I64(4))
        total, product = b.add(totals, offset), b.add(products, offset)
        worth = e.splat(e.read(worths, number, F32))

        def body(position: Value, mask: Value | None) -> None:
            value = e.load(total, position, "f32", mask)
            value = e.multiply_add(value, worth, e.load(product, position, "f32", mask))
            e.store(value, total, position, "f32", mask)

        e.sweep(width, body)
    return native.compiled(e.finish())
