"""Machine code of products of few rows of bf16 with weights of 4 bits, where the processor multiplies pairs of bf16.

All integers of 4 bits are numbers of bf16. So 64 bytes of a weight become four vectors of bf16 by a table, without
multiplications, and one instruction multiplies 32 elements and sums pairs of them in f32. A lane of these sums has
eight neighbours, all of one group: one multiplication with the scales of all lanes follows. That is half of the
instructions that `quantized_code.py` takes or less, and no less exact: products of both are exact in f32. As in other
products of pairs, numbers below 1.2e-38 are taken as 0.

The vector n of four has every fourth element, from the element n. So the other operand is laid out in the same way
first, in blocks of 128 elements. Behind the last element, it has zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir

from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import QuantizedArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import BYTES_AHEAD, LANES
from einc_runtime.kernels.llvm.emitter import F32, I16, I32, I64, Emitter, Value, vector
from einc_runtime.kernels.llvm.few_rows_code import PAIRS
from einc_runtime.kernels.llvm.quantized_code import (
    MAX_TENSOR_ROWS,
    WEIGHT_ROWS,
    store_sum,
)
from einc_runtime.kernels.llvm.quantized_code import PAIRS_BLOCK as BLOCK

NIBBLES = 4
"""Values in an element of 16 bits."""
SHORTS = 2 * LANES
"""Elements of 16 bits in a vector."""
_WORDS, _LONGS = ir.VectorType(I16, SHORTS), ir.VectorType(I64, SHORTS)
_INT4_VALUES = (np.arange(-8, 8, dtype=np.float32).view(np.uint32) >> 16).tolist()
"""The bits of all values as bf16."""


class PairsForm(NamedTuple):
    """Elements in a group, rows of the tensor, the type of the target, and the bits of an f32 for its scale."""

    group: int
    rows: int
    target: str
    scale: int


@compiler.compile_once
def emit_pairs_product(form: PairsForm) -> ir.Module:
    """The products of rows of a tensor with all rows of a weight. Scales are bf16, dense in each row.

    The arguments are `QuantizedArguments`.
    """
    return _PairsEmitter(form).emit()


class _PairsEmitter:
    def __init__(self, form: PairsForm) -> None:
        self.form, self.e = form, Emitter()
        self.b = self.e.b
        self.a = read_arguments(self.e, QuantizedArguments[Value])
        self.table = ir.Constant(
            _WORDS, [*_INT4_VALUES, *_INT4_VALUES]
        )  # an index has five bits, of which one is the next's
        self.scaled = max(1, BLOCK // form.group)  # groups in a block

    def emit(self) -> ir.Module:
        b, form = self.b, self.form
        for m in range(form.rows):
            source, target = (b.mul(step, I64(m)) for step in (self.a.tensor_step, self.a.laid_step))
            self._lay_out(b.add(self.a.tensor, source), b.add(self.a.laid, target))
        count = -(-form.rows // -(-form.rows // MAX_TENSOR_ROWS))
        # With as many rows of the tensor, sums of all rows of the weight would not stay in registers.
        height = WEIGHT_ROWS if count < WEIGHT_ROWS else WEIGHT_ROWS // 2
        with self.e.loop(self.a.rows, height) as first:
            for start in range(0, form.rows, count):
                self._multiply_rows(first, height, range(start, min(start + count, form.rows)))
        return self.e.finish()

    def _lay_out(self, source: Value, target: Value) -> None:
        """Writes a row of the tensor in the order in which the weight's elements are read, up to whole blocks."""
        b = self.b

        def write(block: Value, wide: Value) -> None:
            block_start = b.add(target, b.mul(block, I64(2 * BLOCK)))
            for n in range(NIBBLES):
                part = b.trunc(b.lshr(wide, ir.Constant(_LONGS, [16 * n] * SHORTS)), _WORDS)
                b.store(part, self.e.at(b.add(block_start, I64(2 * n * SHORTS)), _WORDS), align=2)

        blocks, left = self._count_blocks()
        with self.e.loop(blocks) as block:
            write(block, b.load(self.e.at(b.add(source, b.mul(block, I64(2 * BLOCK))), _LONGS), align=1))
        with b.if_then(b.icmp_signed(">", left, I64(0))):
            write(blocks, self.e.load_first(b.add(source, b.mul(blocks, I64(2 * BLOCK))), left, _LONGS))

    def _count_blocks(self) -> tuple[Value, Value]:
        """Whole blocks in a row, and the elements of 16 bits in what is left of the weight's row: as many as there are
        elements of 64 bits in what is left of the tensor's."""
        b = self.b
        blocks = b.sdiv(self.a.width, I64(2 * SHORTS))
        return blocks, b.sdiv(b.sub(self.a.width, b.mul(blocks, I64(2 * SHORTS))), I64(2))

    def _multiply_rows(self, first: Value, height: int, part: range) -> None:
        """Some rows of the weight times some rows of the tensor."""
        e, b = self.e, self.b
        last = b.sub(self.a.rows, I64(1))
        numbers = [b.add(first, I64(r)) for r in range(height)]
        inside = [e.least(n, last) for n in numbers]
        values = [b.add(self.a.values, b.mul(n, self.a.row_step)) for n in inside]
        scales = [b.add(self.a.scales, b.mul(n, self.a.scale_row)) for n in inside]
        lines = [b.add(self.a.laid, b.mul(self.a.laid_step, I64(m))) for m in part]
        ahead = b.mul(self.a.row_step, b.add(b.sdiv(I64(BYTES_AHEAD), self.a.width), I64(height)))
        sums = [[e.variable(e.number(0.0)) for _ in lines] for _ in values]

        def add(block: Value, words: list[Value], factors: list[Value]) -> None:
            weights = [self._widen(packed) for packed in words]
            block_start = b.mul(block, I64(2 * BLOCK))
            for m, line in enumerate(lines):
                partial = [e.number(0.0)] * height
                for n in range(NIBBLES):
                    x = b.load(self.e.at(b.add(b.add(line, block_start), I64(2 * n * SHORTS)), PAIRS), align=2)
                    partial = [self._multiply_pairs(p, w[n], x) for p, w in zip(partial, weights, strict=True)]
                for p, factor, row_sums in zip(partial, factors, sums, strict=True):
                    b.store(e.fuse_multiply_add(p, factor, b.load(row_sums[m])), row_sums[m])

        blocks, left = self._count_blocks()
        with e.loop(blocks) as block:
            block_start = b.mul(block, I64(2 * SHORTS))
            for row in values:
                e.prefetch(b.add(row, ahead), block_start)
            words = [b.load(self.e.at(b.add(row, block_start), _WORDS), align=1) for row in values]
            add(block, words, [self._load_scales(row, block, None) for row in scales])
        with b.if_then(b.icmp_signed(">", left, I64(0))):
            block_start = b.mul(blocks, I64(2 * SHORTS))
            words = [e.load_first(b.add(row, block_start), left, _WORDS) for row in values]
            groups = b.sdiv(b.mul(left, I64(NIBBLES)), I64(self.form.group))
            add(blocks, words, [self._load_scales(row, blocks, groups) for row in scales])
        for number, totals in zip(numbers, sums, strict=True):
            with b.if_then(b.icmp_signed("<", number, self.a.rows)):
                for m, total in zip(part, totals, strict=True):
                    address = b.add(
                        self.a.target, b.add(b.mul(self.a.target_row, I64(m)), b.mul(self.a.target_column, number))
                    )
                    store_sum(e, b.load(total), address, self.form.target, self.form.scale)

    def _widen(self, words: Value) -> list[Value]:
        """Four vectors of bf16: the lowest four bits of all elements, the next ones, and so on."""
        b, vectors = self.b, []
        for n in range(NIBBLES):
            index = b.lshr(words, ir.Constant(_WORDS, [4 * n] * SHORTS))
            looked_up = self.e.intrinsic("llvm.x86.avx512.permvar.hi.512", _WORDS, self.table, index)
            vectors.append(b.bitcast(looked_up, PAIRS))
        return vectors

    def _multiply_pairs(self, total: Value, left: Value, right: Value) -> Value:
        return self.e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", vector(F32), total, left, right)

    def _load_scales(self, row: Value, block: Value, groups: Value | None) -> Value:
        """The scale of every lane's eight elements; 0 behind the last group."""
        b, form = self.b, self.form
        kind = ir.VectorType(I16, self.scaled)
        group = b.mul(block, I64(self.scaled))
        if form.group > BLOCK:
            group = b.sdiv(block, I64(form.group // BLOCK))
        address = b.add(row, b.mul(group, I64(2)))
        scales = (
            b.load(self.e.at(address, kind), align=2) if groups is None else self.e.load_first(address, groups, kind)
        )
        nothing = ir.Constant(kind, [0] * self.scaled)
        order = [n // 2 * self.scaled // LANES if n % 2 else self.scaled for n in range(SHORTS)]  # upper halves
        lanes = b.shuffle_vector(scales, nothing, ir.Constant(ir.VectorType(I32, SHORTS), order))
        return b.bitcast(lanes, vector(F32))
