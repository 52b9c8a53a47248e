"""Emits the machine code of attention for few queries: lanes hold features of keys and values, not query rows.

A step of decoding has one query for each sequence, and takes as long as reading the keys and values of the sequence
takes. Every key is read once for all query heads of its group, in one stream, and then every value. A tile of keys goes
through three steps, as in `attention_code.py`: scores and their maximum, weights and their sum, weights times values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from einc_runtime.kernels.calls.attention import HIGHEST_POSITION, LOWEST_POSITION
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import FewQueriesArguments, read_arguments
from einc_runtime.kernels.llvm.attention_code import LOWEST
from einc_runtime.kernels.llvm.attention_layout import find_block_shift
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.emitter import F32, I32, I64, Emitter, Value, vector
from einc_runtime.kernels.llvm.vectors import decay, log, tanh

RESULT_VECTORS = 16
"""Vectors of the result that are summed at a time."""


class FewQueriesForm(NamedTuple):
    """What the code is made for: the type of all operands, the query heads of a group, the features of keys and of
    values, and the integers that positions are (0 bits where they are not an input)."""

    kind: str
    group: int
    width_k: int
    width_v: int
    softcap: float
    position_bits: int
    causal: bool
    window: int
    table_bytes: int
    """Bytes of a number of a block; 0 where keys do not lie in blocks."""

    @property
    def vectors_k(self) -> int:
        return -(-self.width_k // LANES)

    @property
    def vectors_v(self) -> int:
        return -(-self.width_v // LANES)


@compiler.compile_once
def emit_few_queries(form: FewQueriesForm) -> ir.Module:
    return _FewQueriesEmitter(form).emit()


class _FewQueriesEmitter:
    def __init__(self, form: FewQueriesForm) -> None:
        self.form = form
        self.e = Emitter()
        self.b = self.e.b
        self.a = read_arguments(self.e, FewQueriesArguments[Value])
        self.lanes = ir.Constant(vector(I32), list(range(LANES)))

    def emit(self) -> ir.Module:
        e, b, a = self.e, self.b, self.a
        with e.loop(a.heads) as head, e.loop(a.queries) as query:
            keys, values = (b.add(x, b.mul(head, step)) for x, step in ((a.k, a.k_head), (a.v, a.v_head)))
            start, stop = self._find_keys(query)
            self._begin(head, query)
            # Tiles of blocks begin at multiples of their length, so that each lies in one block.
            base = b.sub(start, b.urem(start, a.tile)) if self.form.table_bytes else start
            with e.loop(b.sdiv(b.add(b.sub(stop, base), b.sub(a.tile, I64(1))), a.tile)) as number:
                before = b.add(base, b.mul(number, a.tile))
                first = e.most(before, start)
                tile_keys = b.sub(e.least(b.add(before, a.tile), stop), first)
                first = self._find_place(query, first)
                self._score(b.add(keys, b.mul(first, a.k_token)), tile_keys)
                with e.loop(I64(self.form.group)) as row:
                    self._weigh(row, tile_keys)
                self._add(b.add(values, b.mul(first, a.v_token)), tile_keys)
            with e.loop(I64(self.form.group)) as row:
                self._finish(head, query, row)
        return e.finish()

    def _find_place(self, query: Value, key: Value) -> Value:
        """Where a key of the query's sequence lies."""
        if not self.form.table_bytes:
            return key
        row = self.e.read(self.a.table, self.b.add(self.b.mul(query, I64(4)), I64(3)), I64)
        return self.b.add(key, find_block_shift(self.e, self.a, self.form.table_bytes, row, key))

    def _find_keys(self, query: Value) -> tuple[Value, Value]:
        """The first key that a query sees, and the end of its keys."""
        e, b, form = self.e, self.b, self.form
        first, last, ahead = (e.read(self.a.table, b.add(b.mul(query, I64(4)), I64(n)), I64) for n in range(3))
        if not form.position_bits:
            return first, last
        integer = ir.IntType(form.position_bits)
        address = b.add(self.a.positions, b.mul(query, self.a.position_step))
        position = b.sext(e.read(address, I64(0), integer), I64)
        after = b.add(self._clip(position, I64(LOWEST_POSITION), I64(HIGHEST_POSITION)), ahead)
        last = self._clip(after, first, last) if form.causal else last
        return (self._clip(b.sub(after, I64(form.window)), first, last) if form.window else first), last

    def _clip(self, value: Value, least: Value, most: Value) -> Value:
        return self.e.least(self.e.most(value, least), most)

    def _begin(self, head: Value, query: Value) -> None:
        """Widens the query of every head of the group, times the scale, and sets totals and sums to 0."""
        e, b, a, form = self.e, self.b, self.a, self.form
        scale = e.broadcast(b.bitcast(b.trunc(a.scale, I32), F32))
        with e.loop(I64(form.group)) as row:
            source = self._row(a.q, a.q_head, a.q_token, head, query, row)
            for n in range(form.vectors_k):
                value = e.load(source, I64(n * LANES), form.kind, self._mask(n, form.width_k))
                self._put(b.fmul(value, scale), a.of_queries, row, form.vectors_k, n)
            for n in range(form.vectors_v):
                self._put(e.number(0.0), a.of_totals, row, form.vectors_v, n)
            self._put(e.number(LOWEST), a.of_stats, row, 3, 0)
            self._put(e.number(0.0), a.of_stats, row, 3, 2)

    def _score(self, keys: Value, count: Value) -> None:
        """Writes the scores of a tile's keys, -inf behind the last one, and the largest of each lane."""
        e, b, a, form = self.e, self.b, self.a, self.form
        with e.loop(I64(form.group)) as row:
            self._put(e.number(LOWEST), a.of_stats, row, 3, 1)
        with e.loop(count, LANES) as first:
            left = b.sub(count, first)
            keys_here = e.least(left, I64(LANES))
            with e.loop(keys_here) as lane:
                self._multiply(b.add(keys, b.mul(b.add(first, lane), a.k_token)), lane)
            hidden = b.icmp_signed(">=", self.lanes, e.broadcast(b.trunc(left, I32)))
            with e.loop(I64(form.group)) as row:
                scores = e.sum_lanes([self._get(a.of_products, row, LANES, n) for n in range(LANES)])
                if form.softcap:
                    scores = tanh(e, b.fmul(scores, e.number(1 / form.softcap)))
                    scores = b.fmul(scores, e.number(form.softcap))
                scores = b.select(hidden, e.number(-float("inf")), scores)
                e.store(scores, a.of_scores, b.add(b.mul(row, a.tile), first), "f32", None)
                before = self._get(a.of_stats, row, 3, 1)
                larger = b.select(b.fcmp_ordered(">", scores, before), scores, before)
                self._put(larger, a.of_stats, row, 3, 1)

    def _multiply(self, key: Value, lane: Value) -> None:
        """The products of one key with the queries of all heads, lane by lane, at a place among `LANES` keys."""
        e, form = self.e, self.form
        features = [e.load(key, I64(n * LANES), form.kind, self._mask(n, form.width_k)) for n in range(form.vectors_k)]
        for row in range(form.group):
            queries = [self._get(self.a.of_queries, I64(row), form.vectors_k, n) for n in range(form.vectors_k)]
            total = self.b.fmul(features[0], queries[0])
            for feature, query in zip(features[1:], queries[1:], strict=True):
                total = e.multiply_add(feature, query, total)
            self._put(total, self.a.of_products, I64(row), LANES, lane)

    def _weigh(self, row: Value, count: Value) -> None:
        """Turns a row's scores into weights, exp(score - maximum), sums them, and scales what was summed before."""
        e, b, a, form = self.e, self.b, self.a, self.form
        old = self._get(a.of_stats, row, 3, 0)

        def larger(left: Value, right: Value) -> Value:
            return b.select(b.fcmp_ordered(">", left, right), left, right)

        maximum = larger(e.across(self._get(a.of_stats, row, 3, 1), larger), old)
        total = e.variable(e.number(0.0))
        b.store(e.number(0.0), total)
        with e.loop(count, LANES) as first:
            position = b.add(b.mul(row, a.tile), first)
            weight = decay(e, b.fsub(e.load(a.of_scores, position, "f32", None), maximum))
            e.store(weight, a.of_scores, position, "f32", None)
            b.store(b.fadd(b.load(total), weight), total)
        rescale = decay(e, b.fsub(old, maximum))
        self._put(maximum, a.of_stats, row, 3, 0)
        self._put(e.multiply_add(self._get(a.of_stats, row, 3, 2), rescale, b.load(total)), a.of_stats, row, 3, 2)
        for n in range(form.vectors_v):
            self._put(
                b.fmul(self._get(a.of_totals, row, form.vectors_v, n), rescale), a.of_totals, row, form.vectors_v, n
            )

    def _add(self, values: Value, count: Value) -> None:
        """Adds weights times values to the totals: `RESULT_VECTORS` vectors of sums at a time stay in registers."""
        e, b, a, form = self.e, self.b, self.a, self.form
        step = max(1, RESULT_VECTORS // form.group)
        for begin in range(0, form.vectors_v, step):
            part = range(begin, min(begin + step, form.vectors_v))
            places = [
                [e.variable(self._get(a.of_totals, I64(row), form.vectors_v, n)) for n in part]
                for row in range(form.group)
            ]
            with e.loop(count) as key:
                value = b.add(values, b.mul(key, a.v_token))
                features = [e.load(value, I64(n * LANES), form.kind, self._mask(n, form.width_v)) for n in part]
                for row, line in enumerate(places):
                    at = b.add(b.mul(I64(row), a.tile), key)
                    weight = e.load_one(b.add(a.of_scores, b.mul(at, I64(4))), "f32")
                    for feature, variable in zip(features, line, strict=True):
                        b.store(e.multiply_add(weight, feature, b.load(variable)), variable)
            for row, line in enumerate(places):
                for n, variable in zip(part, line, strict=True):
                    self._put(b.load(variable), a.of_totals, I64(row), form.vectors_v, n)

    def _finish(self, head: Value, query: Value, row: Value) -> None:
        """Divides the totals by the sum of the weights; where that is 0, no key is seen, and the result is 0."""
        e, b, a, form = self.e, self.b, self.a, self.form
        total = e.across(self._get(a.of_stats, row, 3, 2), b.fadd)
        nothing = b.fcmp_ordered("==", total, e.number(0.0))
        share = b.fdiv(e.number(1.0), total)
        target = self._row(a.o, a.o_head, a.o_token, head, query, row)
        for n in range(form.vectors_v):
            value = b.fmul(self._get(a.of_totals, row, form.vectors_v, n), share)
            value = b.select(nothing, e.number(0.0), value)
            e.store(value, target, I64(n * LANES), form.kind, self._mask(n, form.width_v))
        lse = b.fadd(log(e, total), self._get(a.of_stats, row, 3, 0))
        e.store_one(lse, self._row(a.lse, a.lse_head, a.lse_token, head, query, row), "f32")

    def _mask(self, number: int, width: int) -> Any:
        """Which lanes of a row's vector hold features; None where all of them do."""
        left = width - number * LANES
        return None if left >= LANES else self.b.icmp_signed("<", self.lanes, self.e.number(left, I32))

    def _row(self, base: Value, head_step: Value, token_step: Value, head: Value, query: Value, row: Value) -> Value:
        """The address of a query's row for a head of the group."""
        b = self.b
        query_head = b.add(b.mul(head, I64(self.form.group)), row)
        return b.add(base, b.add(b.mul(query_head, head_step), b.mul(query, token_step)))

    def _get(self, table: Value, row: Value, lines: int, line: Value | int) -> Value:
        return self.e.load(table, self._line(row, lines, line), "f32", None)

    def _put(self, value: Value, table: Value, row: Value, lines: int, line: Value | int) -> None:
        self.e.store(value, table, self._line(row, lines, line), "f32", None)

    def _line(self, row: Value, lines: int, line: Value | int) -> Value:
        """The position of a vector in an array [row, lines, lanes]."""
        number = I64(line) if isinstance(line, int) else line
        return self.b.mul(self.b.add(self.b.mul(row, I64(lines)), number), I64(LANES))
