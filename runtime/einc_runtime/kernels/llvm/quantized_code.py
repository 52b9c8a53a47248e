"""Machine code that reads quantized weights: it widens them into memory, or in registers for products of few rows.

Bytes are read 16 at a time. With 4-bit values these are 32 elements: the even ones are in the low halves, the odd ones
in the high halves. So the other operand of a product is laid out in the same way first, in blocks of 32 elements. Each
element of a product is one chain of fused multiply-adds per lane, in the order of k; lanes are added in a fixed order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import QuantizedArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import BYTES_AHEAD, LANES
from einc_runtime.plan.schema import NARROW_FLOATS
from einc_runtime.stored_values import decode_values

BLOCK = 2 * LANES
"""Elements that are laid out together; groups are multiples of it, or pairs of 4 bits in half of it."""
PAIRS_BLOCK = 8 * LANES
"""The same where pairs of bf16 are multiplied (`quantized_pairs_code.py`); groups are 32, 64, or multiples of it."""
TABLES_BLOCK = 64
"""The same where bytes are looked up in tables (`quantized_tables_code.py`); groups are multiples of a quarter."""
WEIGHT_ROWS = 4
"""The most rows of a weight that are read at a time."""
REGISTER_SUMS, NARROW_REGISTER_SUMS = 16, 6
"""Sums that stay in registers of 512 bits, and in pairs of those of 256 bits."""
MAX_TENSOR_ROWS = 8
"""The most rows of the tensor that are multiplied at a time by elements of the weight that are widened once."""
UNROLLED = 8
"""Steps of a group that are written out."""

Value = Any


class WeightForm(NamedTuple):
    """How a weight is stored: elements in a value, elements in a group (0: rows), the type of scales, whether there are
    zero points. `widened` is the type of the other operand, or of what is written, `storage` that of the values. With
    `has_factor`, a tensor has a factor in f32, which is where zero points would be."""

    packing: int
    group: int
    kind: str
    zeros: bool
    widened: str
    storage: str = "i8"
    has_factor: bool = False


@dataclass(frozen=True, slots=True)
class WeightRow:
    """A row of a weight: the addresses of its values, scales, and zero points or factor."""

    values: Value
    scales: Value
    zeros: Value


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """What is the same for all elements of a group: each in every lane, and a table of all weights of 4 bits; or for
    two groups, of which each has half of the lanes, and no table."""

    scale: Value
    zero: Value | None
    table: Value | None


SweepBody = Callable[[list[WeightGroup], Value, Value | None], None]
"""Given the groups of some rows, a position in bytes, and the mask of the last vector."""


class WeightReader:
    """Emits code that reads the weight of some arguments."""

    def __init__(self, e: Any, form: WeightForm, arguments: QuantizedArguments[Value]) -> None:
        from einc_runtime.kernels.llvm.emitter import F32, I32, vector

        self.e, self.form, self.a = e, form, arguments
        self.floats, self.integers = vector(F32), vector(I32)

    def row(self, number: Value) -> WeightRow:
        b = self.e.b
        return WeightRow(
            b.add(self.a.values, b.mul(number, self.a.row_step)),
            b.add(self.a.scales, b.mul(number, self.a.scale_row)),
            b.add(self.a.zeros, b.mul(number, self.a.zero_row)),
        )

    def group(self, row: WeightRow, number: Value) -> WeightGroup:
        """The scale and the zero point of a group."""

        e, b = self.e, self.e.b
        scale = self._load_scale(b.add(row.scales, b.mul(number, self.a.scale_step)))
        if self.form.has_factor:
            scale = b.fmul(scale, e.load_one(row.zeros, "f32"))
        zero = e.load_one(b.add(row.zeros, b.mul(number, self.a.zero_step)), "i8") if self.form.zeros else None
        numbers = self._list_numbers()
        if numbers is None:
            return WeightGroup(scale, zero, None)
        return WeightGroup(scale, zero, b.fmul(numbers if zero is None else b.fsub(numbers, zero), scale))

    def _load_scale(self, address: Value) -> Value:
        from einc_runtime.kernels.llvm.emitter import I8, I32

        e, b, kind = self.e, self.e.b, self.form.kind
        if kind in compiler.COMPILED_FLOATS:
            return e.load_one(address, kind)
        return self._decode(e.broadcast(b.zext(b.load(e.at(address, I8)), I32)), kind)

    def _list_numbers(self) -> Value | None:
        """What values of 4 bits stand for, where a vector of them can be looked up."""
        from llvmlite import ir

        if self.form.packing == 1 or not compiler.has_wide_registers():
            return None
        kind = "f4x2" if self.form.storage == "f4x2" else "i4x2"
        numbers = decode_values(np.arange(LANES, dtype=np.uint8), kind, np.float32)[::2]
        return ir.Constant(self.floats, numbers.tolist())

    def _pair_groups(self, row: WeightRow, first: Value, last: Value) -> WeightGroup:
        """A group and the next one, if it is not the last."""
        from einc_runtime.kernels.llvm.emitter import I64

        e, b = self.e, self.e.b
        groups = [self.group(row, number) for number in (first, e.least(b.add(first, I64(1)), last))]
        lanes = e.lanes_below(I64(LANES // 2))
        return WeightGroup(b.select(lanes, *(group.scale for group in groups)), None, None)

    def widen(self, row: WeightRow, group: WeightGroup, position: Value, mask: Value | None) -> list[Value]:
        """The elements in 16 bytes: a vector, or two with 4-bit values. Where the mask is off, they are 0."""
        e, b = self.e, self.e.b
        if self.form.storage in NARROW_FLOATS:
            stored = e.load_bytes(row.values, position, mask)
            vectors = [self._scale(self._decode(stored, self.form.storage), group)]
        elif self.form.packing == 1:
            vectors = [self._scale(e.load(row.values, position, "i8", mask), group)]
        else:
            pairs = e.load_bytes(row.values, position, mask)
            halves = [pairs, b.lshr(pairs, e.number(4, pairs.type.element))]
            vectors = [self._look_up(half, group) for half in halves]
        nothing = e.number(0.0)
        return vectors if mask is None else [b.select(mask, values, nothing) for values in vectors]

    def _decode(self, stored: Value, kind: str) -> Value:
        """Floats of 8 or 4 bits, moved to where the same bits of an f16 are: f8e5m2 has the exponents of an f16, and
        others become one that is 2^8 or 2^14 times too small, also where they are subnormal. f8e8m0 is the exponent of
        an f32."""
        from einc_runtime.kernels.llvm.emitter import F32, HALF, I16, I32, vector

        e, b = self.e, self.e.b
        if kind == "f8e8m0":
            smallest = b.icmp_unsigned("==", stored, e.number(0, I32))
            bits = b.select(smallest, e.number(1 << 22, I32), b.shl(stored, e.number(23, I32)))
            power = b.bitcast(bits, vector(F32))
            return b.select(b.icmp_unsigned("==", stored, e.number(0xFF, I32)), e.number(float("nan")), power)

        def read_half(bits: Value) -> Value:
            return e.widen(b.bitcast(b.trunc(bits, vector(I16)), vector(HALF)), "f16")

        if kind == "f8e5m2":
            return read_half(b.shl(stored, e.number(8, I32)))
        if kind == "f4x2":
            sign = b.shl(b.and_(stored, e.number(8, I32)), e.number(12, I32))
            magnitude = b.shl(b.and_(stored, e.number(7, I32)), e.number(9, I32))
            return b.fmul(read_half(b.or_(sign, magnitude)), e.number(16384.0))
        magnitude = b.and_(stored, e.number(0x7F, I32))
        sign = b.shl(b.and_(stored, e.number(0x80, I32)), e.number(8, I32))
        value = b.fmul(read_half(b.or_(sign, b.shl(magnitude, e.number(7, I32)))), e.number(256.0))
        return b.select(b.icmp_unsigned("==", magnitude, e.number(0x7F, I32)), e.number(float("nan")), value)

    def _look_up(self, half: Value, group: WeightGroup) -> Value:
        e, b = self.e, self.e.b
        table = self._list_numbers() if group.table is None else group.table
        if table is not None:  # it reads the low four bits alone
            looked_up = e.intrinsic("llvm.x86.avx512.permvar.sf.512", self.floats, table, half)
            return looked_up if table is group.table else self._scale(looked_up, group)
        if self.form.storage == "f4x2":
            return self._scale(self._decode(half, "f4x2"), group)
        number = b.sitofp(b.and_(half, e.number(15, half.type.element)), self.floats)
        return self._scale(b.fsub(number, e.number(8.0)), group)

    def _scale(self, number: Value, group: WeightGroup) -> Value:
        b = self.e.b
        return b.fmul(number if group.zero is None else b.fsub(number, group.zero), group.scale)

    def sweep(self, rows: list[WeightRow], count: Value, body: SweepBody) -> None:
        """Calls `body(groups, position, mask)` for all positions of 16 bytes in rows of `count` bytes."""
        from einc_runtime.kernels.llvm.emitter import I64

        e, b = self.e, self.e.b
        if not self.form.group:
            groups = [self.group(row, I64(0)) for row in rows]
            e.sweep(count, lambda position, mask: body(groups, position, mask))
            return
        width = self.form.group // self.form.packing
        if width < LANES:

            def part(position: Value, mask: Value | None) -> None:
                first, last = b.sdiv(position, I64(width)), b.sub(b.sdiv(count, I64(width)), I64(1))
                body([self._pair_groups(row, first, last) for row in rows], position, mask)

            e.sweep(count, part)
            return
        with e.loop(b.sdiv(count, I64(width))) as number:
            groups = [self.group(row, number) for row in rows]
            start = b.mul(number, I64(width))
            if width <= UNROLLED * LANES:
                for step in range(0, width, LANES):
                    body(groups, b.add(start, I64(step)), None)
            else:
                with e.loop(I64(width), LANES) as step:
                    body(groups, b.add(start, step), None)


@compiler.compile_once
def emit_widening(form: WeightForm) -> Any:
    """Writes all rows of a weight to a target whose rows are dense. The arguments are `QuantizedArguments`."""
    from einc_runtime.kernels.llvm.emitter import Emitter

    e = Emitter()
    b = e.b
    a = read_arguments(e, QuantizedArguments[Value])
    reader = WeightReader(e, form, a)
    with e.loop(a.rows) as number:
        row = reader.row(number)
        line = b.add(a.target, b.mul(number, a.target_row))

        def body(groups: list[WeightGroup], position: Value, mask: Value | None) -> None:
            store_widened(reader, (row, groups[0]), (position, mask, a.width), line, form.widened)

        reader.sweep([row], a.width, body)
    return e.finish()


def store_widened(
    reader: WeightReader,
    source: tuple[WeightRow, WeightGroup],
    part: tuple[Value, Value | None, Value],
    line: Value,
    kind: str,
) -> None:
    """Writes the elements of 16 bytes to a line of a type. `part` is their position in bytes, the mask, and the bytes
    in a row."""
    from einc_runtime.kernels.llvm.emitter import I32, I64, vector

    from llvmlite import ir  # isort: skip

    e, b, (position, mask, width) = reader.e, reader.e.b, part
    vectors = reader.widen(*source, position, mask)
    if len(vectors) == 1:
        e.store(vectors[0], line, position, kind, mask)
        return
    for half in range(2):
        order = ir.Constant(vector(I32), [n // 2 + n % 2 * LANES + half * LANES // 2 for n in range(LANES)])
        element = b.add(b.mul(position, I64(2)), I64(half * LANES))
        left = b.sub(b.mul(width, I64(2)), element)
        lanes = None if mask is None else e.lanes_below(e.least(left, I64(LANES)))
        e.store(b.shuffle_vector(*vectors, order), line, element, kind, lanes)


@compiler.compile_once
def emit_product(form: WeightForm, count: int, kind: str, scale: int) -> Any:
    """The products of `count` rows of a tensor with all rows of a weight, times the float with the bits `scale`.

    The arguments are `QuantizedArguments`; the target has type `kind`.
    """
    from einc_runtime.kernels.llvm.emitter import I64, Emitter

    e = Emitter()
    b = e.b
    a = read_arguments(e, QuantizedArguments[Value])
    reader = WeightReader(e, form, a)
    for m in range(count):
        source, line = b.mul(a.tensor_step, I64(m)), b.mul(a.laid_step, I64(m))
        _lay_out(e, form, b.add(a.tensor, source), b.add(a.laid, line), a.width)

    tile = min(count, MAX_TENSOR_ROWS)
    sums_kept = REGISTER_SUMS if compiler.has_wide_registers() else NARROW_REGISTER_SUMS
    height = max(1, min(WEIGHT_ROWS, sums_kept // tile))
    last = b.sub(a.rows, I64(1))
    ahead = b.mul(a.row_step, b.add(b.sdiv(I64(BYTES_AHEAD), a.width), I64(height)))
    with e.loop(a.rows, height) as first:
        numbers = [b.add(first, I64(r)) for r in range(height)]
        weight_rows = [reader.row(e.least(n, last)) for n in numbers]
        for start in range(0, count, tile):
            lines = [b.add(a.laid, b.mul(a.laid_step, I64(m))) for m in range(start, min(start + tile, count))]
            sums = [[e.variable(e.number(0.0)) for _ in lines] for _ in weight_rows]

            def body(
                groups: list[WeightGroup],
                position: Value,
                mask: Value | None,
                weight_rows: list[WeightRow] = weight_rows,
                lines: list[Value] = lines,
                sums: list[list[Value]] = sums,
            ) -> None:
                element = b.mul(position, I64(form.packing))
                for row in weight_rows:
                    e.prefetch(b.add(row.values, ahead), position)
                for row, group, totals in zip(weight_rows, groups, sums, strict=True):
                    for h, weights in enumerate(reader.widen(row, group, position, mask)):
                        for line, total in zip(lines, totals, strict=True):
                            x = e.load(line, b.add(element, I64(h * LANES)), "f32", None)
                            b.store(e.fuse_multiply_add(weights, x, b.load(total)), total)

            for total in (total for totals in sums for total in totals):
                b.store(e.number(0.0), total)  # variables have their first value only once
            reader.sweep(weight_rows, a.width, body)
            for number, totals in zip(numbers, sums, strict=True):
                with b.if_then(b.icmp_signed("<", number, a.rows)):
                    for m, total in enumerate(totals, start):
                        address = b.add(a.target, b.add(b.mul(a.target_row, I64(m)), b.mul(a.target_column, number)))
                        store_sum(e, b.load(total), address, kind, scale)
    return e.finish()


def read_factor(scale: int) -> float:
    """The float with these bits."""
    factor: float = struct.unpack("<f", struct.pack("<i", scale))[0]
    return factor


def store_sum(e: Any, total: Value, address: Value, kind: str, scale: int) -> None:
    """Writes the sum of all lanes of a vector, times the float with the bits `scale`, to an address."""
    value = e.across(total, lambda left, right: e.b.fadd(left, right))
    factor = read_factor(scale)
    e.store_one(value if factor == 1 else e.b.fmul(value, e.number(factor)), address, kind)


def _lay_out(e: Any, form: WeightForm, source: Value, target: Value, width: Value) -> None:
    """Writes a row of the tensor as f32 in the order in which the weight's elements are read, up to whole blocks."""
    from einc_runtime.kernels.llvm.emitter import I32, I64, vector

    from llvmlite import ir  # isort: skip

    b = e.b
    if form.packing == 1:
        e.sweep(width, lambda at, mask: e.store(e.load(source, at, form.widened, mask), target, at, "f32", None))
        return
    orders = [ir.Constant(vector(I32), list(range(half, BLOCK, 2))) for half in range(2)]

    def body(position: Value, mask: Value | None) -> None:
        first = b.mul(position, I64(2))
        pair = []
        for half in range(2):
            element = b.add(first, I64(half * LANES))
            part = None if mask is None else e.lanes_below(e.least(b.sub(b.mul(width, I64(2)), element), I64(LANES)))
            pair.append(e.load(source, element, form.widened, part))
        for half, order in enumerate(orders):
            e.store(b.shuffle_vector(*pair, order), target, b.add(first, I64(half * LANES)), "f32", None)

    e.sweep(width, body)
