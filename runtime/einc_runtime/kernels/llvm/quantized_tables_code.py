"""Machine code of products of few rows with weights of 4 bits, where registers have 256 bits.

All numbers of 4 bits are numbers of bf16. Two tables of 16 bytes have the upper and the lower bytes of all of them, and
one instruction looks up 32 values in one of them. So 32 bytes of a weight become eight vectors of f32 in 19
instructions, without a conversion of integers. With few rows, their sums over a group are multiplied by its scale; with
more, elements of the weight are.

Instructions of 256 bits work on two halves of a register. Half l has 16 bytes, which are 32 elements in a row, and a
vector (h, u, p) has from it the elements 32 l + 16 u + 4 j + 2 p + h for j = 0 to 3. The other operand is laid out
first in this order, in blocks of 64 elements. Behind the last element, it has zeros.

Sums of sixteen rows of the weight are added up together, so that few instructions cross lanes. What an element of the
result is depends on its rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import QuantizedArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import BYTES_AHEAD, LANES
from einc_runtime.kernels.llvm.emitter import F32, I8, I32, I64, Emitter, Value, vector
from einc_runtime.kernels.llvm.few_rows_code import STRETCH_BYTES
from einc_runtime.kernels.llvm.quantized_code import TABLES_BLOCK as BLOCK
from einc_runtime.kernels.llvm.quantized_code import WeightForm, WeightReader, WeightRow, read_factor
from einc_runtime.stored_values import decode_values

BLOCK_BYTES = BLOCK // 2
"""Of a row of the weight, in a register."""
FLOATS_HELD = BLOCK_BYTES // 4
"""By a register."""
MAX_SCALED_SUMS = 4
"""The most rows of the tensor whose sums over groups stay in registers beside those of all groups."""
_BYTES, _WORDS, _FLOATS = (
    ir.VectorType(I8, BLOCK_BYTES),
    ir.VectorType(I32, FLOATS_HELD),
    ir.VectorType(F32, FLOATS_HELD),
)
_NO_SUM = ir.Constant(_FLOATS, [0.0] * FLOATS_HELD)


class TablesForm(NamedTuple):
    """How the weight is stored, rows of the tensor, at most `MAX_TENSOR_ROWS`, the type of the target, the bits of an
    f32 for its scale, and whether rows have whole blocks."""

    weight: WeightForm
    rows: int
    target: str
    scale: int
    is_whole: bool


class _BlockGroups(NamedTuple):
    """Scales of the vectors with u = 0 and u = 1, and their zero points if there are any."""

    scales: list[Value]
    zeros: list[Value] | None


@compiler.compile_once
def emit_tables_product(form: TablesForm) -> ir.Module:
    """The products of rows of a tensor with all rows of a weight, of which each has a multiple of four bytes.

    The arguments are `QuantizedArguments`.
    """
    return _TablesEmitter(form).emit()


class _TablesEmitter:
    def __init__(self, form: TablesForm) -> None:
        self.form, self.e = form, Emitter()
        self.b = self.e.b
        self.a = read_arguments(self.e, QuantizedArguments[Value])
        self.reader = WeightReader(self.e, form.weight, self.a)
        kind = "f4x2" if form.weight.storage == "f4x2" else "i4x2"
        bits = decode_values(np.arange(16, dtype=np.uint8), kind, np.float32)[::2].view(np.uint32)
        self.tables = [ir.Constant(_BYTES, [*(bits >> shift & 0xFF).tolist()] * 2) for shift in (16, 24)]
        self.blocks = self.b.sdiv(self.a.width, I64(BLOCK_BYTES))

    def emit(self) -> ir.Module:
        e, b, count = self.e, self.b, self.form.rows
        self._lay_out()
        with b.goto_entry_block():
            sums = b.alloca(_FLOATS, LANES * count)
            results = b.alloca(e.round_to(e.number(0.0), self.form.target).type)
        with e.loop(self.a.rows, LANES) as first:
            many = e.least(b.sub(self.a.rows, first), I64(LANES))
            self._multiply(first, many, sums)
            column = b.add(self.a.target, b.mul(self.a.target_column, first))
            with e.loop(I64(count)) as m:
                self._add_lanes(sums, m, results)
                self._store(results, many, b.add(column, b.mul(self.a.target_row, m)))
        return e.finish()

    def _lay_out(self) -> None:
        """Writes rows of the tensor in the order in which the weight's elements are read, up to whole blocks."""
        e, b, quarter = self.e, self.b, ir.VectorType(F32, 4)
        with e.loop(I64(self.form.rows)) as m:
            source = b.add(self.a.tensor, b.mul(self.a.tensor_step, m))
            target = b.add(self.a.laid, b.mul(self.a.laid_step, m))

            def write(position: Value, mask: Value | None) -> None:
                read = e.load(source, position, self.form.weight.widened, mask)
                half, u = (b.and_(b.lshr(position, I64(bit)), I64(1)) for bit in (5, 4))
                start = b.add(b.and_(position, I64(-BLOCK)), b.add(b.mul(half, I64(4)), b.mul(u, I64(2 * FLOATS_HELD))))
                for h, p in product(range(2), repeat=2):
                    order = ir.Constant(ir.VectorType(I32, 4), [4 * j + 2 * p + h for j in range(4)])
                    goal = b.add(target, b.mul(b.add(start, I64(_number(h, 0, p) * FLOATS_HELD)), I64(4)))
                    b.store(b.shuffle_vector(read, read, order), e.at(goal, quarter), align=4)

            if not self.form.is_whole:
                for n in range(BLOCK // FLOATS_HELD):
                    end = b.add(target, b.mul(b.add(b.mul(self.blocks, I64(BLOCK)), I64(n * FLOATS_HELD)), I64(4)))
                    b.store(_NO_SUM, e.at(end, _FLOATS), align=4)
            e.sweep(b.mul(self.a.width, I64(2)), write)

    def _multiply(self, first: Value, many: Value, sums: Value) -> None:
        """Writes the sums of up to sixteen rows of the weight with all rows of the tensor, lane by lane."""
        e, b, count = self.e, self.b, self.form.rows
        lines = [b.add(self.a.laid, b.mul(self.a.laid_step, I64(m))) for m in range(count)]
        ahead = b.mul(self.a.row_step, b.add(b.sdiv(I64(BYTES_AHEAD), self.a.width), I64(1)))
        with e.loop(I64(LANES * count)) as number:
            b.store(_NO_SUM, b.gep(sums, [number]))

        def add(body: Callable[[WeightRow, list[Value]], None]) -> None:
            with e.loop(many) as number:
                row = self.reader.row(b.add(first, number))
                kept = [b.gep(sums, [b.add(b.mul(number, I64(count)), I64(m))]) for m in range(count)]
                totals = [e.variable(_NO_SUM) for _ in kept]
                for address, total in zip(kept, totals, strict=True):
                    b.store(b.load(address), total)
                body(row, totals)
                for address, total in zip(kept, totals, strict=True):
                    b.store(b.load(total), address)

        stretch = max(1, STRETCH_BYTES // (count * 4 * BLOCK))
        with e.loop(self.blocks, stretch) as begin:
            end = e.least(b.add(begin, I64(stretch)), self.blocks)

            def add_stretch(row: WeightRow, totals: list[Value]) -> None:
                with e.span(begin, end) as block:
                    start = b.mul(block, I64(BLOCK_BYTES))
                    e.prefetch(b.add(row.values, ahead), start)
                    packed = b.load(e.at(b.add(row.values, start), _BYTES), align=1)
                    self._add(packed, self._load_groups(row, block, None), self._place(lines, block), totals)

            add(add_stretch)

        def add_last(row: WeightRow, totals: list[Value]) -> None:
            start = b.mul(self.blocks, I64(BLOCK_BYTES))
            address, left = b.add(row.values, start), b.sdiv(b.sub(self.a.width, start), I64(4))
            packed = b.bitcast(e.load_first(address, left, _WORDS), _BYTES)
            group = self.form.weight.group
            last = b.sub(b.sdiv(self.a.width, I64(group // 2)), I64(1)) if group else I64(0)
            groups = self._load_groups(row, self.blocks, last)
            self._add(packed, groups, self._place(lines, self.blocks), totals)

        if not self.form.is_whole:
            add(add_last)

    def _place(self, lines: list[Value], block: Value) -> list[Value]:
        return [self.b.add(line, self.b.mul(block, I64(4 * BLOCK))) for line in lines]

    def _add(self, packed: Value, groups: _BlockGroups, lines: list[Value], totals: list[Value]) -> None:
        """Adds the products of a block of a row of the weight to the sums of each row of the tensor."""
        b, scaled = self.b, len(lines) > MAX_SCALED_SUMS
        parts: list[dict[int, Value]] = [{} for _ in lines]
        for (h, u), pairs in zip(product(range(2), repeat=2), self._look_up(packed), strict=True):
            for p in range(2):
                upper = b.and_(pairs, _repeat(0xFFFF0000)) if p else b.shl(pairs, _repeat(16))
                weight = b.bitcast(upper, _FLOATS)
                if groups.zeros is not None:
                    weight = b.fsub(weight, groups.zeros[u])
                if scaled:
                    weight = b.fmul(weight, groups.scales[u])
                for line, total, sums in zip(lines, totals, parts, strict=True):
                    x = b.load(self.e.at(b.add(line, I64(4 * FLOATS_HELD * _number(h, u, p))), _FLOATS), align=4)
                    if scaled:
                        b.store(self._fuse(weight, x, b.load(total)), total)
                    else:
                        sums[u] = self._fuse(weight, x, sums[u]) if u in sums else b.fmul(weight, x)
        for total, sums in zip(totals, parts, strict=True):
            if sums and groups.scales[0] is groups.scales[1]:
                sums = {0: b.fadd(sums[0], sums[1])}
            for u, value in sums.items():
                b.store(self._fuse(value, groups.scales[u], b.load(total)), total)

    def _fuse(self, left: Value, right: Value, total: Value) -> Value:
        return self.e.intrinsic(f"llvm.fma.v{FLOATS_HELD}f32", _FLOATS, left, right, total)

    def _look_up(self, packed: Value) -> list[Value]:
        """The vectors (h, u, 0) and (h, u, 1) of a block, as pairs of bf16."""
        b, pairs = self.b, []
        for index in (b.and_(packed, _fill(15)), b.lshr(packed, _fill(4))):
            bytes_of = [self.e.intrinsic("llvm.x86.avx2.pshuf.b", _BYTES, table, index) for table in self.tables]
            for u in range(2):
                order = [16 * half + 8 * u + n // 2 + n % 2 * BLOCK_BYTES for half in range(2) for n in range(16)]
                joined = b.shuffle_vector(*bytes_of, ir.Constant(ir.VectorType(I32, BLOCK_BYTES), order))
                pairs.append(b.bitcast(joined, _WORDS))
        return pairs

    def _load_groups(self, row: WeightRow, block: Value, last: Value | None) -> _BlockGroups:
        """What is the same for all elements of a group, of the groups of a block. Where the block may not be whole,
        scales behind the last one are 0."""
        e, b, form = self.e, self.b, self.form.weight
        run = math.gcd(BLOCK, form.group)
        first, scales, zeros = b.mul(block, I64(BLOCK // run)), [], []
        if last is None and form == WeightForm(2, BLOCK // 2, "bf16", False, form.widened, form.storage):
            return _BlockGroups([self._load_pair(row, first)] * 2, None)
        for n in range(BLOCK // run):
            number = b.sdiv(b.add(first, I64(n)), I64(form.group // run)) if form.group else I64(0)
            group = self.reader.group(row, number if last is None else e.least(number, last))
            is_behind = None if last is None else b.icmp_signed(">", number, last)
            scales.append(group.scale if is_behind is None else b.select(is_behind, e.number(0.0), group.scale))
            zeros.append(group.zero)
        return _BlockGroups(self._spread(scales), self._spread(zeros) if form.zeros else None)

    def _load_pair(self, row: WeightRow, number: Value) -> Value:
        """A scale of bf16 and the next one, which is beside it, as in `_spread`."""
        b = self.b
        pair = b.load(self.e.at(b.add(row.scales, b.mul(number, self.a.scale_step)), I32), align=2)
        empty = ir.Constant(_WORDS, ir.Undefined)
        pairs = b.shuffle_vector(b.insert_element(empty, pair, I32(0)), empty, _repeat(0))
        order = [byte for half in range(2) for byte in (128, 128, 2 * half, 2 * half + 1) * 4]  # 128 is for a zero
        spread = self.e.intrinsic("llvm.x86.avx2.pshuf.b", _BYTES, b.bitcast(pairs, _BYTES), ir.Constant(_BYTES, order))
        return b.bitcast(spread, _FLOATS)

    def _spread(self, values: list[Value]) -> list[Value]:
        """What belongs to runs of elements, in the lanes of the vectors with u = 0 and u = 1."""
        runs, order = len(values), ir.Constant(_WORDS, [lane + LANES * (lane // 4) for lane in range(FLOATS_HELD)])

        def join(u: int) -> Value:
            return self.b.shuffle_vector(*(values[(2 * half + u) * runs // 4] for half in range(2)), order)

        first = join(0)
        return [first, join(1) if runs > 2 else first]

    def _add_lanes(self, sums: Value, number: Value, results: Value) -> None:
        """Writes the results of sixteen rows of the weight with a row of the tensor."""
        e, b = self.e, self.b
        halves = [b.load(b.gep(sums, [b.add(number, I64(r * self.form.rows))])) for r in range(LANES)]
        both = ir.Constant(vector(I32), list(range(LANES)))
        parts = [b.shuffle_vector(*pair, both) for pair in zip(halves[:FLOATS_HELD], halves[FLOATS_HELD:], strict=True)]
        width = FLOATS_HELD // 2
        while width:  # each half has lanes of twice as many rows, and half as many of each
            lanes = [LANES * n + FLOATS_HELD * half + 2 * width * group + lane for half in range(2) for n in range(2)
                     for group in range(FLOATS_HELD // 2 // width) for lane in range(width)]  # fmt: skip
            orders = [ir.Constant(vector(I32), [lane + shift for lane in lanes]) for shift in (0, width)]
            parts = [
                b.fadd(*(b.shuffle_vector(left, right, order) for order in orders))
                for left, right in zip(parts[0::2], parts[1::2], strict=True)
            ]
            width //= 2
        factor = read_factor(self.form.scale)
        b.store(e.round_to(b.fmul(parts[0], e.number(factor)), self.form.target), results)

    def _store(self, results: Value, many: Value, target: Value) -> None:
        """Copies the first elements to where they belong, one by one."""
        e, b = self.e, self.b
        elements = b.bitcast(results, results.type.pointee.element.as_pointer())
        with e.loop(many) as row:
            element = b.load(b.gep(elements, [row]))
            b.store(element, e.at(b.add(target, b.mul(self.a.target_column, row)), element.type))


def _number(h: int, u: int, p: int) -> int:
    """Which vector of a block it is."""
    return 4 * h + 2 * u + p


def _repeat(word: int) -> Value:
    return ir.Constant(_WORDS, [word] * FLOATS_HELD)


def _fill(byte: int) -> Value:
    return ir.Constant(_BYTES, [byte] * BLOCK_BYTES)
