"""Machine code of products of integers: it rounds rows of a tensor to 8 bits, and multiplies them with a weight.

Where the processor multiplies four pairs of bytes and adds the products to 32 bits (VNNI), one of the two operands has
no sign: values of the weight are read plus 128, and 128 times the sum of a row's integers is taken off at the end.
ARM's products of this kind have signs on both sides. Elsewhere bytes become integers of 16 bits first, of which two
pairs are multiplied and added (AVX2), or of 32 bits. In all ways sums are exact, so their order does not matter.

Some rows of the weight and some of the tensor are multiplied at a time, whose sums stay in registers. With many rows of
the tensor, a chunk of the weight that fits into the second cache is multiplied with all of them before the next one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from llvmlite import ir

from einc_runtime.kernels.calls.rounded import LEVELS
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import RoundedArguments, RoundingArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import BYTES_AHEAD, LANES
from einc_runtime.kernels.llvm.emitter import F32, I8, I16, I32, I64, Emitter, Value, vector
from einc_runtime.kernels.llvm.quantized_code import WEIGHT_ROWS

ROW_MULTIPLE = 4 * LANES
"""Rows of integers are filled up with zeros to multiples of it."""
TILES = {"bytes": 6, "signed": 1, "pairs": 1, "words": 1}
"""The most rows of the tensor that are multiplied with them at a time: sums of all stay in registers."""
BIAS = 128
"""What is added to values, where they may have no sign."""

_BYTE_VECTOR = ir.VectorType(I8, ROW_MULTIPLE)


class RoundedForm(NamedTuple):
    """Rows of the tensor in a tile; whether there is one tile only; the types of scales and of the target; whether all
    rows of the weight have one scale; what the processor multiplies (`compiler.find_integer_products`)."""

    tile: int
    few: bool
    scales: str
    target: str
    one_scale: bool
    products: str


@compiler.compile_once
def emit_rounding(kind: str, scale: int) -> ir.Module:
    """Rows of a tensor as integers, each times its ratio (`RoundingArguments`). The units of rows are f32, times the
    float with the bits `scale`; what is to be added to sums of a row is integers of 32 bits."""
    e = Emitter()
    b = e.b
    a = read_arguments(e, RoundingArguments[Value])
    factor = struct.unpack("<f", struct.pack("<i", scale))[0]
    nothing, levels = e.number(0.0), e.number(float(LEVELS))
    with e.loop(a.rows) as number:
        source, line = (
            b.add(at, b.mul(number, step)) for at, step in ((a.tensor, a.tensor_step), (a.integers, a.integer_step))
        )
        size = e.load_one(b.add(a.largest, b.mul(number, a.largest_step)), kind)
        ratio = b.fdiv(levels, size)
        finite = b.fcmp_ordered("<", ratio, e.number(float("inf")))
        ratio = b.select(b.and_(finite, b.fcmp_ordered(">", size, nothing)), ratio, nothing)
        unit = b.fdiv(size, levels)
        offset = b.mul(number, I64(4))
        e.store_one(unit if factor == 1 else b.fmul(unit, e.number(factor)), b.add(a.units, offset), "f32")
        end = b.sub(b.add(line, a.integer_step), I64(ROW_MULTIPLE))
        b.store(ir.Constant(_BYTE_VECTOR, [0] * ROW_MULTIPLE), e.at(end, _BYTE_VECTOR), align=1)
        total = e.variable(e.number(0, I32))
        b.store(e.number(0, I32), total)

        def body(position: Value, mask: Value | None, source: Value = source, line: Value = line) -> None:
            value = b.fmul(e.load(source, position, kind, mask), ratio)
            value = b.select(b.fcmp_unordered("uno", value, value), nothing, value)
            low = e.number(-float(LEVELS))
            value = b.select(b.fcmp_ordered("<", value, low), low, value)
            value = b.select(b.fcmp_ordered(">", value, levels), levels, value)
            integers = b.fptosi(e.intrinsic(f"llvm.rint.v{LANES}f32", vector(F32), value), vector(I32))
            b.store(b.add(b.load(total), integers), total)
            pointer = e.at(b.add(line, position), vector(I8))
            b.store(b.trunc(integers, vector(I8)), pointer, align=1)  # what is masked off is 0; there is room for it

        e.sweep(a.width, body)
        total_of_lanes = e.across(b.load(total), lambda left, right: b.add(left, right))
        taken = b.mul(b.extract_element(total_of_lanes, I32(0)), I32(-BIAS))
        b.store(taken, e.at(b.add(a.offsets, offset), I32))
    return e.finish()


@compiler.compile_once
def emit_rounded_product(form: RoundedForm) -> ir.Module:
    """The products of integers, and of the units and scales that belong to them, with `RoundedArguments`."""
    return _ProductEmitter(form).emit()


class _ProductEmitter:
    def __init__(self, form: RoundedForm) -> None:
        self.form, self.e = form, Emitter()
        self.b = self.e.b
        self.a = read_arguments(self.e, RoundedArguments[Value])
        self.step = {"pairs": 2 * LANES, "words": LANES}.get(form.products, ROW_MULTIPLE)
        self.words = ir.VectorType(I8, self.step)

    def emit(self) -> ir.Module:
        e, b, form = self.e, self.b, self.form
        if form.few:
            with e.loop(self.a.rows, WEIGHT_ROWS) as first:
                self._multiply(first, [I64(m) for m in range(form.tile)])
            return e.finish()
        last = b.sub(self.a.tensor_rows, I64(1))
        chunks = b.sdiv(b.add(self.a.rows, b.sub(self.a.chunk, I64(1))), self.a.chunk)
        with e.loop(chunks) as chunk:
            start = b.mul(chunk, self.a.chunk)
            left = b.sub(self.a.rows, start)
            chunk_rows = e.least(left, self.a.chunk)
            with e.loop(self.a.tensor_rows, form.tile) as m, e.loop(chunk_rows, WEIGHT_ROWS) as number:
                places = [b.add(m, I64(n)) for n in range(form.tile)]
                places = [e.least(row, last) for row in places]
                self._multiply(b.add(start, number), places)
        return e.finish()

    def _multiply(self, first: Value, places: list[Value]) -> None:
        """Some rows of the weight times some rows of the tensor."""
        e, b = self.e, self.b
        last = b.sub(self.a.rows, I64(1))
        numbers = [b.add(first, I64(r)) for r in range(WEIGHT_ROWS)]
        inside = [e.least(n, last) for n in numbers]
        values = [b.add(self.a.values, b.mul(n, self.a.row_step)) for n in inside]
        lines = [b.add(self.a.integers, b.mul(row, self.a.integer_step)) for row in places]
        ahead = b.mul(self.a.row_step, b.add(b.sdiv(I64(BYTES_AHEAD), self.a.width), I64(WEIGHT_ROWS)))
        sums = [[e.variable(e.number(0, I32)) for _ in lines] for _ in values]
        for total in (total for totals in sums for total in totals):
            b.store(e.number(0, I32), total)  # variables have their first value only once
        full_blocks = b.sdiv(self.a.width, I64(self.step))
        left = b.sub(self.a.width, b.mul(full_blocks, I64(self.step)))
        with e.loop(full_blocks) as block:
            start = b.mul(block, I64(self.step))
            for row in values:
                e.prefetch(b.add(row, ahead), start)
            self._add([b.load(self.e.at(b.add(row, start), self.words), align=1) for row in values], lines, start, sums)
        with b.if_then(b.icmp_signed(">", left, I64(0))):
            start = b.mul(full_blocks, I64(self.step))
            self._add([e.load_first(b.add(row, start), left, self.words) for row in values], lines, start, sums)
        self._store(first, places, sums)

    def _add(self, words: list[Value], lines: list[Value], offset: Value, sums: list[list[Value]]) -> None:
        b = self.b
        if self.form.products == "bytes":
            words = [b.xor(packed, ir.Constant(self.words, [BIAS] * self.step)) for packed in words]
        weights = [self._widen(packed) for packed in words]
        for m, line in enumerate(lines):
            x = self._widen(b.load(self.e.at(b.add(line, offset), self.words), align=1))
            for weight, totals in zip(weights, sums, strict=True):
                b.store(self._multiply_add(b.load(totals[m]), weight, x), totals[m])

    def _widen(self, words: Value) -> Value:
        """Bytes as the processor multiplies them."""
        if self.step == ROW_MULTIPLE:
            return self.b.bitcast(words, vector(I32))
        return self.b.sext(words, ir.VectorType(I16 if self.form.products == "pairs" else I32, self.step))

    def _multiply_add(self, total: Value, weight: Value, x: Value) -> Value:
        e, b = self.e, self.b
        if self.form.products == "bytes":
            return e.intrinsic("llvm.x86.avx512.vpdpbusd.512", total.type, total, weight, x)
        if self.form.products == "signed":
            return self._multiply_signed(total, weight, x)
        if self.form.products == "words":
            return b.add(total, b.mul(weight, x))
        kind = ir.VectorType(I32, LANES // 2)
        halves = [
            e.intrinsic(
                "llvm.x86.avx2.pmadd.wd", kind, *(self._shuffle(operand, operand, order) for operand in (weight, x))
            )
            for order in (list(range(LANES)), list(range(LANES, 2 * LANES)))
        ]
        return b.add(total, self._shuffle(halves[0], halves[1], list(range(LANES))))

    def _multiply_signed(self, total: Value, weight: Value, x: Value) -> Value:
        """The same in registers of 128 bits, each with four sums of four products."""
        quarter = LANES // 4
        orders = [list(range(n, n + quarter)) for n in range(0, LANES, quarter)]
        sums = []
        for order in orders:
            parts = [self._shuffle(operand, operand, order) for operand in (total, weight, x)]
            bytes_of = [self.b.bitcast(part, ir.VectorType(I8, 4 * quarter)) for part in parts[1:]]
            sums.append(self.e.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", parts[0].type, parts[0], *bytes_of))
        halves = [self._shuffle(left, right, list(range(2 * quarter))) for left, right in (sums[:2], sums[2:])]
        return self._shuffle(halves[0], halves[1], list(range(LANES)))

    def _store(self, first: Value, places: list[Value], sums: list[list[Value]]) -> None:
        """Writes the sums of each row of the tensor: neighbours in a row of the target."""
        e, b, form = self.e, self.b, self.form
        left = b.sub(self.a.rows, first)
        mask = e.lanes_below(e.least(left, I64(WEIGHT_ROWS)))
        scales = self.a.scales
        factors = e.load_one(scales, form.scales) if form.one_scale else e.load(scales, first, form.scales, mask)
        for m, row in enumerate(places):
            integers = self._sum_lanes([b.load(totals[m]) for totals in sums])
            if form.products == "bytes":
                offset = b.load(self.e.at(b.add(self.a.offsets, b.mul(row, I64(4))), I32))
                integers = b.add(integers, e.broadcast(offset))
            unit = e.load_one(b.add(self.a.units, b.mul(row, I64(4))), "f32")
            value = b.fmul(b.fmul(b.sitofp(integers, vector(F32)), unit), factors)
            e.store(value, b.add(self.a.target, b.mul(row, self.a.target_step)), first, form.target, mask)

    def _sum_lanes(self, four: list[Value]) -> Value:
        """The sums of the lanes of four vectors, in the first four lanes."""
        half, quarter = LANES // 2, LANES // 4
        pairs = [self._join(left, right, half) for left, right in zip(four[::2], four[1::2], strict=True)]
        joined = self._join(pairs[0], pairs[1], quarter)
        for distance in (2, 1):
            order = [lane ^ distance for lane in range(LANES)]
            joined = self.b.add(joined, self._shuffle(joined, joined, order))
        return self._shuffle(joined, joined, [lane % 4 * quarter for lane in range(LANES)])

    def _join(self, left: Value, right: Value, width: int) -> Value:
        """Adds the halves of runs of `2 * width` lanes of both vectors: those of the first one, then of the other."""
        runs = [lane for lane in range(2 * LANES) if lane % (2 * width) < width]
        return self.b.add(self._shuffle(left, right, runs), self._shuffle(left, right, [lane + width for lane in runs]))

    def _shuffle(self, left: Value, right: Value, order: list[int]) -> Value:
        return self.b.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(order)), order))
