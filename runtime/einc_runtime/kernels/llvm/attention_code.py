"""Emits the machine code of attention: tiles of scores, some keys against as many query rows as there are lanes.

Query rows lie in lanes: those of all heads of a group are packed into blocks of `lanes` rows, transposed so that a
vector holds one feature of 16 rows. Keys and values are read in place, one number at a time into all lanes, so neither
the maximum of the scores nor their sum crosses lanes. A tile goes through three steps while it is in the cache: scores
and their maximum, weights and their sum, weights times values. Earlier totals are scaled to the new maximum. 16-bit
keys and values, and those that a mask selects, are first copied tile by tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.attention_layout import AttentionLayout, RegisterTile, find_block_shift
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.emitter import F32, I8, I32, I64, Value
from einc_runtime.kernels.llvm.vectors import decay, log, tanh

LOWEST = float(np.finfo(np.float32).min)
"""The initial maximum of scores. It is finite, so that the weights of scores of -inf are 0."""


_MANY_KEYS = 64
"""With so many keys, and no more than a tile, it takes less time to fetch the next head early than to wait for it."""


@compiler.compile_once
def emit_attention(
    kind: str, masked: bool, left_features: int, shape: RegisterTile, softcap: float, table_bytes: int
) -> ir.Module:
    """For operands of type `kind`, whose values have so many features more than a multiple of `shape.numbers`. Where
    keys lie in blocks, their numbers have `table_bytes`."""
    return _AttentionEmitter(kind, masked, left_features, shape, softcap, table_bytes).emit()


class _AttentionEmitter(AttentionLayout):
    def __init__(
        self, kind: str, masked: bool, left_features: int, shape: RegisterTile, softcap: float, table_bytes: int
    ) -> None:
        super().__init__(kind, shape)
        self.masked, self.left_features, self.softcap = masked, left_features, softcap
        self.table_bytes = table_bytes

    def emit(self) -> ir.Module:
        e, b, a = self.e, self.b, self.a
        with e.loop(a.parts) as part, e.loop(a.heads) as head:
            entry = b.mul(part, I64(4))
            query, queries, origin, table_row = (e.read(a.table, b.add(entry, I64(n)), I64) for n in range(4))
            rows = b.mul(queries, a.group)
            blocks = b.sdiv(b.add(rows, I64(self.shape.lanes - 1)), I64(self.shape.lanes))
            lo, up = e.variable(I64(1 << 31)), e.variable(I64(0))
            with e.loop(blocks) as block:
                self._pack(head, query, rows, block, lo, up)
            before = b.sdiv(b.sub(b.load(lo), origin), a.tile)  # whole tiles that no row sees
            first = b.add(origin, b.mul(before, a.tile))
            keys = b.sub(b.load(up), first)
            tiles = b.sdiv(b.add(keys, b.sub(a.tile, I64(1))), a.tile)
            one_tile = b.icmp_signed("==", tiles, I64(1))
            ahead = b.and_(one_tile, b.icmp_signed(">=", keys, I64(_MANY_KEYS)))
            with e.loop(tiles) as number:
                start = b.add(first, b.mul(number, a.tile))
                stop = self.e.least(b.add(start, a.tile), b.load(up))
                start = self.e.most(start, b.load(lo))
                shift = find_block_shift(e, a, self.table_bytes, table_row, start) if self.table_bytes else None
                self._compute_tile(head, query, blocks, start, stop, ahead, shift)
            with e.loop(blocks) as block:
                self._finish(head, query, rows, block)
        return e.finish()

    # A block of rows

    def _pack(self, head: Value, query: Value, rows: Value, block: Value, lo: Value, up: Value) -> None:
        """Transposes the queries of a block, stores which keys they see, and sets totals and sums to 0."""
        e, b, a = self.e, self.b, self.a
        span = [e.variable(I64(start)) for start in (1 << 31, 0, 0, 1 << 31)]
        scale = e.broadcast(b.bitcast(b.trunc(a.scale, I32), F32))
        with self.each_row(head, query, rows, block) as (row, token, of_head):
            source = b.add(a.q, b.add(b.mul(of_head, a.q_head), b.mul(token, a.q_token)))
            target = b.add(a.of_rows, b.mul(row, self.pitch))
            self.copy(source, self.kind, target, "f32", a.width_k, scale)
            lane = b.add(b.mul(block, I64(2 * self.shape.lanes)), row)
            for table, at, (lowest, highest) in ((a.firsts, 0, span[:2]), (a.lasts, self.shape.lanes, span[3:1:-1])):
                limit = e.read(table, token, I32)
                e.put(a.of_limits, b.add(lane, I64(at)), limit)
                limit = b.sext(limit, I64)
                b.store(self.e.least(b.load(lowest), limit), lowest)
                b.store(self.e.most(b.load(highest), limit), highest)
        for number, limit in enumerate(span):
            e.put(a.of_spans, b.add(b.mul(block, I64(4)), I64(number)), b.load(limit))
        b.store(self.e.least(b.load(lo), b.load(span[0])), lo)
        b.store(self.e.most(b.load(up), b.load(span[2])), up)
        packed = self.packed(block)
        with e.loop(a.deep_k, LANES) as feature, e.loop(I64(self.shape.vectors)) as v:
            lines = [e.load(*self.staged(v, lane, feature), "f32", None) for lane in range(LANES)]
            for number, line in enumerate(e.transpose_square(lines)):
                self.put(line, packed, b.add(feature, I64(number)), v)
        totals = self.totals(block)
        with e.loop(a.width_v) as feature:
            for v in self.vectors:
                self.put(e.number(0.0), totals, feature, v)
        for v in self.vectors:
            self.put(e.number(LOWEST), self.stats(block), I64(0), v)
            self.put(e.number(0.0), self.stats(block), I64(1), v)

    def _finish(self, head: Value, query: Value, rows: Value, block: Value) -> None:
        """Divides the totals by the sums, and transposes them into rows. Computes the lse.

        A sum is 0 where a row sees no key, whose result is 0 even if hidden values are not numbers, and at least 1
        elsewhere. A key that a row does not see may have added 0, which may change the sign of a 0. So 0 is added once
        more.
        """
        e, b, a = self.e, self.b, self.a
        totals, stats, unit = self.totals(block), self.stats(block), e.number(1.0)
        zero = e.number(0.0)
        with e.loop(I64(self.shape.vectors)) as v:
            total = self.get(stats, I64(1), v)
            empty = b.fcmp_ordered("==", total, zero)
            share = b.fdiv(unit, total)
            self.put(b.fadd(log(e, total), self.get(stats, I64(0), v)), stats, I64(0), v)
            with e.loop(a.deep_v, LANES) as feature:
                scaled = [b.fmul(self.get(totals, b.add(feature, I64(n)), v), share) for n in range(LANES)]
                lines = [b.select(empty, zero, b.fadd(value, zero)) for value in scaled]
                for lane, line in enumerate(e.transpose_square(lines)):
                    e.store(line, *self.staged(v, lane, feature), "f32", None)
        with self.each_row(head, query, rows, block) as (row, token, of_head):
            target = b.add(a.o, b.add(b.mul(of_head, a.o_head), b.mul(token, a.o_token)))
            self.copy(b.add(a.of_rows, b.mul(row, self.pitch)), "f32", target, self.kind, a.width_v)
            lse = b.add(a.lse, b.add(b.mul(of_head, a.lse_head), b.mul(token, a.lse_token)))
            e.put(lse, I64(0), e.read(stats, row, F32))

    # A tile of keys

    def _compute_tile(
        self, head: Value, query: Value, blocks: Value, start: Value, stop: Value, ahead: Value, shift: Value | None
    ) -> None:
        """Computes the keys from `start` to `stop` for all blocks that see any of them; `ahead` says whether to fetch
        what the next head needs, and `shift` how many places behind a key it lies."""
        e, b, a = self.e, self.b, self.a
        keys, values = b.add(a.k, b.mul(head, a.k_head)), b.add(a.v, b.mul(head, a.v_head))
        if shift is not None:
            keys, values = b.add(keys, b.mul(shift, a.k_token)), b.add(values, b.mul(shift, a.v_token))
        following = [
            b.add(base, b.add(step, b.mul(start, token)))
            for base, step, token in ((keys, a.k_head, a.k_token), (values, a.v_head, a.v_token))
        ]
        steps = [a.k_token, a.v_token]
        copied = self.masked or self.kind != "f32"
        kept = b.sub(stop, start)
        if copied:
            kept = self._copy_tile(keys, values, start, stop)
            keys, values, steps = a.of_keys, a.of_values, [self.size_of(a.deep_k), self.size_of(a.deep_v)]
        with e.loop(blocks) as block:
            from_any, from_all, to_any, to_all = (
                e.read(a.of_spans, b.add(b.mul(block, I64(4)), I64(n)), I64) for n in range(4)
            )
            lo, up = self.e.most(start, from_any), self.e.least(stop, to_any)
            count = b.sub(up, lo) if not self.masked else b.select(b.icmp_signed("<", lo, up), kept, I64(0))
            if self.masked:
                lo, up = start, stop
            partly = b.or_(b.icmp_signed(">", from_all, lo), b.icmp_signed("<", to_all, up))
            skipped = b.sub(lo, start) if copied else lo
            rows = [b.add(base, b.mul(skipped, step)) for base, step in zip((keys, values), steps, strict=True)]

            def fetch(key: Value) -> None:
                with b.if_then(ahead):
                    self.fetch_keys(following, b.add(b.mul(block, count), key), blocks)
                    self.fetch_queries(head, query, block, key, count)

            with b.if_then(b.icmp_signed(">", count, I64(0))):
                maxima = self._compute_scores(block, rows[0], steps[0], lo, count, partly, fetch)
                self._add(block, rows[1], steps[1], count, self._weigh(block, count, maxima))

    def _copy_tile(self, keys: Value, values: Value, start: Value, stop: Value) -> Value:
        """Copies keys and values that the mask keeps, one after the other; returns how many."""
        e, b, a = self.e, self.b, self.a
        kept = e.variable(I64(0))

        def keep(key: Value) -> None:
            slot = b.load(kept)
            for base, step, target, width, deep in (
                (keys, a.k_token, a.of_keys, a.width_k, a.deep_k),
                (values, a.v_token, a.of_values, a.width_v, a.deep_v),
            ):
                row = b.add(base, b.mul(key, step))
                self.copy(row, self.kind, b.add(target, b.mul(slot, self.size_of(deep))), "f32", width)
            e.put(a.of_places, slot, b.trunc(key, I32))
            b.store(b.add(slot, I64(1)), kept)

        with e.loop(b.sub(stop, start)) as number:
            key = b.add(start, number)
            if self.masked:
                with b.if_then(b.icmp_unsigned("!=", e.read(a.mask, key, I8), I8(0))):
                    keep(key)
            else:
                keep(key)
        return b.load(kept)

    def _compute_scores(
        self,
        block: Value,
        keys: Value,
        step: Value,
        first: Value,
        count: Value,
        partly: Value,
        fetch: Callable[[Value], None],
    ) -> Sequence[Value]:
        """Writes the scores of the keys, -inf where a row does not see a key; returns the maximum of every row. Calls
        `fetch` with the first of some keys."""
        e, b, a = self.e, self.b, self.a
        queries, last = self.packed(block), b.sub(count, I64(1))
        limits = b.add(a.of_limits, b.mul(block, I64(8 * self.shape.lanes)))
        maxima = [e.variable(self.get(self.stats(block), I64(0), v)) for v in self.vectors]
        with e.loop(count, self.shape.numbers) as key:
            fetch(key)
            numbers = [self.e.least(b.add(key, I64(n)), last) for n in range(self.shape.numbers)]
            rows = [b.add(keys, b.mul(number, step)) for number in numbers]
            sums = [[e.variable(e.number(0.0)) for _ in self.vectors] for _ in rows]
            with e.loop(a.width_k) as feature:
                self._accumulate(sums, [b.add(row, self.size_of(feature)) for row in rows], queries, feature)
            if self.softcap:
                for variable in itertools.chain(*sums):
                    capped = tanh(e, b.fmul(b.load(variable), e.number(1 / self.softcap)))
                    b.store(b.fmul(capped, e.number(self.softcap)), variable)
            with b.if_then(partly):
                for number, line in zip(numbers, sums, strict=True):
                    place_of_key = (
                        e.read(a.of_places, number, I32) if self.masked else b.trunc(b.add(first, number), I32)
                    )
                    for v in self.vectors:
                        lo, up = (e.load(limits, I64(n * self.shape.lanes + v * LANES), "i32", None) for n in range(2))
                        hidden = b.icmp_unsigned(">=", b.sub(e.broadcast(place_of_key), lo), b.sub(up, lo))
                        b.store(b.select(hidden, e.number(-float("inf")), b.load(line[v])), line[v])
            for n, line in enumerate(sums):
                for v in self.vectors:
                    score = b.load(line[v])
                    self.put(score, a.of_scores, b.add(key, I64(n)), v)
                    before = b.load(maxima[v])
                    b.store(b.select(b.fcmp_ordered(">", score, before), score, before), maxima[v])
        return [b.load(maximum) for maximum in maxima]

    def _weigh(self, block: Value, count: Value, maxima: Sequence[Value]) -> Sequence[Value]:
        """Turns scores into weights, exp(score - maxima), and sums them; returns the factor for earlier weights."""
        e, b, a = self.e, self.b, self.a
        stats = self.stats(block)
        totals = [e.variable(e.number(0.0)) for _ in self.vectors]
        with e.loop(count) as key:
            for v in self.vectors:
                weight = decay(e, b.fsub(self.get(a.of_scores, key, v), maxima[v]))
                self.put(weight, a.of_scores, key, v)
                b.store(b.fadd(b.load(totals[v]), weight), totals[v])
        rescales = []
        for v in self.vectors:
            rescale = decay(e, b.fsub(self.get(stats, I64(0), v), maxima[v]))
            self.put(maxima[v], stats, I64(0), v)
            self.put(e.multiply_add(self.get(stats, I64(1), v), rescale, b.load(totals[v])), stats, I64(1), v)
            rescales.append(rescale)
        return rescales

    def _add(self, block: Value, values: Value, step: Value, count: Value, rescales: Sequence[Value]) -> None:
        """Scales the totals by the factor `rescales`, and adds weights times values."""
        e, b, a = self.e, self.b, self.a
        totals = self.totals(block)

        def features(first: Value, number: int) -> None:
            places = [b.add(first, I64(n)) for n in range(number)]
            sums = [
                [e.variable(b.fmul(self.get(totals, position, v), rescales[v])) for v in self.vectors]
                for position in places
            ]
            column = b.add(values, self.size_of(first))
            with e.loop(count) as key:
                row = b.add(column, b.mul(key, step))
                self._accumulate(sums, [b.add(row, I64(4 * n)) for n in range(number)], a.of_scores, key)
            for position, line in zip(places, sums, strict=True):
                for v in self.vectors:
                    self.put(b.load(line[v]), totals, position, v)

        full_width = b.sub(a.width_v, I64(self.left_features))
        with e.loop(full_width, self.shape.numbers) as feature:
            features(feature, self.shape.numbers)
        if self.left_features:
            features(full_width, self.left_features)

    def _accumulate(self, sums: Sequence[Sequence[Value]], numbers: Sequence[Value], table: Value, line: Value) -> None:
        """Adds to every line of sums a number, given by its address, times one line of a table."""
        lines = [self.get(table, line, v) for v in self.vectors]
        for number, places in zip(numbers, sums, strict=True):
            factor = self.e.load_one(number, "f32")
            for variable, values in zip(places, lines, strict=True):
                self.b.store(self.e.multiply_add(factor, values, self.b.load(variable)), variable)
