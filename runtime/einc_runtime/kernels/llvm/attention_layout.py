"""Where attention in machine code has its operands and its scratch memory: arguments, rows of blocks, and lines.

A block is as many query rows as there are lanes. A line has one value for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.base import ALIGNMENT
from einc_runtime.kernels.llvm.arguments import AttentionArguments, FewQueriesArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.emitter import I64, Emitter, Value


class RegisterTile(NamedTuple):
    """A tile in registers: `numbers` keys (or features of values) by `vectors` vectors of rows."""

    numbers: int
    vectors: int

    @property
    def lanes(self) -> int:
        return self.vectors * LANES


def find_block_shift(
    e: Emitter, a: AttentionArguments[Value] | FewQueriesArguments[Value], size: int, row: Value, key: Value
) -> Value:
    """How many places behind a key of a sequence its place is, in the block of the key. Numbers in the table have
    `size` bytes; those beyond the blocks are taken as the nearest one."""
    b = e.b
    nth = b.udiv(key, a.block_size)
    number = b.sext(e.read(b.add(a.blocks, b.mul(row, a.blocks_row)), nth, ir.IntType(8 * size)), I64)
    number = e.least(e.most(number, I64(0)), b.sub(a.block_count, I64(1)))
    return b.mul(b.sub(number, nth), a.block_size)


class AttentionLayout:
    """Emits the addresses of one function of attention, for operands of type `kind`."""

    def __init__(self, kind: str, shape: RegisterTile) -> None:
        self.kind, self.shape = kind, shape
        self.e = Emitter()
        self.b = self.e.b
        self.a = read_arguments(self.e, AttentionArguments[Value])
        self.vectors = range(shape.vectors)
        self.pitch = self.size_of(self.e.most(self.a.deep_k, self.a.deep_v))

    @contextmanager
    def each_row(self, head: Value, query: Value, rows: Value, block: Value) -> Iterator[tuple[Value, Value, Value]]:
        """A loop over the rows of a block, each with its query and its query head: they are ordered by query, then by
        head."""
        e, b, group = self.e, self.b, self.a.group
        before = b.mul(block, I64(self.shape.lanes))
        token, member = e.variable(b.add(query, b.udiv(before, group))), e.variable(b.urem(before, group))
        with e.loop(self.e.least(I64(self.shape.lanes), b.sub(rows, before))) as row:
            yield row, b.load(token), b.add(b.mul(head, group), b.load(member))
            following = b.add(b.load(member), I64(1))
            last = b.icmp_signed("==", following, group)
            b.store(b.select(last, I64(0), following), member)
            b.store(b.add(b.load(token), b.zext(last, I64)), token)

    def packed(self, block: Value) -> Value:
        return self.b.add(self.a.of_queries, self.lines(self.b.mul(block, self.a.deep_k)))

    def totals(self, block: Value) -> Value:
        return self.b.add(self.a.of_totals, self.lines(self.b.mul(block, self.a.deep_v)))

    def stats(self, block: Value) -> Value:
        return self.b.add(self.a.of_stats, self.lines(self.b.mul(block, I64(2))))

    def lines(self, number: Value) -> Value:
        """The bytes of `number` lines, each with one value per row of a block."""
        return self.b.mul(number, I64(4 * self.shape.lanes))

    def staged(self, v: Value, lane: int, feature: Value) -> tuple[Value, Value]:
        row = self.b.add(self.b.mul(v, I64(LANES)), I64(lane))
        return self.b.add(self.a.of_rows, self.b.mul(row, self.pitch)), feature

    def get(self, table: Value, line: Value, v: Value | int) -> Value:
        return self.e.load(self.line(table, line, v), I64(0), "f32", None)

    def put(self, value: Value, table: Value, line: Value, v: Value | int) -> None:
        self.e.store(value, self.line(table, line, v), I64(0), "f32", None)

    def line(self, table: Value, line: Value, v: Value | int) -> Value:
        """The address of a vector of a line."""
        vector = I64(4 * LANES * v) if isinstance(v, int) else self.b.mul(v, I64(4 * LANES))
        return self.b.add(self.b.add(table, self.lines(line)), vector)

    def copy(self, source: Value, kind: str, target: Value, to: str, width: Value, scale: Value | None = None) -> None:
        e = self.e

        def body(position: Value, mask: Value | None) -> None:
            value = e.load(source, position, kind, mask)
            e.store(value if scale is None else self.b.fmul(value, scale), target, position, to, mask)

        e.sweep(width, body)

    # The next head, whose rows may lie far apart, so that the processor does not fetch them by itself

    def fetch_keys(self, first: Sequence[Value], number: Value, blocks: Value) -> None:
        """Fetches the share of the next head's keys and values, from the `first` ones, that belongs to some keys of a
        block: all blocks together fetch them all. `number` counts the keys of all blocks."""
        e, b, a = self.e, self.b, self.a
        numbers = I64(self.shape.numbers)
        start = b.udiv(number, blocks)
        with e.loop(b.udiv(b.add(numbers, b.sub(blocks, I64(1))), blocks)) as key:
            fetched = b.add(start, key)
            self.fetch(b.add(first[0], b.mul(fetched, a.k_token)), a.width_k)
            self.fetch(b.add(first[1], b.mul(fetched, a.v_token)), a.width_v)

    def fetch_queries(self, head: Value, query: Value, block: Value, key: Value, count: Value) -> None:
        """The same for the block's queries and results."""
        e, b, a = self.e, self.b, self.a
        lanes = I64(self.shape.lanes)
        start = b.add(b.mul(block, lanes), b.udiv(b.mul(key, lanes), count))
        rows = b.udiv(b.add(I64(self.shape.numbers * self.shape.lanes), b.sub(count, I64(1))), count)
        with e.loop(self.e.least(rows, lanes)) as row:
            number = b.add(start, row)
            token = b.add(query, b.udiv(number, a.group))
            of_head = b.add(b.mul(b.add(head, I64(1)), a.group), b.urem(number, a.group))
            self.fetch(b.add(a.q, b.add(b.mul(of_head, a.q_head), b.mul(token, a.q_token))), a.width_k)
            result = b.add(a.o, b.add(b.mul(of_head, a.o_head), b.mul(token, a.o_token)))
            self.fetch(result, a.width_v, write=True)

    def fetch(self, row: Value, width: Value, *, write: bool = False) -> None:
        """Says that a row of an operand is needed soon."""
        size = ITEMSIZE[self.kind]
        with self.e.loop(width, ALIGNMENT // size) as position:
            self.e.prefetch(row, self.b.mul(position, I64(size)), near=True, write=write)

    def size_of(self, elements: Value) -> Value:
        return self.b.mul(elements, I64(4))
